// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions and events of one session that arrive in the next.

use std::time::Duration;

use efa_hw::{
    admin::{AcqHeader, pd::AllocPd, uar::AllocUar},
    aenq::AenqGroup,
    checksum,
    regs::ResetReason,
};
use efa_model::Profile;
use efa_testing::mock::{DEPTH, Driver};

/// Returns a driver that has no completion of its last command, and the command's id.
fn unanswered(then: &str) -> (Driver, u16) {
    let mut driver = Driver::new(Profile::Efa2);
    let rule = format!(r#"{{"when":{{"opcode":"ALLOC_UAR"}},"then":{then},"times":1}}"#);
    driver.device.inject(serde_json::from_str(&rule).unwrap());
    let id = driver.submit(&AllocUar {});
    // Other commands complete.
    driver.execute(&AllocPd {}).unwrap();
    assert!(driver.completion().is_none());
    (driver, id)
}

fn start_over(driver: &mut Driver) {
    driver.reset(ResetReason::AdminTimeout);
    driver.world.take_interrupts();
    driver.set_up();
}

/// Executes commands until a completion is of another command; returns how many, and the completion.
fn wait_for_late_completion(driver: &mut Driver) -> (u32, (u16, u8, [u8; 64])) {
    for done in 0..3 * u32::from(DEPTH) {
        if let Some(completion) = driver.completion() {
            return (done, completion);
        }
        driver.execute(&AllocPd {}).unwrap();
    }
    panic!("no late completion");
}

#[test]
fn a_late_completion_is_posted_in_the_next_session() {
    for (then, after) in [
        (r#"{"after_reset":true}"#, 1),
        (r#"{"after_reset":true,"after_commands":0}"#, 0),
        // The ring has wrapped by then.
        (r#"{"after_reset":true,"after_commands":40}"#, 40),
    ] {
        let (mut driver, id) = unanswered(then);
        assert_eq!(driver.device.state().late, 1);
        start_over(&mut driver);
        driver.run(Duration::ZERO);
        let (done, (late, status, entry)) = wait_for_late_completion(&mut driver);
        assert_eq!((done, late, status), (after, id, 0), "{then}");
        assert_eq!(AcqHeader::of(&entry).checksum, checksum::of_entry(&entry));
        assert!(!driver.world.take_interrupts().is_empty());
        // It arrives once, and has no effect.
        for _ in 0..DEPTH {
            driver.execute(&AllocPd {}).unwrap();
            assert!(driver.completion().is_none());
        }
        let state = driver.device.state();
        assert_eq!((state.late, state.resources.uar), (0, 0));
        assert_eq!(state.protocol_errors, 0);
    }
}

#[test]
fn a_late_completion_waits_for_a_session_that_is_long_enough() {
    let (mut driver, id) = unanswered(r#"{"after_reset":true,"after_commands":2}"#);
    driver.device.reset(&mut driver.world);
    start_over(&mut driver);
    driver.execute(&AllocPd {}).unwrap();
    start_over(&mut driver);
    let (done, (late, ..)) = wait_for_late_completion(&mut driver);
    assert_eq!((done, late), (1, id));
}

#[test]
fn clearing_and_power_on_drop_late_completions() {
    for power in [false, true] {
        let (mut driver, _) = unanswered(r#"{"after_reset":true}"#);
        if power {
            driver.device.power_on(&mut driver.world);
        } else {
            driver.device.clear();
        }
        assert_eq!(driver.device.state().late, 0);
        start_over(&mut driver);
        driver.execute(&AllocPd {}).unwrap();
        assert!(driver.completion().is_none());
    }
}

#[test]
fn a_late_event_is_posted_in_the_next_session() {
    let mut driver = Driver::new(Profile::Efa2);
    let fatal = u16::from(AenqGroup::FatalError);
    driver.device.post_event_late(fatal, 7, 1);
    driver.execute(&AllocPd {}).unwrap();
    assert!(driver.event().is_none());
    start_over(&mut driver);
    assert!(driver.event().is_none());
    driver.execute(&AllocPd {}).unwrap();
    let event = driver.event().unwrap();
    assert_eq!((event.group, event.syndrome), (fatal, 7));
    assert!(!driver.status().fatal_error);
    assert!(driver.event().is_none());
}

#[test]
fn late_answers_are_bounded() {
    let mut driver = Driver::new(Profile::Efa2);
    let rule = r#"{"when":{"opcode":"ANY"},"then":{"after_reset":true}}"#;
    driver.device.inject(serde_json::from_str(rule).unwrap());
    for _ in 0..1000 {
        driver.submit(&AllocPd {});
    }
    assert_eq!(driver.device.state().late, 256);
}
