// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue.

use super::*;

/// More commands than fit into the queues and into the counter, so that both wrap; and several rounds in the newest format.
#[test]
fn queues_wrap() {
    for (profile, rounds) in [
        (Profile::Efa2, 70_000),
        (Profile::Efa4, 3 * u64::from(AQ_DEPTH)),
    ] {
        let mut driver = Driver::new(profile);
        for round in 0..rounds {
            let pd = driver.execute(&AllocPd {}).unwrap().pd;
            driver.execute(&DeallocPd { pd }).unwrap();
            assert_eq!(driver.world.take_interrupts(), [0, 0], "round {round}");
            driver.world.trace.clear();
        }
        assert_eq!(driver.errors(), 0);
        assert_eq!(driver.device.state().admin.completed, 2 * rounds);
    }
}

#[test]
fn invalid_rings() {
    use Register::{AcqCaps, AenqCaps, AqBaseLo, AqCaps, AqProdDb};

    let mut driver = Driver::new(Profile::Efa2);
    let ring = |depth: u32, entry_size: u32| depth | (entry_size << 16);
    for (register, value, errors) in [
        (AqCaps, ring(0, 64), 1),
        (AqCaps, ring(1, 64), 2),
        (AqCaps, ring(33, 64), 3),
        (AqCaps, ring(32, 63), 4),
        (AqCaps, ring(32, 128), 5),
        (AqCaps, ring(32768, 64), 6),
        (AcqCaps, ring(32, 32), 7),
        (AcqCaps, ring(33, 64), 8),
        (AcqCaps, ring(32, 64) | (33 << 24), 9),
        (AenqCaps, ring(0, 64), 10),
        (AenqCaps, ring(512, 64), 11),
        // An unaligned address is seen once the ring is complete.
        (AqBaseLo, 0x20, 11),
        (AqCaps, ring(32, 64), 12),
        // Without queues the doorbell has no effect.
        (AqProdDb, 1, 13),
    ] {
        driver.write(register, value);
        assert_eq!(driver.errors(), errors, "{register} {value:#x}");
    }
    assert_eq!(driver.device.state().admin.submitted, 0);
}

#[test]
fn protocol_errors_of_submissions() {
    let mut driver = Driver::new(Profile::Efa2);
    let request = AllocPd {}.to_request();
    driver.submit_entry(&AqEntry::new(driver.protocol, &request, 5, !driver.phase()));
    assert!(driver.completion().is_none());
    assert_eq!(driver.errors(), 1, "the wrong phase");
    assert!(driver.execute(&AllocPd {}).is_ok());

    // More commands than the queue has entries.
    driver.inject(SLOW);
    for _ in 0..AQ_DEPTH {
        driver.submit(&AllocPd {});
    }
    for (errors, value) in [
        (1, None),
        (2, Some(u32::from(AQ_DEPTH) + 3)),
        (3, Some(0xffff)),
    ] {
        value
            .into_iter()
            .for_each(|value| driver.write(Register::AqProdDb, value));
        let state = driver.device.state();
        assert_eq!((state.protocol_errors, state.admin.in_flight), (errors, 32));
        assert_eq!(state.admin.max_in_flight, 32);
    }

    // Queues in memory that is not mapped.
    driver.device.clear();
    driver.start_over();
    let (aq, acq) = (driver.aq, driver.acq.base);
    driver.world.unmap(acq);
    driver.submit(&AllocPd {});
    assert_eq!(driver.errors(), 4);
    driver.world.unmap(aq);
    driver.write(Register::AqProdDb, 2);
    assert_eq!(driver.errors(), 5);
}

#[test]
fn delayed_commands_complete_in_order_of_their_time() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.inject(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50},"times":2}"#);
    let [first, second, fast] = [(); 3].map(|()| driver.submit(&AllocPd {}));
    assert_eq!(driver.completed(), [fast]);
    assert_eq!(driver.run(49 * MS), Some(driver.now + MS));
    assert!(driver.completion().is_none());
    assert_eq!(driver.world.take_interrupts(), [0]);
    assert_eq!(driver.run(MS), None);
    assert_eq!(driver.completed(), [first, second]);
    assert_eq!(driver.world.take_interrupts(), [0]);
    assert_eq!(driver.device.state().admin.max_in_flight, 3);
}

/// Commands that are submitted together take one round trip, separate ones take one each.
#[test]
fn round_trips() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.inject(SLOW);
    let before = driver.device.state().admin;
    for (together, round_trips) in [(true, 1), (false, 4)] {
        for _ in 0..3 {
            driver.submit(&AllocPd {});
            driver.run(if together { Duration::ZERO } else { 50 * MS });
        }
        driver.run(50 * MS);
        let admin = driver.device.state().admin;
        assert_eq!(admin.round_trips, before.round_trips + round_trips);
    }
    assert_eq!(driver.device.state().admin.submitted, before.submitted + 6);
}

