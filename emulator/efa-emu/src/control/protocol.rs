// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requests that there are, and the reply to each.
//!
//! Additions keep the number of the [protocol](PROTOCOL): new kinds of requests, new optional fields of requests, new fields of
//! replies. All else changes it. What a request has that is not known is refused, so that nobody believes it has an effect.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroU64},
    path::PathBuf,
};

use efa_fabric::{PathCounters, Settings};
use efa_hw::aenq::AenqGroup;
use efa_model::{Counters as DeviceCounters, FailedReset, Overrides, Profile, Queue, Rule, RuleId};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{snapshot, trace::Recent};

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

/// A kind of request.
pub(crate) trait Ask {
    /// What is `ok` in the reply.
    type Reply: Serialize + JsonSchema;
}

/// Who can do what a kind of request asks for.
pub(crate) trait Perform<R: Ask> {
    /// Does it.
    ///
    /// # Errors
    ///
    /// One sentence about what is wrong.
    fn perform(&self, request: R) -> Result<R::Reply, String>;
}

/// The reply to a request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply<T> {
    /// What was asked for.
    Ok(T),
    /// One sentence about what is wrong.
    Error(String),
}

impl<T> From<Result<T, String>> for Reply<T> {
    fn from(result: Result<T, String>) -> Self {
        match result {
            Ok(reply) => Self::Ok(reply),
            Err(error) => Self::Error(error),
        }
    }
}

impl Reply<Value> {
    /// The line that a client reads.
    pub(crate) fn to_line(&self) -> Vec<u8> {
        // A `Value` can always be written: its keys are strings.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        // It may wait for its reader.
        line.shrink_to_fit();
        line
    }
}

fn to_value(reply: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(reply).map_err(|error| error.to_string())
}

/// The kinds of requests, by what `command` is, and the reply to each.
macro_rules! requests {
    ($($name:literal => $kind:ident -> $reply:ty,)*) => {
        /// A request of any kind.
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(tag = "command")]
        pub(crate) enum Request {
            $(#[serde(rename = $name)] $kind($kind),)*
        }

        $(impl Ask for $kind {
            type Reply = $reply;
        })*

        /// What `command` can be.
        pub(crate) const COMMANDS: &[&str] = &[$($name),*];

        /// The schema of the reply to each kind of request, by what `command` is.
        fn reply_schemas() -> BTreeMap<&'static str, Schema> {
            BTreeMap::from([$(($name, reply_schema::<$reply>())),*])
        }

        impl Request {
            /// Has it performed, and returns what is `ok` in the reply.
            ///
            /// # Errors
            ///
            /// One sentence about what is wrong.
            pub(crate) fn perform_by<P>(self, who: &P) -> Result<Value, String>
            where
                $(P: Perform<$kind>,)*
            {
                match self {
                    $(Self::$kind(request) => to_value(who.perform(request)?),)*
                }
            }
        }
    };
}

/// The schema of what there is to say.
#[derive(Serialize)]
pub(crate) struct Schemas {
    /// The version of the protocol.
    protocol: u32,
    /// A request.
    request: Schema,
    /// The reply to each kind of request, by what `command` is.
    replies: BTreeMap<&'static str, Schema>,
}

/// The schema of what there is to say.
pub(crate) fn schemas() -> Schemas {
    let requests = SchemaSettings::draft2020_12().for_deserialize();
    Schemas {
        protocol: PROTOCOL,
        request: requests.into_generator().into_root_schema_for::<Request>(),
        replies: reply_schemas(),
    }
}

fn reply_schema<T: JsonSchema>() -> Schema {
    let replies = SchemaSettings::draft2020_12().for_serialize();
    replies.into_generator().into_root_schema_for::<Reply<T>>()
}

requests! {
    "hello" => Hello -> Welcome,
    "devices" => Devices -> Vec<DeviceInfo>,
    "state" => State -> efa_model::State,
    "trace" => Trace -> Recent,
    "snapshot" => Snapshot -> snapshot::Snapshot,
    "inject" => Inject -> Injected,
    "release" => Release -> Released,
    "set" => Set -> Done,
    "event" => Event -> Done,
    "fail_qp" => FailQp -> Done,
    "die" => Die -> Done,
    "unplug" => Unplug -> Done,
    "plug" => Plug -> Done,
    "clear" => Clear -> Done,
    "peek" => Peek -> Bytes,
    "poke" => Poke -> Done,
    "notify" => Notify -> Done,
    "counters" => Counters -> Sample,
    "fabric" => Fabric -> Network,
}

/// It was done, and there is nothing to tell.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Done {}

/// Asks who this is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    /// The version of the protocol that the client knows. One that the program does not speak is an error.
    protocol: Option<u32>,
}

impl Hello {
    /// What the program answers.
    ///
    /// # Errors
    ///
    /// It does not speak the client's version of the protocol.
    pub(crate) fn welcome(&self) -> Result<Welcome, String> {
        match self.protocol {
            Some(other) if other != PROTOCOL => Err(format!(
                "this program speaks version {PROTOCOL} of the protocol, but not {other}"
            )),
            _ => Ok(Welcome {
                protocol: PROTOCOL,
                program: env!("CARGO_PKG_NAME"),
                version: env!("CARGO_PKG_VERSION"),
                commands: COMMANDS,
            }),
        }
    }
}

