// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers and reset.

use super::*;

#[test]
fn accesses_that_are_protocol_errors() {
    let mut driver = Driver::new(Profile::Efa2);
    let before = driver.device.state().register_reads;
    assert_eq!(driver.read_raw(0x1000).unwrap().reg_val, u32::MAX);
    driver.read(Register::Version);
    assert_eq!(driver.device.state().register_reads, before + 2);
    for (offset, value) in [(0x0c, 1), (u64::MAX, 1), (Register::Version as u64, 1)] {
        driver.write_at(offset, value);
    }
    assert_eq!(driver.errors(), 4);
    // A doorbell of a queue that does not exist, an offset beyond the BAR, and one between doorbells.
    for offset in [8, driver.device.doorbell_bar_size(), 2] {
        driver.doorbell(offset, 1);
    }
    let state = driver.device.state();
    assert_eq!((state.doorbells, state.protocol_errors), (1, 7));
}

#[test]
fn register_read_without_address() {
    let mut driver = Driver::powered_on(Config::default());
    assert!(driver.read_raw(0).is_none());
    assert_eq!(driver.errors(), 1);
    // A reset clears the address.
    driver.set_response_address();
    assert!(driver.read_raw(0).is_some());
    driver.start_reset(ResetReason::Normal);
    assert!(driver.read_raw(0).is_none());
    assert_eq!(driver.errors(), 2);
}

#[test]
fn reset_takes_time() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.set(r#"{"reset_ms":300}"#);
    driver.start_reset(ResetReason::Shutdown);
    driver.set_response_address();
    assert!(!driver.status().reset_in_progress);
    driver.run(300 * MS);
    assert!(driver.status().reset_in_progress);
    driver.write(Register::DevCtl, 0);
    assert!(driver.status().reset_in_progress);
    driver.run(300 * MS);
    let status = driver.status();
    assert!(!status.reset_in_progress && status.reset_finished && status.ready);
    assert_eq!(driver.device.state().resets, ["NORMAL", "SHUTDOWN"]);
    assert_eq!(driver.errors(), 0);
}

#[test]
fn a_reset_clears_all_state() {
    for of_function in [false, true] {
        let mut driver = Driver::new(Profile::Efa2);
        driver.execute(&AllocPd {}).unwrap();
        driver.enable_keep_alive();
        driver.inject(SLOW);
        driver.submit(&AllocPd {});
        assert_eq!(driver.device.state().admin.in_flight, 1);
        if of_function {
            driver.device.reset(&mut driver.world);
        } else {
            driver.reset(ResetReason::Normal);
        }
        let state = driver.device.state();
        assert_eq!((state.resources.pd, state.admin.in_flight), (0, 0));
        assert_eq!(driver.run(10_000 * MS), None);
        driver.post_event(AenqGroup::Warning.into(), 0);
        assert!(driver.completion().is_none() && driver.event().is_none());
        driver.device.clear();
        driver.start_over();
        assert!(driver.execute(&AllocPd {}).is_ok());
        assert_eq!(driver.errors(), 0);
    }
}

#[test]
fn reset_out_of_order() {
    let mut driver = Driver::new(Profile::Efa2);
    let control = |dev_reset, aq_restart| {
        let reset_reason = 15 * u8::from(dev_reset);
        let control = DevCtl {
            dev_reset,
            aq_restart,
            reset_reason,
        };
        control.into_raw()
    };
    // Until the reset ends, the last three writes are protocol errors.
    for (errors, (register, value)) in (1..).zip([
        (Register::DevCtl, 0),
        (Register::DevCtl, control(false, true)),
        (Register::DevCtl, control(true, false)),
        (Register::AqProdDb, 1),
        (Register::IntrMask, 1),
        (Register::AqBaseLo, 0x1000),
    ]) {
        driver.write(register, value);
        assert_eq!(driver.errors(), errors, "{register} {value:#x}");
    }
    assert_eq!(driver.device.state().resets, ["NORMAL", "15"]);
    assert!(driver.world.traced(&["AQ_BASE_LO during a reset"]));
}
