// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event counters: their commands, and events of queue pairs that need no peer.

use efa_hw::{
    admin::{
        Command, Status,
        cq::{CqCaps1, DestroyCq},
        event_counter::{
            AttachEventCounter, CreateEventCounter, DestroyEventCounter, DetachEventCounter,
            ModifyEventCounter, ModifyOp, QpEvents,
        },
        pd::AllocPd,
        qp::{DestroyQp, QpState, QpType},
        uar::DeallocUar,
    },
    features::{DeviceAttr, QueueAttr2},
    io::{CompStatus, OpType},
    regs::ResetReason,
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

#[test]
fn attributes() {
    for profile in [Profile::Efa0, Profile::Efa1, Profile::Efa2, Profile::Efa3] {
        let mut driver = Driver::new(profile);
        let device: DeviceAttr = driver.feature().unwrap();
        assert!(!device.device_caps.event_counters);
    }
    let mut driver = Driver::new(Profile::Efa3);
    let limits = |queues: QueueAttr2| {
        (
            queues.max_event_counters,
            queues.event_counter_max_val,
            queues.supported_event_counter_qp_events.into_raw(),
        )
    };
    assert_eq!(limits(driver.feature().unwrap()), (0, 0, 0));
    enable(&mut driver);
    let device: DeviceAttr = driver.feature().unwrap();
    assert!(device.device_caps.event_counters);
    assert_eq!(limits(driver.feature().unwrap()), (8, MOST, ALL));
    let overrides = r#"{"event_counter_max_val":18446744073709551615}"#;
    driver.device.set(serde_json::from_str(overrides).unwrap());
    assert_eq!(limits(driver.feature().unwrap()), (8, u64::MAX, ALL));
}

#[test]
fn a_device_without() {
    let mut set = Set::new();
    let (cntr_handle, _) = set.counter();
    set.set(r#"{"event_counters":false}"#);
    let (uar, qp_handle) = (set.qp.cq.uar, set.qp_handle());
    let unsupported = Status::UnsupportedOpcode;
    set.fails(&CreateEventCounter { uar, paddr: 0x1000 }, unsupported);
    set.fails(&DestroyEventCounter { cntr_handle }, unsupported);
    set.fails(&change(cntr_handle, 0, 0), unsupported);
    set.fails(&attachment(cntr_handle, qp_handle, 0), unsupported);
    set.fails(&detachment(cntr_handle, qp_handle, 0), unsupported);
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn creation() {
    let mut set = Set::new();
    let page = set.driver.world.map(1);
    set.driver.world.write(page, &[0x55; 16]);
    let first = set.create(page).unwrap();
    assert_eq!(set.counts().event_counter, 1);
    // The device does not write the value before it changes.
    assert_eq!(set.value(page), 0x5555_5555_5555_5555);
    set.modify(first, ModifyOp::Add, 1).unwrap();
    assert_eq!(
        (set.value(page), set.value(page + 8)),
        (1, 0x5555_5555_5555_5555)
    );

    // Invalid addresses.
    let uar = set.qp.cq.uar;
    for paddr in [0, page + 4, page + 1, 1 << 48, u64::MAX - 7] {
        set.fails(&CreateEventCounter { uar, paddr }, ILLEGAL);
    }
    set.create((1 << 48) - 8).unwrap();
    // User access regions that do not exist.
    let paddr = page + 8;
    for uar in [0, uar + 1, u16::MAX] {
        set.fails(&CreateEventCounter { uar, paddr }, ILLEGAL);
    }
    // More counters than the limit.
    for _ in 2..8 {
        set.create(paddr).unwrap();
    }
    let full = Status::ResourceAllocationFailure;
    set.fails(&CreateEventCounter { uar, paddr: page }, full);
    assert_eq!(set.counts().event_counter, 8);
    // Freed numbers are reused as late as possible.
    set.destroy(first).unwrap();
    set.destroy(first + 1).unwrap();
    assert_eq!(set.create(page), Ok(first));
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn unknown_numbers() {
    let mut set = Set::new();
    let (handle, _) = set.counter();
    let qp_handle = set.qp_handle();
    for cntr_handle in [0, handle + 1, handle | 0x1_0000, u32::MAX] {
        set.fails(&DestroyEventCounter { cntr_handle }, ILLEGAL);
        set.fails(&change(cntr_handle, 0, 0), ILLEGAL);
        assert_eq!(set.attach(cntr_handle, SEND_COMP), Err(ILLEGAL));
        assert_eq!(set.attach(cntr_handle, 0), Err(ILLEGAL));
        assert_eq!(set.detach(cntr_handle, 0), Err(ILLEGAL));
    }
    for qp_handle in [0, qp_handle + 1, qp_handle | 0x1_0000, u32::MAX] {
        for events in [SEND_COMP, 0] {
            set.fails(&attachment(handle, qp_handle, events), ILLEGAL);
        }
        set.fails(&detachment(handle, qp_handle, 0), ILLEGAL);
    }
    let mut attach = attachment(handle, qp_handle, SEND_COMP);
    for attach_type in [1, 255] {
        attach.attach_type = attach_type;
        set.fails(&attach, ILLEGAL);
    }
    for operation in [2, 255] {
        set.fails(&change(handle, operation, 0), ILLEGAL);
    }
    // Nothing was attached.
    set.destroy(handle).unwrap();
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn reserved_bits() {
    let mut set = Set::new();
    let (cntr_handle, _) = set.counter();
    let command = attachment(cntr_handle, set.qp_handle(), 0);
    for (offset, bit) in [(13, 4), (15, 0x80), (5, 1), (16, 1), (59, 0x80)] {
        let mut request = command.to_request();
        request.payload[offset] = bit;
        let (status, _) = set.driver.execute_request(&request);
        assert_eq!(status, u8::from(Status::MalformedRequest));
    }
}

#[test]
fn changes() {
    let mut set = Set::new();
    let (handle, paddr) = set.counter();
    for (operation, value, expected) in [
        (ModifyOp::Set, 7, 7),
        (ModifyOp::Add, 5, 12),
        (ModifyOp::Add, 0, 12),
        (ModifyOp::Set, MOST, MOST),
        (ModifyOp::Add, 1, 0),
        (ModifyOp::Add, MOST, MOST),
        (ModifyOp::Add, MOST, MOST - 1),
        (ModifyOp::Set, 3, 3),
        (ModifyOp::Add, 10 * (MOST + 1), 3),
        // 2^64 is 16 more than a multiple of the number of values.
        (ModifyOp::Add, u64::MAX, 18),
        (ModifyOp::Set, 0, 0),
    ] {
        set.modify(handle, operation, value).unwrap();
        assert_eq!(set.value(paddr), expected, "{operation} {value}");
    }
    set.modify(handle, ModifyOp::Set, 5).unwrap();
    for value in [MOST + 1, u64::MAX] {
        assert_eq!(set.modify(handle, ModifyOp::Set, value), Err(ILLEGAL));
    }
    assert_eq!(set.value(paddr), 5);

    set.set(r#"{"event_counter_max_val":18446744073709551615}"#);
    set.modify(handle, ModifyOp::Set, u64::MAX).unwrap();
    assert_eq!(set.value(paddr), u64::MAX);
    set.modify(handle, ModifyOp::Add, 3).unwrap();
    assert_eq!(set.value(paddr), 2);
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn unmapped_memory() {
    let (mut set, handle, paddr) = Set::counting(ALL);
    set.modify(handle, ModifyOp::Set, 5).unwrap();
    set.driver.world.unmap(paddr & !4095);
    let unknown = Err(Status::UnknownError);
    assert_eq!(set.modify(handle, ModifyOp::Set, 9), unknown);
    assert_eq!(set.protocol_errors(), 1);
    // Each event is one protocol error, is counted, and has a completion.
    set.start_and_post();
    assert_eq!(set.protocol_errors(), 4);
    for index in 0..3 {
        let entry: [u8; 32] = set.driver.world.read(set.qp.cq.base + index * 32);
        assert_eq!(entry[2], u8::from(CompStatus::LocalInvalidAh));
    }
    // A device without bus mastering is no fault of the driver.
    set.driver.world.dma_is_off = true;
    set.ring(0, 4);
    set.driver.world.dma_is_off = false;
    assert_eq!(set.protocol_errors(), 4);
    assert_eq!(set.detach(handle, ALL), Ok(()));
    set.destroy(handle).unwrap();
}

#[test]
fn attachments() {
    let mut set = Set::new();
    let ((first, _), (second, _)) = (set.counter(), set.counter());
    set.attach(first, SEND_COMP | RECV_COMP).unwrap();
    // Each event has one counter; a command that fails attaches nothing.
    assert_eq!(set.attach(first, SEND_COMP), Err(BUSY));
    assert_eq!(set.attach(second, SEND_COMP | SEND_ERR), Err(BUSY));
    set.attach(second, SEND_ERR).unwrap();
    // Attaching or detaching no events succeeds.
    set.attach(first, 0).unwrap();
    set.detach(first, 0).unwrap();
    // An attached counter can't be destroyed.
    let busy = DestroyEventCounter { cntr_handle: first };
    set.fails(&busy, BUSY);
    // Events that are not attached, or are attached to another counter.
    for events in [RECV_ERR, SEND_ERR, SEND_COMP | RECV_ERR, ALL] {
        assert_eq!(set.detach(first, events), Err(ILLEGAL));
    }
    set.detach(first, SEND_COMP).unwrap();
    assert_eq!(set.detach(first, SEND_COMP), Err(ILLEGAL));
    set.fails(&busy, BUSY);
    set.attach(second, SEND_COMP).unwrap();
    set.detach(first, RECV_COMP).unwrap();
    set.destroy(first).unwrap();
    // The same events of another queue pair.
    let other = set.create_qp();
    let before = std::mem::replace(&mut set.qp, other);
    set.attach(second, SEND_COMP | SEND_ERR).unwrap();
    // The destruction of a queue pair detaches its counters.
    let qp_handle = std::mem::replace(&mut set.qp, before).number.into();
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    assert_eq!(set.destroy(second), Err(BUSY));
    let qp_handle = set.qp_handle();
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    set.destroy(second).unwrap();
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn events_that_a_device_does_not_count() {
    let mut set = Set::new();
    let (handle, _) = set.counter();
    set.set(r#"{"event_counter_events":3}"#);
    for events in [RECV_COMP, SEND_COMP | RECV_COMP, ALL] {
        assert_eq!(set.attach(handle, events), Err(ILLEGAL));
        assert_eq!(set.detach(handle, events), Err(ILLEGAL));
    }
    set.attach(handle, SEND_COMP | SEND_ERR).unwrap();
}

/// Counters can be attached in states in which no event occurs.
#[test]
fn states_in_which_counters_can_be_attached() {
    let mut set = Set::new();
    let (handle, _) = set.counter();
    for (state, allowed) in [
        (QpState::Init, true),
        (QpState::Rtr, false),
        (QpState::Rts, false),
        (QpState::Sqd, false),
        (QpState::Err, false),
        (QpState::Reset, true),
    ] {
        set.state(state);
        let expected = if allowed { Ok(()) } else { Err(ILLEGAL) };
        assert_eq!(set.attach(handle, SEND_COMP), expected, "{state}");
        if allowed {
            set.detach(handle, SEND_COMP).unwrap();
        }
    }
}

#[test]
fn uar_is_busy_while_used() {
    let mut set = Set::new();
    let (first, _) = set.counter();
    let (uar, cq_idx, qp_handle) = (set.qp.cq.uar, set.qp.cq.idx, set.qp_handle());
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    set.driver.execute(&DestroyCq { cq_idx }).unwrap();
    set.fails(&DeallocUar { uar }, BUSY);
    set.destroy(first).unwrap();
    set.driver.execute(&DeallocUar { uar }).unwrap();
}

#[test]
fn a_reset_ends_all() {
    let (mut set, handle, paddr) = Set::counting(ALL);
    set.start();
    set.driver.reset(ResetReason::Normal);
    set.driver.set_up();
    assert_eq!(set.counts(), ResourceCounts::default());
    set.driver.world.write(paddr, &[0x55; 8]);
    let mut set = Set::of(set.driver);
    // The old handle is stale after the reset, and the new counter has another one.
    let (new, _) = set.counter();
    assert_ne!(new, handle);
    assert_eq!(set.modify(handle, ModifyOp::Set, 1), Err(ILLEGAL));
    assert_eq!(set.protocol_errors(), 1);
    set.start_and_post();
    assert_eq!(set.value(paddr), 0x5555_5555_5555_5555);
    // A reset of the function ends objects, too.
    set.driver.device.reset(&mut set.driver.world);
    assert_eq!(set.counts(), ResourceCounts::default());
}

#[test]
fn failures_are_counted_by_operation() {
    let mut set = Set::new();
    let of_events: Vec<_> = (0..10).map(|bit| 1_u32 << bit).collect();
    // One counter for each event, up to the limit of 8. The last one counts three events.
    let (last, rest) = (of_events[7..].iter().sum(), &of_events[..7]);
    let mut places: Vec<_> = rest.iter().map(|events| set.counter_of(*events)).collect();
    places.push(set.counter_of(last));
    let check = |set: &mut Set, expected: [u64; 8]| {
        let values: Vec<_> = places.iter().map(|place| set.value(*place)).collect();
        assert_eq!(values, expected);
    };
    set.start_and_post();
    check(&mut set, [0, 1, 0, 0, 0, 1, 0, 1]);
    // Flushed work requests are errors, too.
    set.post_receives(5);
    set.state(QpState::Err);
    check(&mut set, [0, 1, 0, 5, 0, 1, 0, 1]);
    set.post_all();
    check(&mut set, [0, 2, 0, 5, 0, 2, 0, 2]);
    assert_eq!(set.protocol_errors(), 0);
}

/// An event is counted before its completion is visible.
#[test]
fn events_are_counted_before_their_completion() {
    let mut set = Set::new();
    let (sends, receives) = (set.counter_of(SEND_ERR), set.counter_of(RECV_ERR));
    set.start();
    set.driver.world.writes = Some(Vec::new());
    set.post_receives(1);
    set.driver.world.writes = Some(Vec::new());
    set.post_all();
    set.state(QpState::Err);
    let cq = set.qp.cq.base;
    let writes = set.driver.world.writes.take().unwrap();
    let writes: Vec<_> = writes
        .into_iter()
        .filter(|at| [sends, receives].contains(at) || (cq..cq + 4096).contains(at))
        .collect();
    assert_eq!(writes, [sends, cq, cq + 32, cq + 64, receives, cq + 96]);
}

#[test]
fn a_malformed_work_request_is_counted() {
    let mut set = Set::new();
    let (errors, receives) = (set.counter_of(SEND_ERR), set.counter_of(RECV_ERR));
    set.start();
    set.post_receives(2);
    // The ring has only zeroes, which moves the queue pair to the error state.
    set.ring(0, 2);
    assert_eq!((set.value(errors), set.value(receives)), (2, 2));
}

#[test]
fn one_counter_of_several_events_and_queue_pairs() {
    let (mut set, handle, paddr) = Set::counting(SEND_ERR | READ_ERR);
    set.start_and_post();
    assert_eq!(set.value(paddr), 2);
    set.qp = set.create_qp();
    set.attach(handle, WRITE_ERR).unwrap();
    set.start_and_post();
    assert_eq!(set.value(paddr), 3);
}

#[test]
fn values_wrap() {
    let (mut set, handle, paddr) = Set::counting(SEND_ERR | READ_ERR | WRITE_ERR);
    set.modify(handle, ModifyOp::Set, MOST - 1).unwrap();
    set.start_and_post();
    assert_eq!(set.value(paddr), 1);
    // A lower limit on values also reduces the value.
    set.set(r#"{"event_counter_max_val":0}"#);
    set.post_more();
    assert_eq!(set.value(paddr), 0);
    set.set(r#"{"event_counter_max_val":18446744073709551615}"#);
    set.modify(handle, ModifyOp::Set, u64::MAX - 1).unwrap();
    set.post_more();
    assert_eq!(set.value(paddr), 1);
    assert_eq!(set.protocol_errors(), 0);
}

/// Detached events, and those of destroyed queue pairs, are not counted.
#[test]
fn detached_counters_do_not_count() {
    let (mut set, handle, paddr) = Set::counting(SEND_ERR | READ_ERR);
    set.start();
    set.detach(handle, SEND_ERR).unwrap();
    set.post_all();
    assert_eq!(set.value(paddr), 1);
    let qp_handle = set.qp_handle();
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    set.qp = set.create_qp();
    set.start_and_post();
    assert_eq!(set.value(paddr), 1);
}