/// Who this is.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Welcome {
    /// The version of the protocol.
    protocol: u32,
    /// The name of the program.
    program: &'static str,
    /// The version of the program.
    version: &'static str,
    /// What `command` can be.
    commands: &'static [&'static str],
}

/// Asks which devices there are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Devices {}

/// A device.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeviceInfo {
    /// Its index, which is what requests call `device`.
    pub(crate) device: usize,
    /// Its generation.
    pub(crate) profile: Profile,
    /// Where a VMM connects to it.
    pub(crate) socket: PathBuf,
}

/// Asks for the state of a device.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Asks what a device did since the last such request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trace {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Asks for all that a report of a fault needs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    /// Index of the device; all if absent.
    pub(crate) device: Option<usize>,
}

/// Adds a rule for faults.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Inject {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The rule.
    pub(crate) rule: Rule,
}

/// A rule was added.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Injected {
    /// Its number.
    pub(crate) rule: RuleId,
}

/// Has completions come that a rule holds.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The name under which they are held.
    pub(crate) name: String,
    /// How many, the oldest first; all of them if absent.
    pub(crate) count: Option<u64>,
}

/// Completions have come.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Released {
    /// How many.
    pub(crate) released: u64,
}

/// Replaces attributes of a device.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Set {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The attributes.
    // Boxed because they are much larger than other requests.
    pub(crate) set: Box<Overrides>,
}

/// Posts an asynchronous event.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The group of the event.
    pub(crate) group: EventGroup,
    /// The syndrome of the event.
    #[serde(default)]
    pub(crate) syndrome: u16,
    /// How often it comes; absent, it comes once, and at once.
    pub(crate) count: Option<NonZeroU64>,
    /// It comes in the session after the next reset.
    #[serde(default)]
    pub(crate) after_reset: bool,
    /// How many commands that session is to have completed then; one if absent.
    pub(crate) after_commands: Option<u64>,
}

/// A group of asynchronous events, by its name or by its number, which may have no meaning.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "Value")]
#[schemars(!try_from)]
pub(crate) struct EventGroup(#[schemars(schema_with = "event_groups")] pub(crate) u16);

fn event_groups(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = AenqGroup::ALL.iter().map(|group| group.name()).collect();
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
        named
            .map(|group| u16::from(*group))
            .or(number)
            .map(Self)
            .ok_or_else(|| {
                let names: Vec<_> = AenqGroup::ALL.iter().map(|group| group.name()).collect();
                format!(
                    "there is no event group {value}, only {} and numbers",
                    names.join(", ")
                )
            })
    }
}

/// Puts a queue pair in error.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailQp {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The queue pair.
    pub(crate) qp: u16,
}

/// Lets a device die.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Die {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// It tells nobody.
    #[serde(default)]
    pub(crate) silent: bool,
    /// Only this reset from now on revives it.
    #[serde(default = "once")]
    pub(crate) resets: NonZeroU32,
    /// How those before fail.
    #[serde(default)]
    pub(crate) how: FailedReset,
    /// It goes on with DMA.
    #[serde(default)]
    pub(crate) dma: bool,
}

const fn once() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Pulls a device out of its slot.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unplug {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Puts a device into its slot again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plug {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Removes all rules of a device, releases what they hold, and puts its attributes back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Clear {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Reads a part of a queue in the guest's memory.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peek {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The queue.
    pub(crate) queue: Queue,
    /// Where to begin, in bytes.
    #[serde(default)]
    pub(crate) offset: u64,
    /// How many bytes to read.
    pub(crate) length: usize,
}

/// What was read.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Bytes {
    /// The bytes.
    pub(crate) data: Vec<u8>,
}

/// Writes to a queue in the guest's memory.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Poke {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The queue.
    pub(crate) queue: Queue,
    /// Where to begin, in bytes.
    #[serde(default)]
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) data: Vec<u8>,
}

/// Posts an event that a completion queue has something new.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Notify {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The event queue; that of the completion queue if absent.
    pub(crate) eq: Option<u16>,
    /// The completion queue.
    pub(crate) cq: u16,
    /// How often; absent, it is posted once, and at once.
    pub(crate) count: Option<NonZeroU64>,
}

/// Asks for the counters of all devices and paths.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counters {}

/// The counters of all devices and paths.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sample {
    /// Those of each device, by its index.
    pub(crate) devices: Vec<DeviceCounters>,
    /// Those of each path, by its number.
    pub(crate) paths: Vec<PathCounters>,
}

/// Asks for the network, which may be changed first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fabric {
    /// Other values for some settings.
    #[schemars(with = "Option<Settings>")]
    pub(crate) set: Option<Map<String, Value>>,
}

/// The network.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Network {
    /// What it is like.
    pub(crate) settings: Settings,
    /// What each path did.
    pub(crate) paths: Vec<PathCounters>,
    /// Devices of other programs.
    pub(crate) remote_devices: usize,
    /// Packets that were lost as there was no room for them where they arrived.
    pub(crate) overflows: usize,
}
