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

#[test]
fn the_driver_may_not_ring_during_a_reset() {
    let mut driver = Driver::new(Profile::Efa2);
    let eqn = driver.execute(&create_eq(PAGE)).unwrap().eqn;
    let doorbell = EqDb { eqn, arm: true }.into_raw();
    driver.start_reset(ResetReason::AdminTimeout);
    driver.write(Register::AqProdDb, 1);
    driver.write(Register::AenqConsDb, 0);
    driver.write(Register::EqDb, doorbell);
    assert_eq!(driver.errors(), 3);
    driver.write(Register::DevCtl, 0);
    driver.set_response_address();
    driver.set_up();
    // Neither may it arm a queue that the reset has ended.
    driver.write(Register::EqDb, doorbell);
    assert_eq!(driver.errors(), 4);
}

#[test]
fn commands_to_a_failed_device_are_counted() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.post_event(AenqGroup::FatalError.into(), 0);
    driver.execute(&AllocPd {}).unwrap();
    // Commands to a device that died silently are not counted.
    for death in ["{}", r#"{"silent":true}"#] {
        driver.die(death);
        driver.submit(&AllocPd {});
        let state = driver.device.state();
        assert_eq!((state.commands_when_fatal, state.protocol_errors), (2, 0));
        driver.start_over();
    }
}

#[test]
fn a_device_that_may_not_access_memory_is_no_fault_of_the_driver() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_keep_alive();
    driver.run(Duration::ZERO);
    driver.inject(SLOW);
    driver.submit(&AllocPd {});
    driver.world.dma_is_off = true;
    driver.run(Duration::from_secs(5));
    driver.start_reset(ResetReason::Shutdown);
    driver.world.dma_is_off = false;
    assert!(driver.completion().is_none() && driver.event().is_none());
    assert_eq!(driver.errors(), 0);
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

#[test]
fn a_late_completion_waits_for_a_session_that_is_long_enough() {
    let (mut driver, id) = unanswered(r#"{"after_reset":true,"after_commands":2}"#);
    driver.device.reset(&mut driver.world);
    driver.start_over();
    driver.execute(&AllocPd {}).unwrap();
    driver.start_over();
    let (done, (late, ..)) = wait_for_late_completion(&mut driver);
    assert_eq!((done, late), (1, id));
}

#[test]
fn clearing_and_power_on_drop_late_completions() {
    for power in [false, true] {
        let (mut driver, _) = unanswered(r#"{"after_reset":true}"#);
        match power {
            true => driver.device.power_on(&mut driver.world),
            false => driver.device.clear(),
        }
        assert_eq!(driver.device.state().late, 0);
        driver.start_over();
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
    driver.start_over();
    assert!(driver.event().is_none());
    driver.execute(&AllocPd {}).unwrap();
    let event = driver.event().unwrap();
    assert_eq!((event.group, event.syndrome), (fatal, 7));
    assert!(!driver.status().fatal_error && driver.event().is_none());
}

#[test]
fn late_answers_are_bounded() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.inject(r#"{"when":{"opcode":"ANY"},"then":{"after_reset":true}}"#);
    for _ in 0..1000 {
        driver.submit(&AllocPd {});
    }
    assert_eq!(driver.device.state().late, 256);
}