#[test]
fn masked_interrupts_are_not_lost() {
    let mut driver = Driver::new(Profile::Efa2);
    // Also with a vector for each queue.
    for (vectors, events) in [((0, 0), 0), ((3, 5), 1)] {
        driver.set_up_with_vectors(vectors.0, vectors.1);
        driver.mask(true);
        driver.execute(&AllocPd {}).unwrap();
        driver.execute(&AllocPd {}).unwrap();
        (0..events).for_each(|_| driver.post_event(2, 0));
        assert!(driver.world.take_interrupts().is_empty());
        driver.mask(false);
        let expected = [vectors.0, vectors.1].map(u16::from);
        assert_eq!(driver.world.take_interrupts(), expected[..1 + events]);
        driver.mask(true);
        driver.mask(false);
        assert!(driver.world.take_interrupts().is_empty());
    }
}

#[test]
fn invalid_commands() {
    for (profile, pds) in [(Profile::Efa2, 0), (Profile::Efa4, 2)] {
        let mut driver = Driver::new(profile);
        let good = AllocPd {}.to_request();
        // The interface names the last opcode without defining it.
        for (opcode, expected) in [
            (0, Status::BadOpcode),
            (22, Status::BadOpcode),
            (255, Status::BadOpcode),
            (Opcode::Service.into(), Status::UnsupportedOpcode),
        ] {
            let (status, _) = driver.execute_request(&AqRequest { opcode, ..good });
            assert_eq!(status, u8::from(expected), "opcode {opcode}");
        }
        // Every byte that is reserved in this command, and undefined flags.
        let after_header = (4..driver.protocol.entry_size()).map(|offset| (offset, 0x40));
        for (offset, bits) in after_header.chain([(3, 0b10), (3, 0b1000), (1, 0x10)]) {
            let mut entry = driver.entry(&good);
            entry.bytes_mut()[offset] |= bits;
            entry.update_checksum();
            let (status, _) = driver.execute_entry(&entry);
            let is_checksum = driver.protocol == Protocol::V2 && matches!(offset, 4 | 5);
            let expected = if is_checksum {
                Status::Success
            } else {
                Status::MalformedRequest
            };
            assert_eq!(status, u8::from(expected), "{profile:?}, byte {offset}");
        }
        assert_eq!((driver.errors(), driver.counts().pd), (0, pds));
    }
}

/// A device of interface 0.3 executes no command whose checksum is wrong, or missing.
#[test]
fn checksums_of_commands() {
    let mut driver = Driver::new(Profile::Efa4);
    let good = AllocPd {}.to_request();
    // Each bit except the phase and the id, by which the driver finds the completion.
    let bits = (16..1024).filter(|bit| *bit != 24).map(Some);
    for (errors, bit) in (1..).zip(bits.chain([None])) {
        let mut entry = driver.entry(&good);
        match bit {
            Some(bit) => entry.bytes_mut()[bit / 8] ^= 1 << (bit % 8),
            None => entry.bytes_mut()[4..6].fill(0),
        }
        let (status, _) = driver.execute_entry(&entry);
        assert_eq!(status, u8::from(Status::MalformedRequest), "bit {bit:?}");
        assert_eq!((driver.errors(), driver.counts().pd), (errors, 0));
    }
    let parts = ["protocol error: admin command", "has the wrong checksum"];
    assert!(driver.world.traced(&parts));
    assert!(driver.execute(&AllocPd {}).is_ok());
}

/// A driver and a device that disagree on the format of commands: no queue, and no completion.
#[test]
fn entries_of_another_protocol() {
    for (profile, other, size) in [
        (Profile::Efa4, Protocol::V1, 0x40),
        (Profile::Efa3, Protocol::V2, 0x80),
    ] {
        let mut driver = Driver::new(profile);
        let right = driver.protocol;
        driver.reset(ResetReason::Normal);
        driver.set_up_for(other, 0, 0);
        driver.submit(&AllocPd {});
        assert!(driver.completion().is_none());
        let state = driver.device.state();
        assert_eq!((state.protocol_errors, state.admin.submitted), (2, 0));
        let ring = format!(
            "AQ_CAPS {:#x} with base",
            (size << 16) | u32::from(AQ_DEPTH)
        );
        assert!(driver.world.traced(&["protocol error: ", &ring]));
        assert!(
            driver
                .world
                .traced(&["admin doorbell without admin queues"])
        );
        driver.protocol = right;
        driver.start_over();
        assert!(driver.execute(&AllocPd {}).is_ok());
    }

    // The device expects the format of its version register.
    let mut driver = Driver::new(Profile::Efa3);
    driver.set(r#"{"version":3}"#);
    assert!(driver.execute(&AllocPd {}).is_ok());
    driver.protocol = Protocol::V2;
    driver.start_over();
    assert!(driver.execute(&AllocPd {}).is_ok());
    driver.device.clear();
    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(driver.errors(), 0);
}
