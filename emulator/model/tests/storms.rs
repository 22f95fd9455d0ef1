// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Storms of asynchronous events and of completion events.

use std::{collections::BTreeMap, time::Duration};

use efa_hw::{
    admin::eq::{CreateEq, DestroyEq},
    aenq::AenqGroup,
    eq::Eqe,
    regs::{EqDb, Register, ResetReason},
};
use efa_model::{Profile, QueueError, StormError};
use efa_testing::{
    commands::create_eq,
    mock::{AENQ_DEPTH, Driver},
};

const EQ_DEPTH: u16 = 8;

fn run(driver: &mut Driver) {
    driver.run(Duration::ZERO);
}

#[test]
fn each_event_is_posted_once_when_there_is_room() {
    let mut driver = Driver::new(Profile::Efa2);
    let notification = u16::from(AenqGroup::Notification);
    let all = [
        (notification, 1, 10_000),
        (notification, 2, 100),
        (99, 1, 1),
    ];
    for (group, syndrome, count) in all {
        driver.device.storm(group, syndrome, count).unwrap();
    }
    let mut received = BTreeMap::new();
    for round in 0.. {
        run(&mut driver);
        let interrupts = driver.world.take_interrupts();
        let mut batch = 0;
        while let Some(event) = driver.event() {
            *received.entry((event.group, event.syndrome)).or_insert(0) += 1;
            batch += 1;
        }
        if batch == 0 {
            break;
        }
        // One entry is left, and one interrupt is enough.
        assert!(batch < AENQ_DEPTH, "{round}");
        assert_eq!(interrupts, [0]);
        // There is no room before the driver acknowledges events.
        run(&mut driver);
        assert!(driver.event().is_none() && driver.world.take_interrupts().is_empty());
        driver.acknowledge_events();
    }
    let expected = all.map(|(group, syndrome, count)| ((group, syndrome), count));
    assert_eq!(received, BTreeMap::from(expected));
    let state = driver.device.state();
    assert_eq!((state.storm, state.events), (0, 10_101));
    assert_eq!(state.protocol_errors, 0);
}

#[test]
fn a_keep_alive_has_room() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_keep_alive();
    driver.device.storm(99, 0, u64::MAX).unwrap();
    driver.device.storm(99, 0, 1).unwrap();
    driver.run(Duration::ZERO);
    driver.run(Duration::from_secs(1));
    let groups: Vec<_> = std::iter::from_fn(|| driver.event().map(|event| event.group)).collect();
    assert_eq!(groups.len(), usize::from(AENQ_DEPTH));
    assert_eq!(groups.last(), Some(&AenqGroup::KeepAlive.into()));
}

#[test]
fn a_reset_or_clearing_ends_a_storm() {
    for reset in [false, true] {
        let mut driver = Driver::new(Profile::Efa2);
        driver.device.storm(99, 0, 1_000_000).unwrap();
        run(&mut driver);
        assert!(driver.device.state().storm > 900_000);
        if reset {
            driver.reset(ResetReason::Generic);
            driver.set_up();
        } else {
            driver.device.clear();
            while driver.event().is_some() {}
            driver.acknowledge_events();
        }
        run(&mut driver);
        assert!(driver.event().is_none());
        assert_eq!(driver.device.state().storm, 0);
    }
}

#[test]
fn fatal_errors_may_storm() {
    let mut driver = Driver::new(Profile::Efa2);
    let fatal = AenqGroup::FatalError.into();
    driver.device.storm(fatal, 0, 2).unwrap();
    run(&mut driver);
    assert!(driver.status().fatal_error);
}

#[test]
fn a_storm_waits_for_a_queue() {
    let mut driver = Driver::powered_on(efa_model::Config::default());
    driver.device.storm(99, 0, 3).unwrap();
    run(&mut driver);
    driver.set_up();
    run(&mut driver);
    assert!(driver.event().is_some());
    // An unmapped queue is a fault of the driver, reported a limited number of times.
    let aenq = driver.aenq.base;
    driver.world.unmap(aenq);
    driver.device.storm(99, 1, u64::MAX).unwrap();
    run(&mut driver);
    assert!(driver.device.state().protocol_errors <= u64::from(AENQ_DEPTH));
}

#[test]
fn kinds_are_limited() {
    let mut driver = Driver::new(Profile::Efa2);
    for syndrome in 0..64 {
        driver.device.storm(99, syndrome, 1).unwrap();
    }
    assert_eq!(
        driver.device.storm(99, 64, 1),
        Err(StormError::TooManyKinds)
    );
    driver.device.storm(99, 63, 1).unwrap();
}

/// Creates an event queue; returns its number and its ring.
fn event_queue(driver: &mut Driver) -> (u16, u64) {
    let ring = driver.world.map(1);
    let create = CreateEq {
        depth: EQ_DEPTH,
        ..create_eq(ring)
    };
    (driver.execute(&create).unwrap().eqn, ring)
}

fn arm(driver: &mut Driver, eqn: u16) {
    driver.write(Register::EqDb, EqDb { eqn, arm: true }.into_raw());
    run(driver);
}

#[test]
fn completion_events_wait_until_the_driver_is_ready() {
    let mut driver = Driver::new(Profile::Efa2);
    let (eqn, ring) = event_queue(&mut driver);
    driver
        .device
        .storm_of_completion_events(Some(eqn), 7, 1000)
        .unwrap();
    run(&mut driver);
    driver.world.take_interrupts();
    let (mut consumed, mut interrupts) = (0_u32, 0);
    while driver.device.state().storm > 0 || interrupts > 0 {
        arm(&mut driver, eqn);
        interrupts = driver.world.take_interrupts().len();
        assert!(interrupts <= 1);
        let mut batch = 0;
        loop {
            let depth = u32::from(EQ_DEPTH);
            let at = ring + u64::from(consumed % depth) * Eqe::SIZE as u64;
            let entry = Eqe::decode(&driver.world.read(at));
            if entry.common.phase != (consumed / depth % 2 == 0) {
                break;
            }
            assert_eq!(entry.cqn, 7);
            consumed += 1;
            batch += 1;
        }
        assert_eq!(batch, 4 * interrupts);
    }
    assert_eq!(consumed, 1000);
    assert_eq!(driver.device.state().protocol_errors, 0);
}

#[test]
fn completion_events_end_with_their_queue() {
    let mut driver = Driver::new(Profile::Efa2);
    let storm = |driver: &mut Driver, eqn| {
        driver
            .device
            .storm_of_completion_events(Some(eqn), 7, u64::MAX)
    };
    assert!(matches!(
        storm(&mut driver, 1),
        Err(StormError::Queue(QueueError::Missing(_)))
    ));
    let (eqn, _) = event_queue(&mut driver);
    storm(&mut driver, eqn).unwrap();
    driver.execute(&DestroyEq { eqn }).unwrap();
    run(&mut driver);
    assert_eq!(driver.device.state().storm, 0);

    // A storm also ends when the queue's memory is unmapped.
    let (eqn, ring) = event_queue(&mut driver);
    storm(&mut driver, eqn).unwrap();
    driver.world.unmap(ring);
    arm(&mut driver, eqn);
    let state = driver.device.state();
    assert_eq!((state.storm, state.protocol_errors), (0, 1));
}
