// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers and reset.

use std::time::Duration;

use efa_hw::{
    admin::pd::{AllocPd, DeallocPd},
    aenq::AenqGroup,
    features::{DeviceAttr, FeatureId},
    regs::{Caps, DevCtl, MmioRegRead, Register, ResetReason, Version},
};
use efa_model::{Config, Profile};
use efa_testing::mock::Driver;

use super::{MS, post_event, protocol_errors, set};

#[test]
fn device_starts() {
    for profile in [Profile::Efa0, Profile::Efa1, Profile::Efa2, Profile::Efa3] {
        let mut driver = Driver::new(profile);
        let version = Version::from_raw(driver.read(Register::Version));
        assert_eq!(version.minor, if profile >= Profile::Efa2 { 2 } else { 1 });
        let caps = Caps::from_raw(driver.read(Register::Caps));
        assert_eq!(caps.dma_addr_width, 48);

        let attributes: DeviceAttr = driver.feature().unwrap();
        assert_ne!(attributes.supported_features & FeatureId::HwHints.mask(), 0);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        driver.execute(&DeallocPd { pd }).unwrap();
        assert_eq!(protocol_errors(&driver), 0, "{:#?}", driver.world.trace);
        assert_eq!(driver.device.state().resets, ["NORMAL"]);
    }
}

#[test]
fn register_that_does_not_exist() {
    let mut driver = Driver::new(Profile::Efa2);
    assert_eq!(driver.read_raw(0x1000).unwrap().reg_val, u32::MAX);
    driver.write_at(0x0c, 1);
    driver.write_at(u64::MAX, 1);
    driver.write(Register::Version, 1);
    assert_eq!(protocol_errors(&driver), 4);
}

#[test]
fn register_read_without_address() {
    let mut driver = Driver::powered_on(Config::default());
    let request = MmioRegRead {
        req_id: 1,
        reg_off: 0,
    };
    driver.write(Register::MmioRegRead, request.into_raw());
    assert_eq!(protocol_errors(&driver), 1);
    // A reset clears the address.
    driver.set_response_address();
    assert!(driver.read_raw(0).is_some());
    driver.start_reset(ResetReason::Normal);
    assert!(driver.read_raw(0).is_none());
    assert_eq!(protocol_errors(&driver), 2);
}

#[test]
fn reset_takes_time() {
    let mut driver = Driver::new(Profile::Efa2);
    set(&mut driver, r#"{"reset_ms":300}"#);
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
    assert_eq!(protocol_errors(&driver), 0);
}

#[test]
fn reset_clears_all_state() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.execute(&AllocPd {}).unwrap();
    driver.enable_keep_alive();
    let rule = r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50}}"#;
    driver.device.inject(serde_json::from_str(rule).unwrap());
    driver.submit(&AllocPd {});
    assert_eq!(driver.device.state().admin.in_flight, 1);

    driver.reset(ResetReason::Normal);
    let state = driver.device.state();
    assert_eq!((state.resources.pd, state.admin.in_flight), (0, 0));
    assert_eq!(driver.run(Duration::from_secs(10)), None);
    post_event(&mut driver, AenqGroup::Warning.into(), 0);
    assert!(driver.completion().is_none() && driver.event().is_none());
    driver.device.clear();
    driver.set_up();
    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(protocol_errors(&driver), 0);
}

#[test]
fn function_reset_clears_all_state() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.execute(&AllocPd {}).unwrap();
    driver.device.reset(&mut driver.world);
    assert_eq!(driver.device.state().resources.pd, 0);
    driver.reset(ResetReason::Normal);
    driver.set_up();
    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(protocol_errors(&driver), 0);
}

#[test]
fn reset_out_of_order() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.write(Register::DevCtl, 0);
    let restart = DevCtl {
        aq_restart: true,
        ..Default::default()
    };
    driver.write(Register::DevCtl, restart.into_raw());
    assert_eq!(protocol_errors(&driver), 2);
    let reset = DevCtl {
        dev_reset: true,
        reset_reason: 15,
        ..Default::default()
    };
    driver.write(Register::DevCtl, reset.into_raw());
    assert_eq!(protocol_errors(&driver), 3);
    assert_eq!(driver.device.state().resets, ["NORMAL", "15"]);
    // Until the reset ends, these writes are protocol errors.
    driver.write(Register::AqProdDb, 1);
    assert_eq!(protocol_errors(&driver), 4);
    driver.write(Register::IntrMask, 1);
    driver.write(Register::AqBaseLo, 0x1000);
    assert_eq!(protocol_errors(&driver), 6);
    assert!(driver.world.traced(&["AQ_BASE_LO during a reset"]));
}

#[test]
fn register_reads_are_counted() {
    let mut driver = Driver::new(Profile::Efa2);
    let before = driver.device.state().register_reads;
    driver.read(Register::Version);
    driver.read_raw(0x1000);
    assert_eq!(driver.device.state().register_reads, before + 2);
}

#[test]
fn doorbells() {
    let mut driver = Driver::new(Profile::Efa2);
    let size = driver.device.doorbell_bar_size();
    // A doorbell of a queue that does not exist, an offset beyond the BAR, and one between doorbells.
    for offset in [8, size, 2] {
        driver.device.write_doorbell(&mut driver.world, offset, 1);
    }
    let state = driver.device.state();
    assert_eq!((state.doorbells, state.protocol_errors), (1, 3));
}
