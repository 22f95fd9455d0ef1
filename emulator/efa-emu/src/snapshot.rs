// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a bug report needs: the state of the program and its devices at one moment, and their last operations. It has no data that
//! guests send or have in their memory.

use std::time::{Duration, SystemTime};

use efa_fabric::{PathCounters, Settings};
use schemars::JsonSchema;
use serde::Serialize;

use crate::control::Emulator;

/// Version of the format. Additions keep it.
const FORMAT: u32 = 1;

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
    /// The network.
    network: Network,
    /// Its devices, or the one that was asked for.
    devices: Vec<Device>,
}

/// The network.
#[derive(Serialize, JsonSchema)]
struct Network {
    /// What it is like.
    settings: Settings,
    /// What each path did.
    paths: Vec<PathCounters>,
    /// Devices of other programs.
    remote_devices: usize,
    /// Packets that were lost as there was no room for them where they arrived.
    overflows: usize,
}

/// A device.
#[derive(Serialize, JsonSchema)]
struct Device {
    /// Its index.
    device: usize,
    #[serde(flatten)]
    now: efa_model::Snapshot,
    /// What it did last, as in the trace.
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
        network: Network {
            settings: (*runtime.settings()).clone(),
            paths: runtime.paths(),
            remote_devices: runtime.remote_devices(),
            overflows: runtime.overflows(),
        },
        devices: wanted.map(device).collect::<Result<_, String>>()?,
    })
}
