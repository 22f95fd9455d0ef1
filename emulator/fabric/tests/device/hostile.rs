// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Arbitrary behaviour of guests: nothing panics, and work and memory stay bounded.

use efa_testing::attack::{control_path, programs};
use proptest::{collection::vec, prelude::*};

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    #[test]
    fn bytes(data in vec(any::<u8>(), 0..4096)) {
        control_path::play(&data);
    }

    /// Programs that do anything to their queues.
    #[test]
    fn programs(data in vec(any::<u8>(), 0..4000)) {
        programs::play(&data);
    }

    /// Every command with random content and without reserved flags has one completion.
    #[test]
    fn commands(opcode in 0_u8..32, flags in 0_u8..8, body in vec(any::<u8>(), 60)) {
        for profile in [Profile::Efa3, Profile::Efa4] {
            let mut driver = Driver::with(control_path::config(profile));
            let control = AqFlags::from_raw(flags);
            let payload = body.clone().try_into().unwrap();
            driver.submit_request(&AqRequest { opcode, control, payload });
            prop_assert_eq!(driver.completed().len(), 1);
            prop_assert!(driver.errors() <= 1);
            prop_assert_eq!(driver.counts().cq, 0);
        }
    }
}

/// Deep rings and many commands in one doorbell.
#[test]
fn largest_queue() {
    let mut driver = Driver::new(Profile::Efa2);
    let base = driver.world.map(4);
    let acq = driver.world.map(4);
    for (register, value) in [
        (Register::AqBaseLo, base as u32),
        (Register::AqCaps, (64 << 16) | 256),
        (Register::AcqBaseLo, acq as u32),
        (Register::AcqCaps, (64 << 16) | 256),
    ] {
        driver.write(register, value);
    }
    for index in 0..256 {
        let entry = AqEntry::new(Protocol::V1, &AllocPd {}.to_request(), index, true);
        let at = base + u64::from(index) * 64;
        driver.world.store(at, entry.bytes());
    }
    driver.write(Register::AqProdDb, 256);

    // The device executes 32 commands in a call, and is due again at once for the others.
    let mut calls = 1;
    loop {
        let admin = driver.device.state().admin;
        assert_eq!(admin.completed, 32 * calls);
        assert_eq!(admin.in_flight as u64, 256 - admin.completed);
        if admin.in_flight == 0 {
            break;
        }
        let due = driver.run(Duration::ZERO);
        calls += 1;
        assert_eq!(due == Some(driver.now), calls < 8);
    }
    let state = driver.device.state();
    assert_eq!((state.admin.completed, state.resources.pd), (256, 256));
    // The driver waited once for all of them.
    assert_eq!(state.admin.round_trips, 1);
    assert_eq!((state.admin.max_in_flight, state.protocol_errors), (256, 0));
}

/// A flush is bounded by the queues of its command, and no other command is executed in the same call.
#[test]
fn commands_that_flush() {
    const RECEIVES: u16 = 4096;
    let mut driver = Driver::new(Profile::Efa2);
    let (cq, rq) = (driver.world.map(1), driver.world.map(16));
    let pd = driver.execute(&AllocPd {}).unwrap().pd;
    let uar = driver.execute(&AllocUar {}).unwrap().uar;
    let cq_idx = driver.execute(&create_cq(uar, cq)).unwrap().cq_idx;
    // Each descriptor is a work request.
    for index in 0..u64::from(RECEIVES) {
        driver.world.store(rq + index * 16 + 12, &[0, 0, 0, 0xc0]);
    }
    let create = CreateQp {
        recv_queue_ring_size: u32::from(RECEIVES) * 16,
        recv_queue_depth: RECEIVES.into(),
        ..create_qp(pd, uar, cq_idx, rq)
    };
    let mut commands = Vec::new();
    for _ in 0..3 {
        let made = driver.execute(&create).unwrap();
        let mut command = to_state(made.qp_handle, QpState::Init);
        driver.execute(&command).unwrap();
        let Driver { device, world, .. } = &mut driver;
        device.write_doorbell(world, made.rq_db_offset.into(), RECEIVES.into());
        command.qp_state = QpState::Err.into();
        commands.push(command);
    }
    let before = driver.device.state().admin.completed;
    for command in &commands {
        let entry = driver.entry(&command.to_request());
        driver.put(&entry);
    }
    for call in 1..=3 {
        assert_eq!(driver.errors(), 0);
        driver.world.dma_bytes = 0;
        if call == 3 {
            driver.world.unmap(cq);
            driver.world.trace.clear();
        }
        if call == 1 {
            driver.ring();
        } else {
            driver.run(Duration::ZERO);
        }
        assert_eq!(driver.device.state().admin.completed, before + call);
        assert!(driver.world.dma_bytes < usize::from(RECEIVES) * (16 + 32) + 256);
    }

    // No completion could be written. All of these errors are counted, and 64 of them are traced.
    let errors = driver.errors();
    assert_eq!(errors, u64::from(RECEIVES));
    assert_eq!(driver.world.trace.len(), 64 + 1);
}
