// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requests, and the reply to each.
//!
//! Additions keep the number of the [protocol](PROTOCOL): new commands, new optional fields of requests, new fields of replies.
//! Other changes need a new number. Unknown fields of requests are refused, as clients would expect an effect of them.

use std::{collections::BTreeMap, num::NonZeroU64, path::PathBuf};

use efa_fabric::{PathCounters, Settings};
use efa_hw::aenq::AenqGroup;
use efa_model::{Counters, Death, Overrides, Profile, Queue, Rule, RuleId};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    events::Recent,
    inspect::{DeviceState, Network, Snapshot},
};

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

/// A request.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("unevaluatedProperties" = false))]
pub(crate) struct Request {
    /// Index of the device; 0 if absent, but for `devices`, `counters` and `snapshot` all.
    pub(crate) device: Option<usize>,
    #[serde(flatten)]
    pub(crate) command: Command,
}

/// A command of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Command {
    /// Asks for the program's name, versions and commands.
    Hello {
        /// The client's version of the protocol. If the program does not support it, the reply is an error.
        protocol: Option<u32>,
    },
    /// Asks for the list of devices.
    Devices {},
    /// Asks for the state of a device.
    State {},
    /// Asks for the operations of a device since the last such request.
    Trace {},
    /// Asks for the state and the last operations of devices, for a bug report.
    Snapshot {},
    /// Adds a rule for faults.
    Inject {
        /// The rule.
        rule: Rule,
    },
    /// Releases completions that a rule holds.
    Release {
        /// Name under which the rule holds them.
        name: String,
        /// Number of completions to release, oldest first; all if absent.
        count: Option<u64>,
    },
    /// Replaces attributes of a device.
    Set {
        /// The attributes.
        // Boxed because they are much larger than other requests.
        set: Box<Overrides>,
    },
    /// Posts an asynchronous event.
    Event {
        /// The group of the event.
        group: EventGroup,
        /// The syndrome of the event.
        #[serde(default)]
        syndrome: u16,
        /// Number of events, each posted as soon as the queue has room. If absent, one event is posted immediately.
        count: Option<NonZeroU64>,
        /// Whether the event is posted in the session after the next reset.
        #[serde(default)]
        after_reset: bool,
        /// Number of commands that this session completes before the event; one if absent.
        after_commands: Option<u64>,
    },
    /// Moves a queue pair to the error state.
    FailQp {
        /// The queue pair.
        qp: u16,
    },
    /// Makes a device fail like one whose firmware hangs, until a reset revives it.
    Die(Death),
    /// Removes a device from its slot.
    Unplug {},
    /// Plugs a device into its slot again.
    Plug {},
    /// Removes all rules of a device, releases the completions that they hold, and restores its attributes.
    Clear {},
    /// Reads a part of a queue in the guest's memory.
    Peek {
        /// The queue.
        queue: Queue,
        /// Offset in the queue, in bytes.
        #[serde(default)]
        offset: u64,
        /// Number of bytes to read.
        length: usize,
    },
    /// Writes to a queue in the guest's memory.
    Poke {
        /// The queue.
        queue: Queue,
        /// Offset in the queue, in bytes.
        #[serde(default)]
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Posts a completion event for a completion queue.
    Notify {
        /// The event queue; if absent, that of the completion queue.
        eq: Option<u16>,
        /// The completion queue.
        cq: u16,
        /// Number of events, posted in batches whenever the driver arms the queue. If absent, one is posted immediately.
        count: Option<NonZeroU64>,
    },
    /// Asks for the counters of devices, and without a device for those of paths.
    Counters {},
    /// Asks for the state of the network, after an optional change of its settings.
    Fabric {
        /// New values of some settings.
        #[schemars(with = "Option<Settings>")]
        set: Option<Map<String, Value>>,
    },
}

type SchemaOf = fn() -> Schema;

