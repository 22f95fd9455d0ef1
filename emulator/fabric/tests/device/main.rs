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

const OK: CompStatus = CompStatus::Ok;
const FLUSHED: CompStatus = CompStatus::Flushed;
const ILLEGAL: Status = Status::IllegalParameter;
const SECOND: Duration = Duration::from_secs(1);

/// A driver with one of each object on which others depend, and a page for rings.
struct Set {
    driver: Driver,
    pd: u16,
    uar: u16,
    eqn: u16,
    ring: u64,
}

impl Set {
    fn new(profile: Profile) -> Self {
        let mut driver = Driver::new(profile);
        let ring = driver.world.map(1);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let uar = driver.execute(&AllocUar {}).unwrap().uar;
        let eqn = match profile {
            Profile::Efa0 => 0,
            _ => driver.execute(&create_eq(ring)).unwrap().eqn,
        };
        Self { driver, pd, uar, eqn, ring }
    }

    #[track_caller]
    fn execute<C: Command>(&mut self, command: &C) -> C::Response {
        self.driver.execute(command).unwrap()
    }

    fn create_cq(&self) -> CreateCq {
        create_cq(self.uar, self.ring)
    }

    fn create_cq_with_events(&self) -> CreateCq {
        let mut command = self.create_cq();
        command.caps_1.interrupt_mode_enabled = true;
        command.eqn = self.eqn;
        command
    }

    fn create_qp(&mut self) -> CreateQp {
        let cq = self.execute(&self.create_cq()).cq_idx;
        create_qp(self.pd, self.uar, cq, self.ring)
    }

    /// Asserts that a command fails once it is changed, and changes nothing.
    #[track_caller]
    fn refuses<C: Command>(&mut self, mut command: C, change: impl FnOnce(&mut C)) {
        change(&mut command);
        self.driver.fails(&command, ILLEGAL);
    }
}

/// Returns settings with a rule that denies packets from one device to the other, and perhaps back.
fn denying(settings: &Settings, peers: &mut Peers, from: usize, both: bool) -> Settings {
    let [from, to] = [from, 1 - from].map(|port| peers.address(PortId(port)).into());
    let deny = vec![Denied { from, to, both }];
    Settings { deny, ..settings.clone() }
}

/// Resets the device; returns whether the reset begins and ends as it should.
fn reset_works(driver: &mut Driver) -> bool {
    driver.set_response_address();
    driver.start_reset(ResetReason::KeepAliveTimeout);
    driver.set_response_address();
    driver.run(SECOND);
    if !driver.status().reset_in_progress {
        return false;
    }
    driver.write(Register::DevCtl, 0);
    driver.run(SECOND);
    !driver.status().reset_in_progress
}
