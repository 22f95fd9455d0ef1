// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects: limits, numbers, dependencies, the state machine of queue pairs.

mod objects;
mod queue_pairs;

use efa_hw::admin::{
    Command, Status,
    cq::CreateCq,
    eq::CreateEq,
    pd::AllocPd,
    qp::{CreateQp, ModifyQp, QpType},
    uar::AllocUar,
};
use efa_model::{Profile, ResourceCounts};
use efa_testing::{commands, mock::Driver};

/// A driver with one of each object on which others depend.
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
        let mut set = Self {
            driver,
            pd,
            uar,
            eqn: 0,
            ring,
        };
        if profile != Profile::Efa0 {
            set.eqn = set.execute(&set.create_eq()).eqn;
        }
        set
    }

    fn execute<C: Command>(&mut self, command: &C) -> C::Response {
        self.driver.execute(command).unwrap()
    }

    fn create_eq(&self) -> CreateEq {
        commands::create_eq(self.ring)
    }

    fn create_cq(&self) -> CreateCq {
        commands::create_cq(self.uar, self.ring)
    }

    fn create_cq_with_events(&self, eqn: u16) -> CreateCq {
        let mut command = self.create_cq();
        command.caps_1.interrupt_mode_enabled = true;
        command.eqn = eqn;
        command
    }

    fn cq(&mut self) -> u16 {
        self.execute(&self.create_cq()).cq_idx
    }

    fn create_qp(&self, qp_type: QpType, cq: u16) -> CreateQp {
        CreateQp {
            qp_type: qp_type.into(),
            ..commands::create_qp(self.pd, self.uar, cq, self.ring)
        }
    }

    fn qp(&mut self, qp_type: QpType) -> u32 {
        let cq = self.cq();
        self.execute(&self.create_qp(qp_type, cq)).qp_handle
    }

    fn counts(&self) -> ResourceCounts {
        self.driver.device.state().resources
    }

    /// Asserts that a command fails and changes nothing.
    fn fails(&mut self, command: &impl Command, status: Status) {
        let before = self.counts();
        assert_eq!(self.driver.execute(command).err(), Some(status));
        assert_eq!(self.counts(), before);
    }

    /// Asserts that a command succeeds so many times, and that there is no room for more.
    fn fills(&mut self, command: &impl Command, times: usize) {
        for _ in 0..times {
            self.execute(command);
        }
        self.fails(command, Status::ResourceAllocationFailure);
    }

    /// Asserts that a command fails once it is changed, and changes nothing.
    fn refuses<C: Command>(&mut self, mut command: C, change: impl FnOnce(&mut C)) {
        change(&mut command);
        self.fails(&command, Status::IllegalParameter);
    }

    fn set(&mut self, overrides: &str) {
        self.driver
            .device
            .set(serde_json::from_str(overrides).unwrap());
    }
}

fn modify_nothing(qp_handle: u32) -> ModifyQp {
    ModifyQp {
        qp_handle,
        ..ModifyQp::default()
    }
}
