// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a report of a fault needs: all that the program and its devices are at some moment, and what they did last, but nothing of
//! what guests send or have in their memory.

use std::time::{Duration, SystemTime};

use efa_fabric::{PathCounters, Settings};
use serde::Serialize;
use serde_json::Value;

use crate::control::Emulator;

/// Version of the format. Additions keep it.
const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Snapshot {
    snapshot: u32,
    program: &'static str,
    version: &'static str,
    /// Seconds since 1970.
    time: f64,
    /// Seconds since the start.
    uptime: f64,
    network: Network,
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Network {
    settings: Settings,
    paths: Vec<PathCounters>,
    remote_devices: usize,
    overflows: usize,
}

#[derive(Serialize)]
struct Device {
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
pub(crate) fn take(emulator: &Emulator, only: Option<usize>) -> Result<Value, String> {
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
    let snapshot = Snapshot {
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
    };
    serde_json::to_value(snapshot).map_err(|error| error.to_string())
}
