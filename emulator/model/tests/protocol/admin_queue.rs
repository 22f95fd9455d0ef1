// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue.

use efa_hw::admin::Command;
use efa_hw::{
    admin::{
        AqEntry, AqRequest, Opcode, Protocol, Status,
        pd::{AllocPd, DeallocPd},
    },
    regs::{AqCaps, EventRingCaps, Register, ResetReason},
};
use efa_model::Profile;
use efa_testing::mock::{self, DEPTH, Driver};

use super::{MS, post_event, protocol_errors, set};

/// More commands than fit into the queues and into the counter, so that both wrap.
#[test]
fn queues_wrap() {
    let mut driver = Driver::new(Profile::Efa2);
    for round in 0..70_000 {
        let response = driver.execute(&AllocPd {}).unwrap();
        driver.execute(&DeallocPd { pd: response.pd }).unwrap();
        assert_eq!(driver.world.take_interrupts(), [0, 0], "round {round}");
        driver.world.trace.clear();
    }
    assert_eq!(protocol_errors(&driver), 0);
    assert_eq!(driver.device.state().admin.completed, 140_000);
}

#[test]
fn invalid_rings() {
    let mut driver = Driver::new(Profile::Efa2);
    let aq = |depth, entry_size| AqCaps { depth, entry_size }.into_raw();
    let acq = |depth, entry_size, msix_vector| {
        EventRingCaps {
            depth,
            entry_size,
            msix_vector,
        }
        .into_raw()
    };
    let bad = [
        (Register::AqCaps, aq(0, 64)),
        (Register::AqCaps, aq(1, 64)),
        (Register::AqCaps, aq(33, 64)),
        (Register::AqCaps, aq(32, 63)),
        (Register::AqCaps, aq(32, 128)),
        (Register::AqCaps, aq(32768, 64)),
        (Register::AcqCaps, acq(32, 32, 0)),
        (Register::AcqCaps, acq(33, 64, 0)),
        (Register::AcqCaps, acq(32, 64, 33)),
        (Register::AenqCaps, acq(0, 64, 0)),
        (Register::AenqCaps, acq(512, 64, 0)),
    ];
    for (errors, (register, value)) in (1..).zip(bad) {
        driver.write(register, value);
        assert_eq!(protocol_errors(&driver), errors, "{register} {value:#x}");
    }
    driver.write(Register::AqBaseLo, 0x20);
    driver.write(Register::AqCaps, aq(32, 64));
    assert_eq!(protocol_errors(&driver), 12);
    // Without queues the doorbell has no effect.
    driver.write(Register::AqProdDb, 1);
    assert_eq!(protocol_errors(&driver), 13);
    assert_eq!(driver.device.state().admin.submitted, 0);
}

#[test]
fn wrong_phase() {
    let mut driver = Driver::new(Profile::Efa2);
    let (protocol, phase) = (driver.protocol, driver.phase());
    let entry = AqEntry::new(protocol, &AllocPd {}.to_request(), 5, !phase);
    driver.put(&entry);
    driver.ring();
    assert!(driver.completion().is_none());
    assert_eq!(protocol_errors(&driver), 1);
    assert!(driver.execute(&AllocPd {}).is_ok());
}

#[test]
fn too_many_commands() {
    let mut driver = Driver::new(Profile::Efa2);
    let rule = r#"{"when":{"opcode":"ANY"},"then":{"delay_ms":50}}"#;
    driver.device.inject(serde_json::from_str(rule).unwrap());
    for _ in 0..mock::DEPTH {
        driver.submit(&AllocPd {});
    }
    assert_eq!(protocol_errors(&driver), 0);
    assert_eq!(driver.device.state().admin.in_flight, 32);
    driver.submit(&AllocPd {});
    assert_eq!(protocol_errors(&driver), 1);
    assert_eq!(driver.device.state().admin.in_flight, 32);
    driver.write(Register::AqProdDb, 0xffff);
    assert_eq!(protocol_errors(&driver), 2);
    assert_eq!(driver.device.state().admin.max_in_flight, 32);
}

#[test]
fn queues_in_memory_that_is_not_mapped() {
    let mut driver = Driver::new(Profile::Efa2);
    let (aq, acq) = (driver.aq, driver.acq.base);
    driver.world.unmap(acq);
    driver.submit(&AllocPd {});
    assert_eq!(protocol_errors(&driver), 1);
    driver.world.unmap(aq);
    driver.write(Register::AqProdDb, 2);
    assert_eq!(protocol_errors(&driver), 2);
}

#[test]
fn delayed_commands_complete_in_order_of_their_time() {
    let mut driver = Driver::new(Profile::Efa2);
    let rule = r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50},"times":2}"#;
    driver.device.inject(serde_json::from_str(rule).unwrap());
    let slow = [driver.submit(&AllocPd {}), driver.submit(&AllocPd {})];
    let fast = driver.submit(&AllocPd {});
    assert_eq!(driver.completion().unwrap().0, fast);
    assert!(driver.completion().is_none());
    assert_eq!(driver.run(49 * MS), Some(driver.now + MS));
    assert!(driver.completion().is_none());
    assert_eq!(driver.world.take_interrupts(), [0]);
    assert_eq!(driver.run(MS), None);
    assert_eq!(driver.completion().unwrap().0, slow[0]);
    assert_eq!(driver.completion().unwrap().0, slow[1]);
    assert_eq!(driver.world.take_interrupts(), [0]);
    assert_eq!(driver.device.state().admin.max_in_flight, 3);
}