/// The commands, and the schema of the reply to each.
pub(crate) const COMMANDS: [(&str, SchemaOf); 19] = [
    ("hello", reply::<Welcome>),
    ("devices", reply::<Vec<DeviceInfo>>),
    ("state", reply::<DeviceState>),
    ("trace", reply::<Recent>),
    ("snapshot", reply::<Snapshot>),
    ("inject", reply::<Injected>),
    ("release", reply::<Released>),
    ("set", reply::<Done>),
    ("event", reply::<Done>),
    ("fail_qp", reply::<Done>),
    ("die", reply::<Done>),
    ("unplug", reply::<Done>),
    ("plug", reply::<Done>),
    ("clear", reply::<Done>),
    ("peek", reply::<Bytes>),
    ("poke", reply::<Done>),
    ("notify", reply::<Done>),
    ("counters", reply::<Sample>),
    ("fabric", reply::<Network>),
];

fn reply<T: JsonSchema>() -> Schema {
    let replies = SchemaSettings::draft2020_12().for_serialize();
    replies.into_generator().into_root_schema_for::<Reply<T>>()
}

/// The schemas of the protocol.
#[derive(Serialize)]
pub(crate) struct Schemas {
    /// The version of the protocol.
    protocol: u32,
    /// A request.
    request: Schema,
    /// The reply to each kind of request, by the value of `command`.
    replies: BTreeMap<&'static str, Schema>,
}

/// Returns the schemas of the protocol.
pub(crate) fn schemas() -> Schemas {
    let requests = SchemaSettings::draft2020_12().for_deserialize();
    Schemas {
        protocol: PROTOCOL,
        request: requests.into_generator().into_root_schema_for::<Request>(),
        replies: COMMANDS.map(|(name, reply)| (name, reply())).into(),
    }
}

/// The reply to a request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply<T> {
    /// The result of the request.
    Ok(T),
    /// One sentence about what is wrong.
    Error(String),
}

impl Reply<Value> {
    /// Returns the reply as a line.
    pub(crate) fn to_line(&self) -> Vec<u8> {
        // A `Value` can always be written: its keys are strings.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        // The line may stay in memory until the client reads it.
        line.shrink_to_fit();
        line
    }
}

/// A group of asynchronous events, by its name or by any number, even one without a meaning.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "Value")]
#[schemars(!try_from)]
pub(crate) struct EventGroup(#[schemars(schema_with = "event_groups")] pub(crate) u16);

fn names() -> impl Iterator<Item = &'static str> {
    AenqGroup::ALL.iter().map(|group| group.name())
}

fn event_groups(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = names().collect();
    json_schema!({
        "anyOf": [
            { "enum": names },
            { "type": "integer", "minimum": 0, "maximum": u16::MAX },
        ],
    })
}

impl TryFrom<Value> for EventGroup {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
        let named = AenqGroup::ALL.iter().find(|group| value == group.name());
        let group = named.map(|group| u16::from(*group)).or(number);
        group.map(Self).ok_or_else(|| {
            let names: Vec<_> = names().collect();
            let names = names.join(", ");
            format!("there is no event group {value}, only {names} and numbers")
        })
    }
}

/// Empty result of a request that has succeeded.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Done {}

/// The program's name, versions and commands.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Welcome {
    /// The version of the protocol.
    protocol: u32,
    /// The name of the program.
    program: &'static str,
    /// The version of the program.
    version: &'static str,
    /// Values of `command`.
    commands: Vec<&'static str>,
}

impl Welcome {
    pub(crate) fn new() -> Self {
        Self {
            protocol: PROTOCOL,
            program: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            commands: COMMANDS.iter().map(|(name, _)| *name).collect(),
        }
    }
}

/// A device.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeviceInfo {
    /// Index of the device, which requests pass as `device`.
    pub(crate) device: usize,
    /// Generation of the device.
    pub(crate) profile: Profile,
    /// Path of the socket to which a VMM connects.
    pub(crate) socket: PathBuf,
}

/// The rule that was added.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Injected {
    /// Number of the rule.
    pub(crate) rule: RuleId,
}

/// The completions that were released.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Released {
    /// Number of released completions.
    pub(crate) released: u64,
}

/// Bytes that were read from a queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Bytes {
    /// The bytes.
    pub(crate) data: Vec<u8>,
}

/// The counters of devices and paths.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sample {
    /// Counters of each device, by its index, or of the requested one.
    pub(crate) devices: Vec<Counters>,
    /// Counters of each path, by its number, unless one device was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paths: Option<Vec<PathCounters>>,
}
