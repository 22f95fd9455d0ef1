// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The kinds of requests, and the reply to each.
//!
//! Additions keep the number of the [protocol](PROTOCOL): new kinds of requests, new optional fields of requests, new fields of
//! replies. Other changes need a new number. Unknown fields of requests are refused, as clients would expect an effect of them.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroU64},
    path::PathBuf,
};

use efa_fabric::{PathCounters, Settings};
use efa_model::{Counters as DeviceCounters, FailedReset, Overrides, Profile, Queue, Rule, RuleId};
use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::event_group::EventGroup;
use crate::{snapshot, trace::Recent};

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

/// A kind of request.
pub(crate) trait RequestKind {
    /// Value of `ok` in the reply.
    type Reply: Serialize + JsonSchema;
}

/// An object that can perform a kind of request.
pub(crate) trait Perform<R: RequestKind> {
    /// Performs a request.
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
    /// The result of the request.
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

fn to_value(reply: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(reply).map_err(|error| error.to_string())
}

/// The kinds of requests, by the value of `command`, and the reply to each.
macro_rules! requests {
    ($($name:literal => $kind:ident -> $reply:ty,)*) => {
        /// A request of any kind.
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(tag = "command")]
        pub(crate) enum Request {
            $(#[serde(rename = $name)] $kind($kind),)*
        }

        $(impl RequestKind for $kind {
            type Reply = $reply;
        })*

        /// Values of `command`.
        pub(crate) const COMMANDS: &[&str] = &[$($name),*];

        /// Returns the schema of the reply to each kind of request, by the value of `command`.
        fn reply_schemas() -> BTreeMap<&'static str, Schema> {
            BTreeMap::from([$(($name, reply_schema::<$reply>())),*])
        }

        impl Request {
            /// Performs the request on `performer`, and returns the value of `ok` in the reply.
            ///
            /// # Errors
            ///
            /// One sentence about what is wrong.
            pub(crate) fn perform_by<P>(self, performer: &P) -> Result<Value, String>
            where
                $(P: Perform<$kind>,)*
            {
                match self {
                    $(Self::$kind(request) => to_value(performer.perform(request)?),)*
                }
            }
        }
    };
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

/// Empty result of a request that has succeeded.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Done {}

/// Asks for the program's name, versions and commands.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    /// The client's version of the protocol. If the program does not support it, the reply is an error.
    protocol: Option<u32>,
}

impl Hello {
    /// Returns the answer of the program.
    ///
    /// # Errors
    ///
    /// The program does not support the client's version of the protocol.
    pub(crate) fn welcome(&self) -> Result<Welcome, String> {
        match self.protocol {
            Some(other) if other != PROTOCOL => Err(format!(
                "protocol version {other} is not supported: this program supports version {PROTOCOL}"
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
    commands: &'static [&'static str],
}

/// Asks for the list of devices.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Devices {}

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

/// Asks for the state of a device.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Asks for the operations of a device since the last such request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trace {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Asks for the state and the last operations of devices, for a bug report.
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

/// The rule that was added.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Injected {
    /// Number of the rule.
    pub(crate) rule: RuleId,
}

/// Releases completions that a rule holds.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// Name under which the rule holds them.
    pub(crate) name: String,
    /// Number of completions to release, oldest first; all if absent.
    pub(crate) count: Option<u64>,
}

/// The completions that were released.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Released {
    /// Number of released completions.
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
    /// Number of events, each posted as soon as the queue has room. If absent, one event is posted immediately.
    pub(crate) count: Option<NonZeroU64>,
    /// Whether the event is posted in the session after the next reset.
    #[serde(default)]
    pub(crate) after_reset: bool,
    /// Number of commands that this session completes before the event; one if absent.
    pub(crate) after_commands: Option<u64>,
}

/// Moves a queue pair to the error state.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailQp {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The queue pair.
    pub(crate) qp: u16,
}

/// Makes a device fail like one whose firmware hangs, until a reset revives it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Die {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// Whether the device fails without an event or a fatal error in its status.
    #[serde(default)]
    pub(crate) silent: bool,
    /// Number of resets until the device is revived, including the reset that revives it.
    #[serde(default = "once")]
    pub(crate) resets: NonZeroU32,
    /// How earlier resets fail.
    #[serde(default)]
    pub(crate) how: FailedReset,
    /// Whether the device continues to write to its queues and memory regions by DMA.
    #[serde(default)]
    pub(crate) dma: bool,
}

const fn once() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Removes a device from its slot.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unplug {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Plugs a device into its slot again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plug {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
}

/// Removes all rules of a device, releases the completions that they hold, and restores its attributes.
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
    /// Offset in the queue, in bytes.
    #[serde(default)]
    pub(crate) offset: u64,
    /// Number of bytes to read.
    pub(crate) length: usize,
}

/// Bytes that were read from a queue.
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
    /// Offset in the queue, in bytes.
    #[serde(default)]
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) data: Vec<u8>,
}

/// Posts a completion event for a completion queue.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Notify {
    /// Index of the device.
    #[serde(default)]
    pub(crate) device: usize,
    /// The event queue; if absent, that of the completion queue.
    pub(crate) eq: Option<u16>,
    /// The completion queue.
    pub(crate) cq: u16,
    /// Number of events, posted in batches whenever the driver arms the queue. If absent, one is posted immediately.
    pub(crate) count: Option<NonZeroU64>,
}

/// Asks for the counters of all devices and paths.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counters {}

/// The counters of all devices and paths.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sample {
    /// Counters of each device, by its index.
    pub(crate) devices: Vec<DeviceCounters>,
    /// Counters of each path, by its number.
    pub(crate) paths: Vec<PathCounters>,
}

/// Asks for the state of the network, after an optional change of its settings.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fabric {
    /// New values of some settings.
    #[schemars(with = "Option<Settings>")]
    pub(crate) set: Option<Map<String, Value>>,
}

/// The network.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Network {
    /// Settings of the network.
    pub(crate) settings: Settings,
    /// Counters of each path.
    pub(crate) paths: Vec<PathCounters>,
    /// Number of devices of other emulators.
    pub(crate) remote_devices: usize,
    /// Number of packets that were dropped, as their receiver had no room for them.
    pub(crate) overflows: usize,
}
