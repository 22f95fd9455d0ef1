// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event counters: their commands, and events of queue pairs that need no peer.

mod commands;
mod events;

use efa_hw::{
    admin::{
        Command, Status,
        cq::CqCaps1,
        event_counter::{
            AttachEventCounter, CreateEventCounter, DestroyEventCounter, DetachEventCounter,
            ModifyEventCounter, ModifyOp, QpEvents,
        },
        pd::AllocPd,
        qp::{QpState, QpType},
    },
    io::OpType,
};
use efa_model::{Fetched, Profile, ResourceCounts};
use efa_testing::{
    mock::Driver,
    qp::{Cq, Qp, Send, Shape},
};

/// Largest value of a counter in these tests.
const MOST: u64 = 99;
const BUSY: Status = Status::ResourceBusy;
const ILLEGAL: Status = Status::IllegalParameter;

/// Events of a queue pair, as a mask.
const SEND_COMP: u32 = 1;
const SEND_ERR: u32 = 1 << 1;
const RECV_COMP: u32 = 1 << 2;
const RECV_ERR: u32 = 1 << 3;
const READ_ERR: u32 = 1 << 5;
const WRITE_ERR: u32 = 1 << 7;
const ALL: u32 = 0x3ff;

/// Returns the attributes of all queue pairs.
fn shape() -> Shape {
    Shape {
        depths: [32, 16],
        ..Shape::new(QpType::Srd, 64)
    }
}

fn attachment(cntr_handle: u32, qp_handle: u32, events: u32) -> AttachEventCounter {
    AttachEventCounter {
        cntr_handle,
        attach_type: 0,
        qp_handle,
        events: QpEvents::from_raw(events),
    }
}

fn detachment(cntr_handle: u32, qp_handle: u32, events: u32) -> DetachEventCounter {
    DetachEventCounter {
        cntr_handle,
        attach_type: 0,
        qp_handle,
        events: QpEvents::from_raw(events),
    }
}

fn change(cntr_handle: u32, operation: u8, value: u64) -> ModifyEventCounter {
    ModifyEventCounter {
        cntr_handle,
        operation,
        value,
    }
}

/// A driver with a queue pair.
struct Set {
    driver: Driver,
    qp: Qp,
}

impl Set {
    fn new() -> Self {
        let mut driver = Driver::new(Profile::Efa3);
        enable(&mut driver);
        Self::of(driver)
    }

    fn of(mut driver: Driver) -> Self {
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let cq = Cq::new(&mut driver, 64, CqCaps1::default(), false);
        let qp = Qp::of_cq(&mut driver, pd, cq, shape());
        Self { driver, qp }
    }

    /// Returns a set with a counter of some events of the queue pair, its handle and the address of its value.
    fn counting(events: u32) -> (Self, u32, u64) {
        let mut set = Self::new();
        let (handle, paddr) = set.counter();
        set.attach(handle, events).unwrap();
        (set, handle, paddr)
    }

    /// Creates another queue pair with the same completion queue.
    fn create_qp(&mut self) -> Qp {
        Qp::of_cq(&mut self.driver, self.qp.pd, self.qp.cq.clone(), shape())
    }

    fn qp_handle(&self) -> u32 {
        self.qp.number.into()
    }

    /// Creates an event counter; returns its handle and the address of its value.
    fn counter(&mut self) -> (u32, u64) {
        let paddr = self.driver.world.map(1) + 8;
        let handle = self.create(paddr).unwrap();
        (handle, paddr)
    }

    fn create(&mut self, paddr: u64) -> Result<u32, Status> {
        let uar = self.qp.cq.uar;
        let command = CreateEventCounter { uar, paddr };
        Ok(self.driver.execute(&command)?.cntr_handle)
    }

    fn destroy(&mut self, cntr_handle: u32) -> Result<(), Status> {
        let command = DestroyEventCounter { cntr_handle };
        self.driver.execute(&command).map(|_| ())
    }

    fn modify(&mut self, cntr_handle: u32, operation: ModifyOp, value: u64) -> Result<(), Status> {
        let command = change(cntr_handle, operation.into(), value);
        self.driver.execute(&command).map(|_| ())
    }

    fn attach(&mut self, cntr_handle: u32, events: u32) -> Result<(), Status> {
        let command = attachment(cntr_handle, self.qp_handle(), events);
        self.driver.execute(&command).map(|_| ())
    }

    fn detach(&mut self, cntr_handle: u32, events: u32) -> Result<(), Status> {
        let command = detachment(cntr_handle, self.qp_handle(), events);
        self.driver.execute(&command).map(|_| ())
    }

    /// Creates a counter of some events of the queue pair; returns the address of its value.
    fn counter_of(&mut self, events: u32) -> u64 {
        let (handle, paddr) = self.counter();
        self.attach(handle, events).unwrap();
        paddr
    }

    fn state(&mut self, state: QpState) {
        self.qp.modify(&mut self.driver, state).unwrap();
    }

    fn start(&mut self) {
        self.qp.start(&mut self.driver);
    }

    /// Posts one send work request of each kind, with an address handle that does not exist.
    fn post_all(&mut self) {
        for operation in [OpType::Send, OpType::RdmaRead, OpType::RdmaWrite] {
            let send = Send {
                operation: operation.into(),
                ah: Some(77),
                // Counters also count work requests that are not signaled.
                silent: true,
                ..Send::default()
            };
            self.qp.put(&mut self.driver.world, &send);
        }
        self.ring(0, self.qp.sent.into());
    }

    fn start_and_post(&mut self) {
        self.start();
        self.post_all();
    }

    /// Resets the queue pair, which keeps its counters, and posts one work request of each kind again.
    fn post_more(&mut self) {
        self.state(QpState::Reset);
        self.start_and_post();
    }

    /// Posts receive work requests.
    fn post_receives(&mut self, count: u32) {
        for _ in 0..count {
            self.qp.put_receives(&self.driver.world, &[(0, 0, 0)]);
        }
        self.ring(1, self.qp.posted.into());
    }

    /// Rings a doorbell and lets the device fetch all work requests.
    fn ring(&mut self, doorbell: usize, value: u32) {
        let offset = self.qp.doorbells[doorbell];
        let Driver { device, world, .. } = &mut self.driver;
        device.write_doorbell(world, offset, value);
        while !matches!(device.fetch(world), Fetched::Idle) {}
    }

    fn value(&mut self, paddr: u64) -> u64 {
        u64::from_le_bytes(self.driver.world.read(paddr))
    }

    fn counts(&self) -> ResourceCounts {
        self.driver.device.state().resources
    }

    fn protocol_errors(&self) -> u64 {
        self.driver.device.state().protocol_errors
    }

    fn set(&mut self, overrides: &str) {
        self.driver
            .device
            .set(serde_json::from_str(overrides).unwrap());
    }

    /// Asserts that a command fails and changes nothing.
    fn fails(&mut self, command: &impl Command, status: Status) {
        let before = self.counts();
        assert_eq!(self.driver.execute(command).err(), Some(status));
        assert_eq!(self.counts(), before);
    }
}

/// Enables event counters of a device.
fn enable(driver: &mut Driver) {
    let overrides = format!(
        r#"{{"event_counters":true,"max_event_counters":8,"event_counter_max_val":{MOST},
            "event_counter_events":{ALL}}}"#
    );
    driver.device.set(serde_json::from_str(&overrides).unwrap());
}
