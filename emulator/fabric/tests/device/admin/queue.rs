// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue.

use super::*;

/// More commands than fit into the queues and into the counter, so that both wrap; and several rounds in the newest format.
#[test]
fn queues_wrap() {
    for (profile, rounds) in [(Profile::Efa2, 70_000), (Profile::Efa4, 3 * u64::from(AQ_DEPTH))] {
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
fn commands_with_the_wrong_phase() {
    let mut driver = Driver::new(Profile::Efa2);
    let request = AllocPd {}.to_request();
    driver.submit_entry(&AqEntry::new(driver.protocol, &request, 5, !driver.phase()));
    assert!(driver.completion().is_none());
    assert_eq!(driver.errors(), 1);
    assert!(driver.execute(&AllocPd {}).is_ok());
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
            let expected = if is_checksum { Status::Success } else { Status::MalformedRequest };
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
    for (profile, other, size) in [(Profile::Efa4, Protocol::V1, 0x40), (Profile::Efa3, Protocol::V2, 0x80)] {
        let mut driver = Driver::new(profile);
        let right = driver.protocol;
        driver.reset(ResetReason::Normal);
        driver.protocol = other;
        driver.set_up();
        driver.submit(&AllocPd {});
        assert!(driver.completion().is_none());
        let state = driver.device.state();
        assert_eq!((state.protocol_errors, state.admin.submitted), (2, 0));
        let ring = format!("AQ_CAPS {:#x} with base", (size << 16) | u32::from(AQ_DEPTH));
        assert!(driver.world.traced(&["protocol error: ", &ring]));
        assert!(driver.world.traced(&["admin doorbell without admin queues"]));
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
