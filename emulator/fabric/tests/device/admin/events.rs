// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Events of the device, and storms of them.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn keep_alive() {
    let mut driver = Driver::new(Profile::Efa2);
    assert_eq!(driver.run(5 * SECOND), None);
    driver.enable_keep_alive();
    assert_eq!(driver.run(Duration::ZERO), Some(driver.now + SECOND));
    driver.world.take_interrupts();
    // After a long pause of the host, one event is due, not all that it missed.
    for period in [[1; 40], [100; 40]].concat() {
        assert_eq!(driver.run(period * SECOND), Some(driver.now + SECOND));
        assert_eq!(driver.world.take_interrupts(), [0]);
        let event = driver.event().unwrap();
        assert_eq!(event.group, u16::from(AenqGroup::KeepAlive));
        assert_eq!(event.timestamp, driver.now.as_micros() as u64);
        assert!(driver.event().is_none());
        driver.acknowledge_events();
    }
    driver.set(r#"{"keep_alive_ms":0}"#);
    assert_eq!(driver.run(SECOND), None);
    assert_eq!(driver.errors(), 0);
}

#[test]
fn events_wait_for_room() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_keep_alive();
    for _ in 0..20 {
        driver.run(SECOND);
    }
    assert_eq!(driver.device.state().events, u64::from(AENQ_DEPTH));
    assert!(driver.world.traced(&["aenq KEEP_ALIVE", "no room"]));
    while driver.event().is_some() {}
    driver.acknowledge_events();
    driver.run(SECOND);
    assert!(driver.event().is_some());
    assert_eq!(driver.errors(), 0);
    // No more events can be consumed than were posted.
    driver.write(Register::AenqConsDb, 1000);
    assert_eq!(driver.errors(), 1);
    // A device without a queue.
    let mut driver = Driver::powered_on(Config::default());
    driver.post_event(99, 0);
    assert!(driver.world.traced(&["aenq group 99", "no room"]));
    assert_eq!(driver.errors(), 0);
}

/// By one event, or by a storm.
#[test]
fn fatal_errors() {
    for storm in [false, true] {
        let mut driver = Driver::new(Profile::Efa2);
        let fatal = AenqGroup::FatalError.into();
        match storm {
            true => driver.device.storm(fatal, 7, 2).unwrap(),
            false => driver.post_event(fatal, 7),
        }
        driver.run(Duration::ZERO);
        let event = driver.event().unwrap();
        assert_eq!((event.group, event.syndrome), (1, 7));
        assert!(driver.status().fatal_error && driver.device.state().fatal_error);
        driver.reset(ResetReason::Generic);
        assert!(!driver.status().fatal_error);
    }
}

#[test]
fn each_event_of_a_storm_is_posted_once_when_there_is_room() {
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
        driver.run(Duration::ZERO);
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
        driver.run(Duration::ZERO);
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
fn a_storm_leaves_room_and_has_limits() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_keep_alive();
    driver.device.storm(99, 0, u64::MAX).unwrap();
    driver.device.storm(99, 0, 1).unwrap();
    driver.run(Duration::ZERO);
    driver.run(SECOND);
    let groups: Vec<_> = from_fn(|| driver.event().map(|event| event.group)).collect();
    assert_eq!(groups.len(), usize::from(AENQ_DEPTH));
    assert_eq!(groups.last(), Some(&AenqGroup::KeepAlive.into()));
    // Kinds are limited.
    for syndrome in 1..64 {
        driver.device.storm(99, syndrome, 1).unwrap();
    }
    for (syndrome, expected) in [(64, Err(StormError::TooManyKinds)), (63, Ok(()))] {
        assert_eq!(driver.device.storm(99, syndrome, 1), expected);
    }
}

#[test]
fn a_reset_or_clearing_ends_a_storm() {
    for reset in [false, true] {
        let mut driver = Driver::new(Profile::Efa2);
        driver.device.storm(99, 0, 1_000_000).unwrap();
        driver.run(Duration::ZERO);
        assert!(driver.device.state().storm > 900_000);
        if reset {
            driver.start_over();
        } else {
            driver.device.clear();
            while driver.event().is_some() {}
            driver.acknowledge_events();
        }
        driver.run(Duration::ZERO);
        assert!(driver.event().is_none());
        assert_eq!(driver.device.state().storm, 0);
    }
}

#[test]
fn a_storm_waits_for_a_queue() {
    let mut driver = Driver::powered_on(Config::default());
    driver.device.storm(99, 0, 3).unwrap();
    driver.run(Duration::ZERO);
    driver.set_up();
    driver.run(Duration::ZERO);
    assert!(driver.event().is_some());
    // An unmapped queue is a fault of the driver, reported a limited number of times.
    let aenq = driver.aenq.base;
    driver.world.unmap(aenq);
    driver.device.storm(99, 1, u64::MAX).unwrap();
    driver.run(Duration::ZERO);
    assert!(driver.errors() <= u64::from(AENQ_DEPTH));
}
