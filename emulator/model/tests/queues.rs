// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queues in host memory: access to their entries, and completion events.

use efa_hw::{
    admin::{
        cq::CqCaps1,
        eq::{CreateEq, DestroyEq},
        pd::AllocPd,
        qp::QpType,
    },
    eq::Eqe,
    regs::{EqDb, Register},
};
use efa_model::{Profile, Queue, QueueError};
use efa_testing::{
    commands::create_eq,
    mock::Driver,
    qp::{Cq, Qp, Shape},
};

const DEPTH: u16 = 4;
const VECTOR: u8 = 1;

/// A driver with an event queue, a completion queue with and one without it, and a queue pair.
struct Set {
    driver: Driver,
    eq_ring: u64,
    cq_ring: u64,
    rq_ring: u64,
    eqn: u16,
    cq: u16,
    silent_cq: u16,
    qp: u16,
}

impl Set {
    fn new() -> Self {
        let mut driver = Driver::new(Profile::Efa2);
        let eq_ring = driver.world.map(1);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let create = CreateEq {
            depth: DEPTH,
            ..create_eq(eq_ring)
        };
        let eqn = driver.execute(&create).unwrap().eqn;
        let caps_1 = CqCaps1 {
            interrupt_mode_enabled: true,
            ..CqCaps1::default()
        };
        assert_eq!(eqn, 1, "`Cq` uses event queue 1");
        let cq = Cq::new(&mut driver, 64, caps_1, false);
        let silent = Cq::new(&mut driver, 64, CqCaps1::default(), false);
        let shape = Shape::new(QpType::Srd, 64);
        let qp = Qp::of_cq(&mut driver, pd, cq, shape);
        driver.world.take_interrupts();
        Self {
            driver,
            eq_ring,
            cq_ring: qp.cq.base,
            rq_ring: qp.rq,
            eqn,
            cq: qp.cq.idx,
            silent_cq: silent.idx,
            qp: qp.number,
        }
    }

    fn arm(&mut self) {
        self.ring(true);
    }

    fn ring(&mut self, arm: bool) {
        let eqn = self.eqn;
        self.driver
            .write(Register::EqDb, EqDb { eqn, arm }.into_raw());
    }

    fn post(&mut self, eqn: Option<u16>, cqn: u16) -> Result<(), QueueError> {
        let Driver { device, world, .. } = &mut self.driver;
        device.post_completion_event(world, eqn, cqn)
    }

    fn entry(&mut self, index: u16) -> Eqe {
        Eqe::decode(&self.driver.world.read(self.eq_ring + u64::from(index) * 16))
    }

    fn peek(&mut self, queue: Queue, offset: u64, length: usize) -> Result<Vec<u8>, QueueError> {
        let Driver { device, world, .. } = &mut self.driver;
        let mut data = vec![0; length];
        device.peek(world, queue, offset, &mut data)?;
        Ok(data)
    }

    fn poke(&mut self, queue: Queue, offset: u64, data: &[u8]) -> Result<(), QueueError> {
        let Driver { device, world, .. } = &mut self.driver;
        device.poke(world, queue, offset, data)
    }

    fn interrupts(&mut self) -> Vec<u16> {
        self.driver.world.take_interrupts()
    }
}

