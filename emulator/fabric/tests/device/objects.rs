// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects of a device: their numbers, limits and users, their attributes, and queues in host memory.

mod attributes;
mod places;
mod queues;
mod reference;

use efa_testing::commands;

use super::*;

const ILLEGAL: Status = Status::IllegalParameter;
const FULL: Status = Status::ResourceAllocationFailure;
const BUSY: Status = Status::ResourceBusy;

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

    fn create_eq(&self) -> CreateEq {
        commands::create_eq(self.ring)
    }

    fn create_cq(&self) -> CreateCq {
        commands::create_cq(self.uar, self.ring)
    }

    fn create_cq_with_events(&self) -> CreateCq {
        let mut command = self.create_cq();
        command.caps_1.interrupt_mode_enabled = true;
        command.eqn = self.eqn;
        command
    }

    fn create_qp(&mut self) -> CreateQp {
        let cq = self.execute(&self.create_cq()).cq_idx;
        commands::create_qp(self.pd, self.uar, cq, self.ring)
    }

    #[track_caller]
    fn fails(&mut self, command: &impl Command, status: Status) {
        self.driver.fails(command, status);
    }

    /// Asserts that a command fails once it is changed, and changes nothing.
    #[track_caller]
    fn refuses<C: Command>(&mut self, mut command: C, change: impl FnOnce(&mut C)) {
        change(&mut command);
        self.fails(&command, ILLEGAL);
    }

    fn set(&mut self, overrides: &str) {
        self.driver.set(overrides);
    }
}
