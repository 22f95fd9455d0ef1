// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Snapshots for bug reports: the state of the program and its devices at one time, and their last operations. They contain no
//! data that guests send or have in their memory.

use std::time::{Duration, SystemTime};

use efa_fabric::{PathCounters, Settings};
use schemars::JsonSchema;
use serde::Serialize;

use crate::control::Emulator;

/// Version of the format. Additions keep it.
const FORMAT: u32 = 2;

/// A snapshot.
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
    devices: Vec<Device>,
}

/// The network.
#[derive(Serialize, JsonSchema)]
struct Network {
    /// Settings of the network.
    settings: Settings,
    /// Counters of each path.
    paths: Vec<PathCounters>,
    /// Number of devices of other emulators.
    remote_devices: usize,
    /// Number of packets that were dropped, as their receiver had no room for them.
    overflows: usize,
}

/// A device.
#[derive(Serialize, JsonSchema)]
struct Device {
    /// Index of the device.
    device: usize,
    #[serde(flatten)]
    now: efa_model::Snapshot,
    /// Last operations of the device, as in the trace.
    trace: Vec<String>,
}

/// Takes a snapshot of all devices, or of one.
///
/// # Errors
///
/// One sentence about what is wrong.
pub(crate) fn take(emulator: &Emulator, only: Option<usize>) -> Result<Snapshot, String> {
    if let Some(index) = only {
        emulator.device(index)?;
    }
    let runtime = &emulator.runtime;
    let indices = 0..emulator.devices().len();
    let wanted = indices.filter(|index| only.is_none_or(|only| only == *index));
    let device = |index| {
        let function = emulator.function(index)?;
        Ok(Device {
            device: index,
            now: function.with(|device, _, now| device.snapshot(now)),
            trace: emulator.trace.last(index),
        })
    };
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(Snapshot {
        snapshot: FORMAT,
        program: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        time: time.unwrap_or(Duration::ZERO).as_secs_f64(),
        uptime: runtime.now().as_secs_f64(),
        network: only.is_none().then(|| Network {
            settings: (*runtime.settings()).clone(),
            paths: runtime.paths(),
            remote_devices: runtime.remote_devices(),
            overflows: runtime.overflows(),
        }),
        devices: wanted.map(device).collect::<Result<_, String>>()?,
    })
}