#[test]
fn an_event_interrupts_once_for_each_arming() {
    let mut set = Set::new();
    let vector = vec![u16::from(VECTOR)];
    set.arm();
    assert_eq!(set.interrupts(), [0_u16; 0]);
    set.post(None, set.cq).unwrap();
    assert_eq!(set.interrupts(), vector);

    // Two more events raise no interrupt before the driver arms the queue.
    set.post(None, set.cq).unwrap();
    set.post(None, set.cq).unwrap();
    assert_eq!(set.interrupts(), [0_u16; 0]);
    // A doorbell without the bit arms nothing.
    set.ring(false);
    assert_eq!(set.interrupts(), [0_u16; 0]);
    set.arm();
    assert_eq!(set.interrupts(), vector);
    set.arm();
    assert_eq!(set.interrupts(), [0_u16; 0]);
    // Nor does it disarm a queue.
    set.ring(false);
    set.post(None, set.cq).unwrap();
    assert_eq!(set.interrupts(), vector);
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

#[test]
fn entries_have_the_phase_of_their_round() {
    let mut set = Set::new();
    for round in 0..3 {
        for index in 0..DEPTH {
            assert_eq!(set.entry(index).common.phase, round % 2 == 1, "before");
            set.post(None, set.cq).unwrap();
            let entry = set.entry(index);
            assert_eq!(entry.common.phase, round % 2 == 0, "{index} of {round}");
            assert_eq!((entry.common.event_type, entry.cqn), (0, set.cq));
        }
    }
}

#[test]
fn an_event_may_name_a_missing_queue() {
    let mut set = Set::new();
    set.post(Some(set.eqn), 999).unwrap();
    assert_eq!(set.entry(0).cqn, 999);
    let missing = |queue| Err(QueueError::Missing(queue));
    assert_eq!(set.post(None, 999), missing(Queue::Cq(999)));
    assert_eq!(set.post(Some(9), set.cq), missing(Queue::Eq(9)));
    let silent = set.silent_cq;
    assert_eq!(
        set.post(None, silent),
        Err(QueueError::NoEvents(Queue::Cq(silent)))
    );
}

#[test]
fn unmapped_memory() {
    let mut set = Set::new();
    set.driver.world.unmap(set.eq_ring);
    assert!(matches!(
        set.post(None, set.cq),
        Err(QueueError::Dma(error)) if error.length > 0
    ));
    set.driver.world.unmap(set.cq_ring);
    let cq = Queue::Cq(set.cq);
    assert!(matches!(set.poke(cq, 0, &[1]), Err(QueueError::Dma(_))));
    assert!(matches!(set.peek(cq, 0, 1), Err(QueueError::Dma(_))));
}

#[test]
fn queues_are_where_the_driver_put_them() {
    let mut set = Set::new();
    let queues = [
        (Queue::Cq(set.cq), set.cq_ring, 64 * 32),
        (Queue::Rq(set.qp), set.rq_ring, 64 * 16),
        (Queue::Eq(set.eqn), set.eq_ring, u64::from(DEPTH) * 16),
    ];
    for (queue, ring, size) in queues {
        set.poke(queue, 7, &[1, 2, 3]).unwrap();
        assert_eq!(set.driver.world.read(ring + 6), [0, 1, 2, 3, 0]);
        set.driver.world.write(ring + size - 2, &[4, 5]);
        assert_eq!(set.peek(queue, size - 3, 3).unwrap(), [0, 4, 5]);

        for (offset, length) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (0, 4096)] {
            let error = set.peek(queue, offset, length).unwrap_err();
            assert!(matches!(error, QueueError::Range { .. }), "{error}");
            assert_eq!(set.poke(queue, offset, &vec![0; length]), Err(error));
        }
    }
    for queue in [Queue::Cq(0), Queue::Rq(77), Queue::Eq(u16::MAX)] {
        assert_eq!(set.peek(queue, 0, 1), Err(QueueError::Missing(queue)));
    }
}

#[test]
fn a_new_event_queue_starts_anew() {
    let mut set = Set::new();
    let create = CreateEq {
        depth: 1,
        msix_vector: 2,
        ..create_eq(set.eq_ring)
    };
    for _ in 0..2 {
        let eqn = set.driver.execute(&create).unwrap().eqn;
        set.post(Some(eqn), set.cq).unwrap();
        assert!(set.entry(0).common.phase);
        set.post(Some(eqn), set.cq).unwrap();
        assert!(!set.entry(0).common.phase);
        set.driver.execute(&DestroyEq { eqn }).unwrap();
    }
}
