// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Events of the device, and storms of them.

use super::*;

#[test]
fn keep_alive() {
    let mut driver = Driver::new(Profile::Efa2);
    assert_eq!(driver.run(5 * SECOND), None);
    driver.enable_events(AenqGroup::KeepAlive.mask());
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
fn each_event_of_a_storm_is_posted_once_when_there_is_room() {
    let mut driver = Driver::new(Profile::Efa2);
    let notification = u16::from(AenqGroup::Notification);
    let all = [(notification, 1, 10_000), (notification, 2, 100), (99, 1, 1)];
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
fn kinds_of_storms_are_limited() {
    let mut driver = Driver::new(Profile::Efa2);
    for syndrome in 0..64 {
        driver.device.storm(99, syndrome, 1).unwrap();
    }
    for (syndrome, expected) in [(64, Err(StormError::TooManyKinds)), (63, Ok(()))] {
        assert_eq!(driver.device.storm(99, syndrome, 1), expected);
    }
}
