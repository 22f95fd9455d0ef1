// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queues in host memory: access to their entries, and completion events.

use super::*;

const DEPTH: u16 = 4;

/// A driver with an event queue, a completion queue with and one without it, and a queue pair.
struct Queues {
    driver: Driver,
    ring: u64,
    eqn: u16,
    cq: u16,
    silent_cq: u16,
    qp: Qp,
    consumed: u16,
}

impl Queues {
    fn new() -> Self {
        let mut driver = Driver::new(Profile::Efa2);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let (eqn, ring) = event_queue(&mut driver);
        assert_eq!(eqn, 1, "`Cq` uses event queue 1");
        let events = CqCaps1::from_raw(1 << 5);
        let [cq, silent] = [events, CqCaps1::default()].map(|caps| Cq::new(&mut driver, 64, caps, false));
        let qp = Qp::of_cq(&mut driver, pd, cq, Shape::new(QpType::Srd, 64));
        driver.world.take_interrupts();
        Self { driver, ring, eqn, cq: qp.cq.idx, silent_cq: silent.idx, qp, consumed: 0 }
    }

    fn ring(&mut self, arm: bool) {
        let eqn = self.eqn;
        let doorbell = EqDb { eqn, arm };
        self.driver.write(Register::EqDb, doorbell.into_raw());
    }

    fn post(&mut self, eqn: Option<u16>, cqn: u16) -> Result<(), QueueError> {
        let Driver { device, world, .. } = &mut self.driver;
        device.post_completion_event(world, eqn, cqn)
    }

    fn storm(&mut self, eqn: u16, count: u64) -> Result<(), StormError> {
        let device = &mut self.driver.device;
        device.storm_of_completion_events(Some(eqn), 7, count)
    }

    fn entry(&mut self, index: u16) -> Eqe {
        Eqe::decode(&self.driver.world.entry(self.ring + u64::from(index) * 16))
    }

    /// Takes the next event, if there is one.
    fn take(&mut self) -> Option<Eqe> {
        let entry = self.entry(self.consumed % DEPTH);
        let is_new = entry.common.phase == (self.consumed / DEPTH % 2 == 0);
        self.consumed += u16::from(is_new);
        is_new.then_some(entry)
    }

    fn peek(&mut self, queue: Queue, offset: u64, length: usize) -> Result<Vec<u8>, QueueError> {
        let Driver { device, world, .. } = &mut self.driver;
        let mut data = vec![0; length];
        device.peek(world, queue, offset, &mut data).map(|()| data)
    }

    fn poke(&mut self, queue: Queue, offset: u64, data: &[u8]) -> Result<(), QueueError> {
        let Driver { device, world, .. } = &mut self.driver;
        device.poke(world, queue, offset, data)
    }

    fn interrupts(&mut self) -> Vec<u16> {
        self.driver.world.take_interrupts()
    }
}

/// Creates an event queue; returns its number and its ring.
fn event_queue(driver: &mut Driver) -> (u16, u64) {
    let ring = driver.world.map(1);
    let mut create = create_eq(ring);
    create.depth = DEPTH;
    (driver.execute(&create).unwrap().eqn, ring)
}

#[test]
fn an_event_interrupts_once_for_each_arming() {
    let mut set = Queues::new();
    // Actions: to arm, to ring without arming, or to post an event. Whether they raise an interrupt.
    for (step, (action, interrupts)) in [
        ("arm", false),
        ("post", true),
        ("post", false),
        ("post", false),
        ("ring", false),
        ("arm", true),
        ("arm", false),
        // A doorbell without the bit does not disarm a queue.
        ("ring", false),
        ("post", true),
    ]
    .into_iter()
    .enumerate()
    {
        match action {
            "post" => set.post(None, set.cq).unwrap(),
            _ => set.ring(action == "arm"),
        }
        let raised = set.interrupts();
        assert_eq!(raised, vec![1; interrupts.into()], "step {step}: {action}");
    }
    assert_eq!(set.driver.errors(), 0);
}

