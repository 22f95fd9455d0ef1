// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The state of the program, its network and its devices at one time, as a tree. A snapshot for bug reports has all of it. The
//! replies to other requests, and the metrics, are parts of it. It has no data that guests send or have in their memory.

use std::time::{Duration, SystemTime};

use efa_fabric::{ConnectionState, PathCounters, Settings};
use efa_model::Counters;
use schemars::JsonSchema;
use serde::Serialize;

use crate::control::{Device, Emulator};

/// Version of the format of snapshots. Additions keep it.
const FORMAT: u32 = 2;

/// The program.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SnapshotOfProgram")]
pub(crate) struct Snapshot {
    /// Version of the format.
    snapshot: u32,
    /// The name of the program.
    program: &'static str,
    /// The version of the program.
    version: &'static str,
    /// Seconds since 1970.
    time: f64,
    /// Seconds since the start.
    uptime: f64,
    /// The network, unless one device was requested, which a client may be restricted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    /// All devices, or the requested one.
    devices: Vec<DeviceSnapshot>,
}

/// The network.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Network {
    /// Settings of the network.
    settings: Settings,
    /// Counters of each path.
    pub(crate) paths: Vec<PathCounters>,
    /// Number of devices of other emulators.
    remote_devices: usize,
    /// Number of packets that were dropped, as their receiver had no room for them.
    overflows: usize,
}

/// A device.
#[derive(Serialize, JsonSchema)]
struct DeviceSnapshot {
    /// Index of the device.
    device: usize,
    #[serde(flatten)]
    now: efa_model::Snapshot,
    /// Its state.
    state: DeviceState,
    /// Its counters.
    counters: Counters,
    /// Last operations of the device, as in the trace.
    trace: Vec<String>,
}

/// The state of a device and of its transport.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DeviceState {
    #[serde(flatten)]
    device: efa_model::State,
    /// The first of its connections to peers.
    connections: Vec<ConnectionState>,
}

impl Device {
    pub(crate) fn state(&self) -> DeviceState {
        DeviceState {
            device: self.function.with(|device, _, _| device.state()),
            connections: self.function.connections(),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.function.with(|device, _, _| device.counters())
    }
}

impl Emulator {
    pub(crate) fn network(&self) -> Network {
        Network {
            settings: (*self.runtime.fabric().settings()).clone(),
            paths: self.runtime.fabric().paths(),
            remote_devices: self.runtime.fabric().remote_devices(),
            overflows: self.runtime.fabric().overflows(),
        }
    }

    /// Takes a snapshot of the network and all devices, or of one device.
    ///
    /// # Errors
    ///
    /// There is no such device.
    pub(crate) fn snapshot(&self, only: Option<usize>) -> Result<Snapshot, String> {
        let snapshot = |(index, device): (usize, &Device)| DeviceSnapshot {
            device: index,
            now: device.function.with(|device, _, now| device.snapshot(now)),
            state: device.state(),
            counters: device.counters(),
            trace: device.recorded.last(),
        };
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(Snapshot {
            snapshot: FORMAT,
            program: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            time: time.unwrap_or(Duration::ZERO).as_secs_f64(),
            uptime: self.runtime.now().as_secs_f64(),
            network: only.is_none().then(|| self.network()),
            devices: self.selected(only)?.map(snapshot).collect(),
        })
    }
}