/// Commands that are submitted together take one round trip, separate ones take one each.
#[test]
fn round_trips() {
    let mut driver = Driver::new(Profile::Efa2);
    let rule = r#"{"when":{"opcode":"ANY"},"then":{"delay_ms":50}}"#;
    driver.device.inject(serde_json::from_str(rule).unwrap());
    let before = driver.device.state().admin;
    for _ in 0..3 {
        driver.submit(&AllocPd {});
    }
    driver.run(50 * MS);
    let admin = driver.device.state().admin;
    assert_eq!(admin.submitted, before.submitted + 3);
    assert_eq!(admin.round_trips, before.round_trips + 1);
    for _ in 0..3 {
        driver.submit(&AllocPd {});
        driver.run(50 * MS);
    }
    let admin = driver.device.state().admin;
    assert_eq!(admin.round_trips, before.round_trips + 4);
}

#[test]
fn masked_interrupts_are_not_lost() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.mask(true);
    driver.execute(&AllocPd {}).unwrap();
    assert!(driver.world.take_interrupts().is_empty());
    driver.mask(false);
    assert_eq!(driver.world.take_interrupts(), [0]);
    driver.mask(true);
    driver.mask(false);
    assert!(driver.world.take_interrupts().is_empty());

    // The same with a vector for each queue.
    driver.set_up_with_vectors(3, 5);
    driver.mask(true);
    driver.execute(&AllocPd {}).unwrap();
    driver.execute(&AllocPd {}).unwrap();
    post_event(&mut driver, 2, 0);
    assert!(driver.world.take_interrupts().is_empty());
    driver.mask(false);
    assert_eq!(driver.world.take_interrupts(), [3, 5]);
}

#[test]
fn invalid_commands() {
    for profile in [Profile::Efa2, Profile::Efa4] {
        let mut driver = Driver::new(profile);
        let good = AllocPd {}.to_request();
        for opcode in [0, 22, 255] {
            let request = AqRequest { opcode, ..good };
            let (status, _) = driver.execute_request(&request);
            assert_eq!(status, u8::from(Status::BadOpcode));
        }
        // The interface names this opcode without defining it.
        let opcode = Opcode::Service.into();
        let (status, _) = driver.execute_request(&AqRequest { opcode, ..good });
        assert_eq!(status, u8::from(Status::UnsupportedOpcode));
        // Every byte that is reserved in this command, and undefined flags.
        let entry_size = driver.protocol.entry_size();
        let after_header = (4..entry_size).map(|offset| (offset, 0x40));
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
        let state = driver.device.state();
        assert_eq!(state.protocol_errors, 0);
        assert_eq!(
            state.resources.pd,
            [0, 2][usize::from(profile == Profile::Efa4)]
        );
    }
}

/// A device of interface 0.3 executes no command whose checksum is wrong, or missing.
#[test]
fn checksums_of_commands() {
    let mut driver = Driver::new(Profile::Efa4);
    let expected: u8 = Status::MalformedRequest.into();
    let good = AllocPd {}.to_request();
    for bit in 0..1024 {
        // Except the phase and the id, by which the driver finds the completion.
        if bit == 24 || bit < 16 {
            continue;
        }
        let mut entry = driver.entry(&good);
        entry.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(driver.execute_entry(&entry).0, expected, "bit {bit}");
    }
    let errors = protocol_errors(&driver);
    assert_eq!(errors, 1024 - 17);
    let parts = ["protocol error: admin command", "has the wrong checksum"];
    assert!(driver.world.traced(&parts));

    let mut entry = driver.entry(&good);
    entry.bytes_mut()[4..6].fill(0);
    assert_eq!(driver.execute_entry(&entry).0, expected);
    let state = driver.device.state();
    assert_eq!((state.protocol_errors, state.resources.pd), (errors + 1, 0));

    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(protocol_errors(&driver), errors + 1);
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
        let ring = format!("AQ_CAPS {:#x} with base", (size << 16) | u32::from(DEPTH));
        assert!(driver.world.traced(&["protocol error: ", &ring]));
        let doorbell = "admin doorbell without admin queues";
        assert!(driver.world.traced(&[doorbell]));

        driver.reset(ResetReason::Normal);
        driver.set_up_for(right, 0, 0);
        assert!(driver.execute(&AllocPd {}).is_ok());
    }

    // The device expects the format of its version register.
    let mut driver = Driver::new(Profile::Efa3);
    set(&mut driver, r#"{"version":3}"#);
    assert!(driver.execute(&AllocPd {}).is_ok());
    driver.reset(ResetReason::Normal);
    driver.set_up_for(Protocol::V2, 0, 0);
    assert!(driver.execute(&AllocPd {}).is_ok());
    driver.device.clear();
    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(protocol_errors(&driver), 0);
}

/// Several rounds through the queue, in either format.
#[test]
fn rounds_of_each_protocol() {
    for profile in [Profile::Efa3, Profile::Efa4] {
        let mut driver = Driver::new(profile);
        for _ in 0..3 * DEPTH {
            let pd = driver.execute(&AllocPd {}).unwrap().pd;
            driver.execute(&DeallocPd { pd }).unwrap();
        }
        assert_eq!(protocol_errors(&driver), 0);
    }
}
