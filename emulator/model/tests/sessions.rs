// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Driver actions that are permitted or forbidden after a reset, or on a device that needs one.

use std::time::Duration;

use efa_hw::{
    admin::{
        Command, Status,
        ah::{CreateAh, DestroyAh},
        cq::DestroyCq,
        eq::DestroyEq,
        mr::{AllocMr, DeregMr},
        pd::{AllocPd, DeallocPd},
        qp::{DestroyQp, ModifyQp, QueryQp},
        uar::{AllocUar, DeallocUar},
    },
    aenq::AenqGroup,
    regs::{EqDb, Register, ResetReason},
};
use efa_model::{Death, Profile};
use efa_testing::{
    commands::{create_cq, create_eq, create_qp},
    mock::Driver,
};

fn start_over(driver: &mut Driver) {
    driver.reset(ResetReason::AdminTimeout);
    driver.set_up();
}

fn protocol_errors(driver: &Driver) -> u64 {
    driver.device.state().protocol_errors
}

/// One object of each kind, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Objects {
    pd: u16,
    uar: u16,
    eqn: u16,
    cq_idx: u16,
    qp_num: u16,
    ah: u16,
    l_key: u32,
    sq_doorbell: u64,
}

fn objects(driver: &mut Driver) -> Objects {
    let ring = driver.world.map(1);
    let pd = driver.execute(&AllocPd {}).unwrap().pd;
    let uar = driver.execute(&AllocUar {}).unwrap().uar;
    let eqn = driver.execute(&create_eq(ring)).unwrap().eqn;
    let cq_idx = driver.execute(&create_cq(uar, ring)).unwrap().cq_idx;
    let qp = driver.execute(&create_qp(pd, uar, cq_idx, ring)).unwrap();
    let dest_addr = [1; 16];
    let ah = driver.execute(&CreateAh { dest_addr, pd }).unwrap().ah;
    let max_pages = 1;
    let l_key = driver.execute(&AllocMr { pd, max_pages }).unwrap().l_key;
    Objects {
        pd,
        uar,
        eqn,
        cq_idx,
        qp_num: qp.qp_num,
        ah,
        l_key,
        sq_doorbell: qp.sq_db_offset.into(),
    }
}

/// Executes a command that has to fail. `is_error`: whether a correct driver never sends it.
fn fails(driver: &mut Driver, command: &impl Command, is_error: bool) {
    let before = protocol_errors(driver);
    let (status, _) = driver.execute_request(&command.to_request());
    assert_eq!(status, u8::from(Status::IllegalParameter));
    assert_eq!(protocol_errors(driver) - before, u64::from(is_error));
}

#[test]
fn objects_end_with_their_session() {
    let mut driver = Driver::new(Profile::Efa2);
    let old = objects(&mut driver);
    start_over(&mut driver);
    assert_eq!(driver.device.state().resources, Default::default());
    let ring = driver.world.map(1);
    let Objects {
        pd,
        uar,
        eqn,
        cq_idx,
        ah,
        l_key,
        ..
    } = old;
    let qp_handle = old.qp_num.into();
    fails(&mut driver, &DeallocPd { pd }, true);
    fails(&mut driver, &DeallocUar { uar }, true);
    fails(&mut driver, &DestroyEq { eqn }, true);
    fails(&mut driver, &DestroyCq { cq_idx }, true);
    fails(&mut driver, &DestroyQp { qp_handle }, true);
    fails(&mut driver, &QueryQp { qp_handle }, true);
    let modify = ModifyQp {
        qp_handle,
        ..Default::default()
    };
    fails(&mut driver, &modify, true);
    fails(&mut driver, &DestroyAh { ah, pd }, true);
    fails(&mut driver, &DeregMr { l_key }, true);
    // Commands that would use them are errors, too.
    fails(&mut driver, &create_qp(pd, uar, cq_idx, ring), true);
    assert!(
        driver
            .world
            .traced(&["protocol error: DESTROY_CQ for an object that a reset has destroyed"])
    );
    // A number that was never used is no protocol error, nor that of an object of this session that was destroyed.
    fails(&mut driver, &DeallocPd { pd: 99 }, false);
    // The same holds if an object that a reset has ended had this number.
    while driver.execute(&AllocPd {}).unwrap().pd != pd {}
    driver.execute(&DeallocPd { pd }).unwrap();
    fails(&mut driver, &DeallocPd { pd }, false);
}

