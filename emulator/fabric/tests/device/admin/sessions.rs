// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Resets between sessions: what a driver may do then, and answers of one session that arrive in the next.

use super::*;

/// Creates a queue pair with all that it needs.
fn queue_pair(driver: &mut Driver) -> Qp {
    Qp::new(driver, Shape::new(QpType::Srd, 64))
}

#[test]
fn programs_may_ring_doorbells_of_destroyed_queues() {
    let mut driver = Driver::new(Profile::Efa2);
    let old = queue_pair(&mut driver);
    let ring = |driver: &mut Driver| {
        driver.doorbell(old.doorbells[0], 1);
        let state = driver.device.state();
        (state.stale_doorbells, state.protocol_errors)
    };
    driver.start_reset(ResetReason::AdminTimeout);
    assert_eq!(ring(&mut driver), (1, 0));
    driver.write(Register::DevCtl, 0);
    driver.set_response_address();
    driver.set_up();
    assert_eq!(ring(&mut driver), (2, 0));
    // Once the driver has executed a command of a new session, such a doorbell is a protocol error.
    driver.execute(&AllocPd {}).unwrap();
    assert_eq!(ring(&mut driver), (2, 1));
    driver.fails(&DestroyCq { cq_idx: old.cq.idx }, Status::IllegalParameter);
    let line = "protocol error: DESTROY_CQ for an object that a reset has destroyed";
    assert!(driver.world.traced(&[line]));
    // Power-on clears the record of old numbers.
    driver.device.power_on(&mut driver.world);
    driver.start_over();
    assert_eq!(queue_pair(&mut driver).number, old.number);
}

/// Returns a driver that has no completion of its last command, and the command's id.
fn unanswered(then: &str) -> (Driver, u16) {
    let mut driver = Driver::new(Profile::Efa2);
    driver.inject(&format!(
        r#"{{"when":{{"opcode":"ALLOC_UAR"}},"then":{then},"times":1}}"#
    ));
    let id = driver.submit(&AllocUar {});
    // Other commands complete.
    driver.execute(&AllocPd {}).unwrap();
    assert!(driver.completion().is_none());
    (driver, id)
}

/// Executes commands until a completion is of another command; returns how many, and the completion.
fn wait_for_late_completion(driver: &mut Driver) -> (u32, (u16, u8, [u8; 64])) {
    for done in 0..3 * u32::from(AQ_DEPTH) {
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
        driver.start_over();
        driver.world.take_interrupts();
        driver.run(Duration::ZERO);
        let (done, (late, status, entry)) = wait_for_late_completion(&mut driver);
        assert_eq!((done, late, status), (after, id, 0), "{then}");
        assert_eq!(AcqHeader::of(&entry).checksum, checksum::of_entry(&entry));
        assert!(!driver.world.take_interrupts().is_empty());
        // It arrives once, and has no effect.
        for _ in 0..AQ_DEPTH {
            driver.execute(&AllocPd {}).unwrap();
            assert!(driver.completion().is_none());
        }
        let state = driver.device.state();
        assert_eq!((state.late, state.resources.uar), (0, 0));
        assert_eq!(state.protocol_errors, 0);
    }
}
