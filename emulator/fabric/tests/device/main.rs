// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices on a network, as a driver, its programs, an operator and other emulators use them. A device by itself is such a network.

mod admin;
mod data_path;
mod event_counters;
mod faults;
mod hostile;
mod memory;
mod network;
mod objects;
mod programs;
mod scenarios;
mod statuses;
mod text;

use efa_testing::prelude::*;
use text::*;

/// Returns settings with a rule that denies packets from one device to the other, and perhaps back.
fn denying(settings: &Settings, peers: &mut Peers, from: usize, both: bool) -> Settings {
    let [from, to] = [from, 1 - from].map(|port| peers.address(PortId(port)).into());
    let deny = vec![Denied { from, to, both }];
    Settings { deny, ..settings.clone() }
}

/// Resets the device; returns whether the reset begins and ends as it should.
fn reset_works(driver: &mut Driver) -> bool {
    let second = Duration::from_secs(1);
    driver.set_response_address();
    driver.start_reset(ResetReason::KeepAliveTimeout);
    driver.set_response_address();
    driver.run(second);
    if !driver.status().reset_in_progress {
        return false;
    }
    driver.write(Register::DevCtl, 0);
    driver.run(second);
    !driver.status().reset_in_progress
}