#[test]
fn numbers_differ_in_the_next_session() {
    let mut driver = Driver::new(Profile::Efa2);
    let old = objects(&mut driver);
    start_over(&mut driver);
    let new = objects(&mut driver);
    let pairs = [
        (old.pd, new.pd),
        (old.uar, new.uar),
        (old.eqn, new.eqn),
        (old.cq_idx, new.cq_idx),
        (old.qp_num, new.qp_num),
        (old.ah, new.ah),
    ];
    assert!(pairs.iter().all(|(old, new)| old != new), "{pairs:?}");
    assert_ne!(old.l_key, new.l_key);
    // Numbers suffice for any number of sessions, and a reused one is valid.
    for _ in 0..300 {
        start_over(&mut driver);
        objects(&mut driver);
    }
    let all = objects(&mut driver);
    driver.execute(&DeregMr { l_key: all.l_key }).unwrap();
    assert_eq!(protocol_errors(&driver), 0);
    // Power-on clears the record of old numbers.
    driver.device.power_on(&mut driver.world);
    start_over(&mut driver);
    assert_eq!(objects(&mut driver), old);
}

#[test]
fn programs_may_ring_doorbells_of_destroyed_queues() {
    let mut driver = Driver::new(Profile::Efa2);
    let old = objects(&mut driver);
    let ring = |driver: &mut Driver| {
        let Driver { device, world, .. } = driver;
        device.write_doorbell(world, old.sq_doorbell, 1);
        let state = device.state();
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
}

#[test]
fn the_driver_may_not_ring_during_a_reset() {
    let mut driver = Driver::new(Profile::Efa2);
    let old = objects(&mut driver);
    driver.start_reset(ResetReason::AdminTimeout);
    let doorbell = EqDb {
        eqn: old.eqn,
        arm: true,
    };
    for (register, value) in [
        (Register::AqProdDb, 1),
        (Register::AenqConsDb, 0),
        (Register::EqDb, doorbell.into_raw()),
    ] {
        driver.write(register, value);
    }
    assert_eq!(protocol_errors(&driver), 3);
    driver.write(Register::DevCtl, 0);
    driver.set_response_address();
    driver.set_up();
    // Neither may it arm a queue that the reset has ended.
    driver.write(Register::EqDb, doorbell.into_raw());
    assert_eq!(protocol_errors(&driver), 4);
}

#[test]
fn commands_to_a_failed_device_are_counted() {
    let mut driver = Driver::new(Profile::Efa2);
    let now = driver.now;
    let fatal = AenqGroup::FatalError.into();
    driver.device.post_event(&mut driver.world, now, fatal, 0);
    driver.execute(&AllocPd {}).unwrap();
    driver.device.die(&mut driver.world, now, Death::default());
    driver.submit(&AllocPd {});
    let count = |driver: &Driver| driver.device.state().commands_when_fatal;
    assert_eq!(count(&driver), 2);
    // Commands to a device that died silently are not counted.
    start_over(&mut driver);
    let silent = Death {
        silent: true,
        ..Death::default()
    };
    driver.device.die(&mut driver.world, now, silent);
    driver.submit(&AllocPd {});
    assert_eq!(count(&driver), 2);
    assert_eq!(protocol_errors(&driver), 0);
}

#[test]
fn a_device_that_may_not_access_memory_is_no_fault_of_the_driver() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_keep_alive();
    driver.run(Duration::ZERO);
    driver.device.inject(
        serde_json::from_str(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50}}"#).unwrap(),
    );
    driver.submit(&AllocPd {});
    driver.world.dma_is_off = true;
    driver.run(Duration::from_secs(5));
    driver.start_reset(ResetReason::Shutdown);
    driver.world.dma_is_off = false;
    assert!(driver.completion().is_none() && driver.event().is_none());
    assert_eq!(protocol_errors(&driver), 0);
}
