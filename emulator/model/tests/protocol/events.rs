// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Events of the device.

use std::time::Duration;

use efa_hw::{
    aenq::AenqGroup,
    regs::{Register, ResetReason},
};
use efa_model::{Config, Profile};
use efa_testing::mock::{self, Driver};

use super::{post_event, protocol_errors, set};

#[test]
fn keep_alive() {
    let mut driver = Driver::new(Profile::Efa2);
    assert_eq!(driver.run(Duration::from_secs(5)), None);
    driver.enable_keep_alive();
    let period = Duration::from_secs(1);
    assert_eq!(driver.run(Duration::ZERO), Some(driver.now + period));
    driver.world.take_interrupts();
    for _ in 0..40 {
        assert_eq!(driver.run(period), Some(driver.now + period));
        assert_eq!(driver.world.take_interrupts(), [0]);
        let event = driver.event().unwrap();
        assert_eq!(event.group, u16::from(AenqGroup::KeepAlive));
        assert_eq!(event.timestamp, driver.now.as_micros() as u64);
        assert!(driver.event().is_none());
        driver.acknowledge_events();
    }
    // After a long pause of the host, one event is due, not all that it missed.
    assert_eq!(driver.run(100 * period), Some(driver.now + period));
    assert!(driver.event().is_some() && driver.event().is_none());

    set(&mut driver, r#"{"keep_alive_ms":0}"#);
    assert_eq!(driver.run(period), None);
    assert_eq!(protocol_errors(&driver), 0);
}

#[test]
fn events_wait_for_room() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_keep_alive();
    for _ in 0..20 {
        driver.run(Duration::from_secs(1));
    }
    assert_eq!(driver.device.state().events, u64::from(mock::AENQ_DEPTH));
    assert!(driver.world.traced(&["aenq KEEP_ALIVE", "no room"]));
    while driver.event().is_some() {}
    driver.acknowledge_events();
    driver.run(Duration::from_secs(1));
    assert!(driver.event().is_some());
    assert_eq!(protocol_errors(&driver), 0);
    // No more events can be consumed than were posted.
    driver.write(Register::AenqConsDb, 1000);
    assert_eq!(protocol_errors(&driver), 1);
}

#[test]
fn fatal_error() {
    let mut driver = Driver::new(Profile::Efa2);
    post_event(&mut driver, AenqGroup::FatalError.into(), 7);
    let event = driver.event().unwrap();
    assert_eq!((event.group, event.syndrome), (1, 7));
    assert!(driver.status().fatal_error && driver.device.state().fatal_error);
    driver.reset(ResetReason::Generic);
    assert!(!driver.status().fatal_error);
}

#[test]
fn event_without_queue() {
    let mut driver = Driver::powered_on(Config::default());
    post_event(&mut driver, 99, 0);
    assert!(driver.world.traced(&["aenq group 99", "no room"]));
    assert_eq!(protocol_errors(&driver), 0);
}