#[test]
fn entries_have_the_phase_of_their_round() {
    let mut set = Queues::new();
    for number in 0..3 * DEPTH {
        assert!(set.take().is_none(), "{number}");
        set.post(None, set.cq).unwrap();
        let entry = set.take().unwrap();
        assert_eq!((entry.common.event_type, entry.cqn), (0, set.cq));
    }
    // A new event queue starts anew.
    for _ in 0..2 {
        set.driver.execute(&DestroyEq { eqn: set.eqn }).err();
        let mut create = create_eq(set.ring);
        (create.depth, create.msix_vector) = (1, 2);
        let eqn = set.driver.execute(&create).unwrap().eqn;
        for phase in [true, false] {
            set.post(Some(eqn), set.cq).unwrap();
            assert_eq!(set.entry(0).common.phase, phase);
        }
        set.driver.execute(&DestroyEq { eqn }).unwrap();
    }
}

#[test]
fn queues_that_are_missing_or_not_mapped() {
    let mut set = Queues::new();
    // An event may name a missing completion queue.
    set.post(Some(set.eqn), 999).unwrap();
    assert_eq!(set.entry(0).cqn, 999);
    let (cq, silent) = (set.cq, set.silent_cq);
    for (eqn, cqn, error) in [
        (None, 999, QueueError::Missing(Queue::Cq(999))),
        (Some(9), cq, QueueError::Missing(Queue::Eq(9))),
        (None, silent, QueueError::NoEvents(Queue::Cq(silent))),
    ] {
        assert_eq!(set.post(eqn, cqn), Err(error));
    }
    for queue in [Queue::Cq(0), Queue::Rq(77), Queue::Eq(u16::MAX)] {
        assert_eq!(set.peek(queue, 0, 1), Err(QueueError::Missing(queue)));
    }
    set.driver.world.unmap(set.ring);
    set.driver.world.unmap(set.qp.cq.base);
    let cq = Queue::Cq(set.cq);
    let posted = set.post(None, set.cq);
    for result in [posted, set.poke(cq, 0, &[1]), set.peek(cq, 0, 1).map(|_| ())] {
        assert!(matches!(result, Err(QueueError::Dma(error)) if error.length > 0));
    }
}

#[test]
fn queues_are_where_the_driver_put_them() {
    let mut set = Queues::new();
    for (queue, ring, size) in [
        (Queue::Cq(set.cq), set.qp.cq.base, 64 * 32),
        (Queue::Rq(set.qp.number), set.qp.rq, 64 * 16),
        (Queue::Eq(set.eqn), set.ring, u64::from(DEPTH) * 16),
    ] {
        set.poke(queue, 7, &[1, 2, 3]).unwrap();
        assert_eq!(set.driver.world.entry(ring + 6), [0, 1, 2, 3, 0]);
        set.driver.world.store(ring + size - 2, &[4, 5]);
        assert_eq!(set.peek(queue, size - 3, 3).unwrap(), [0, 4, 5]);
        for (offset, length) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (0, 4096)] {
            let error = set.peek(queue, offset, length).unwrap_err();
            assert!(matches!(error, QueueError::Range { .. }), "{error}");
            assert_eq!(set.poke(queue, offset, &vec![0; length]), Err(error));
        }
    }
}

#[test]
fn storms_wait_until_the_driver_is_ready() {
    let mut set = Queues::new();
    set.storm(set.eqn, 1000).unwrap();
    set.driver.run(Duration::ZERO);
    let (mut consumed, mut interrupts) = (0, 0);
    while set.driver.device.state().storm > 0 || interrupts > 0 {
        set.ring(true);
        set.driver.run(Duration::ZERO);
        interrupts = set.interrupts().len();
        assert!(interrupts <= 1);
        let batch = from_fn(|| set.take().inspect(|entry| assert_eq!(entry.cqn, 7))).count();
        assert_eq!(batch, usize::from(DEPTH / 2) * interrupts);
        consumed += batch;
    }
    assert_eq!((consumed, set.driver.errors()), (1000, 0));
}

#[test]
fn storms_end_with_their_queue() {
    let mut set = Queues::new();
    assert!(matches!(set.storm(9, 1), Err(StormError::Queue(QueueError::Missing(_)))));
    for (destroyed, errors) in [(true, 0), (false, 1)] {
        let (eqn, ring) = event_queue(&mut set.driver);
        set.storm(eqn, u64::MAX).unwrap();
        if destroyed {
            set.driver.execute(&DestroyEq { eqn }).unwrap();
        } else {
            set.driver.world.unmap(ring);
            set.driver.write(Register::EqDb, EqDb { eqn, arm: true }.into_raw());
        }
        set.driver.run(Duration::ZERO);
        let state = set.driver.device.state();
        assert_eq!((state.storm, state.protocol_errors), (0, errors));
    }
}
