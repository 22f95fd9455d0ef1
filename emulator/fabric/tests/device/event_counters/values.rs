// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands, and the values of counters.

use super::*;

/// Largest value of a counter.
const MOST: u64 = 99;

/// All events.
const ALL: u32 = 0x3ff;

/// A driver with a queue pair, and a counter of some of its events.
struct Set {
    driver: Driver,
    qp: Qp,
    handle: u32,
    paddr: u64,
}

impl Set {
    fn new(events: u32) -> Self {
        let mut driver = Driver::new(Profile::Efa3);
        driver.set(&format!(
            r#"{{"event_counters":true,"max_event_counters":8,"event_counter_max_val":{MOST},"event_counter_events":{ALL}}}"#
        ));
        let mut qp = Qp::new(&mut driver, Shape::new(QpType::Srd, 64));
        qp.modify(&mut driver, QpState::Reset).unwrap();
        let paddr = driver.world.map(1) + 8;
        let create = CreateEventCounter { uar: qp.cq.uar, paddr };
        let handle = driver.execute(&create).unwrap().cntr_handle;
        let mut set = Self { driver, qp, handle, paddr };
        set.attach(events).unwrap();
        set
    }

    fn attach(&mut self, events: u32) -> Result<(), Status> {
        let command = attachment(self.handle, self.qp.number.into(), events);
        self.driver.execute(&command).map(|_| ())
    }

    fn detach(&mut self, events: u32) -> Result<(), Status> {
        let command = detachment(self.handle, self.qp.number.into(), events);
        self.driver.execute(&command).map(|_| ())
    }

    fn modify(&mut self, operation: ModifyOp, value: u64) -> Result<(), Status> {
        let (cntr_handle, operation) = (self.handle, operation.into());
        let command = ModifyEventCounter { cntr_handle, operation, value };
        self.driver.execute(&command).map(|_| ())
    }

    /// Resets the queue pair, which keeps its counters, and lets a work request of each kind fail.
    fn fail(&mut self) {
        self.qp.modify(&mut self.driver, QpState::Reset).unwrap();
        self.qp.start(&mut self.driver);
        for send in failing() {
            self.qp.put(&mut self.driver.world, &send);
        }
        self.qp.ring_send(&mut self.driver);
        self.driver.fetch_all();
    }

    fn value(&mut self) -> u64 {
        u64::from_le_bytes(self.driver.world.entry(self.paddr))
    }
}

#[test]
fn changes() {
    let mut set = Set::new(0);
    // The device does not write the value before it changes.
    let other = 0x5555_5555_5555_5555;
    set.driver.world.store(set.paddr, &[0x55; 16]);
    assert_eq!(set.value(), other);
    let wide = u64::MAX;
    for (most, operation, value, expected) in [
        (MOST, ModifyOp::Add, 1, Ok(1)),
        (MOST, ModifyOp::Set, 7, Ok(7)),
        (MOST, ModifyOp::Add, 5, Ok(12)),
        (MOST, ModifyOp::Add, 0, Ok(12)),
        (MOST, ModifyOp::Set, MOST, Ok(MOST)),
        (MOST, ModifyOp::Add, 1, Ok(0)),
        (MOST, ModifyOp::Add, MOST, Ok(MOST)),
        (MOST, ModifyOp::Add, MOST, Ok(MOST - 1)),
        (MOST, ModifyOp::Set, 3, Ok(3)),
        (MOST, ModifyOp::Add, 10 * (MOST + 1), Ok(3)),
        // 2^64 is 16 more than a multiple of the number of values.
        (MOST, ModifyOp::Add, u64::MAX, Ok(18)),
        (MOST, ModifyOp::Set, MOST + 1, Err(18)),
        (MOST, ModifyOp::Set, u64::MAX, Err(18)),
        (MOST, ModifyOp::Set, 0, Ok(0)),
        (wide, ModifyOp::Set, u64::MAX, Ok(u64::MAX)),
        (wide, ModifyOp::Add, 3, Ok(2)),
        // A lower limit on values also reduces the value.
        (1, ModifyOp::Add, 0, Ok(0)),
    ] {
        set.driver.set(&format!(r#"{{"event_counter_max_val":{most}}}"#));
        let result = set.modify(operation, value);
        let found = result.map(|()| set.value()).map_err(|status| {
            assert_eq!(status, ILLEGAL);
            set.value()
        });
        assert_eq!(found, expected, "{operation} {value}");
    }
    let next = u64::from_le_bytes(set.driver.world.entry(set.paddr + 8));
    assert_eq!((next, set.driver.errors()), (other, 0));
}

#[test]
fn unmapped_memory() {
    let mut set = Set::new(ALL);
    set.modify(ModifyOp::Set, 5).unwrap();
    set.driver.world.unmap(set.paddr & !4095);
    assert_eq!(set.modify(ModifyOp::Set, 9), Err(Status::UnknownError));
    assert_eq!(set.driver.errors(), 1);
    // Each event is one protocol error, is counted, and has a completion.
    set.fail();
    assert_eq!(set.driver.errors(), 4);
    for _ in 0..3 {
        let completion = set.qp.cq.poll(&set.driver.world).unwrap();
        assert_eq!(status(&completion), CompStatus::LocalInvalidAh);
    }
    // A device without bus mastering is no fault of the driver.
    set.driver.world.dma_is_off = true;
    set.driver.doorbell(set.qp.doorbells[0], 4);
    set.driver.fetch_all();
    set.driver.world.dma_is_off = false;
    assert_eq!(set.driver.errors(), 4);
    assert_eq!(set.detach(ALL), Ok(()));
}

/// Detached events, those of destroyed queue pairs, and those after a reset are not counted; those of several queue pairs are.
#[test]
fn events_of_attached_queue_pairs_are_counted() {
    let mut set = Set::new((1 << SEND_ERR) | (1 << READ_ERR));
    let fails = |set: &mut Set, expected| {
        set.fail();
        assert_eq!(set.value(), expected);
    };
    // The value wraps.
    set.modify(ModifyOp::Set, MOST).unwrap();
    fails(&mut set, 1);
    set.modify(ModifyOp::Set, 2).unwrap();
    set.qp.modify(&mut set.driver, QpState::Reset).unwrap();
    set.detach(1 << SEND_ERR).unwrap();
    fails(&mut set, 3);
    let shape = Shape::new(QpType::Srd, 64);
    let other = Qp::of_cq(&mut set.driver, set.qp.pd, set.qp.cq.clone(), shape);
    let first = std::mem::replace(&mut set.qp, other);
    fails(&mut set, 3);
    set.qp.modify(&mut set.driver, QpState::Reset).unwrap();
    set.attach(1 << WRITE_ERR).unwrap();
    fails(&mut set, 4);
    let qp_handle = set.qp.number.into();
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    set.qp = first;
    fails(&mut set, 5);
    set.driver.start_over();
    set.qp = Qp::new(&mut set.driver, shape);
    set.driver.world.store(set.paddr, &[0; 8]);
    fails(&mut set, 0);
    assert_eq!(set.driver.errors(), 0);
}
