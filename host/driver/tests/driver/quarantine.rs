// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that a device may still have, and refusals, which are counted.

use driver::{
    fault::{always, command as of_command, death, once, status, then},
    program::{Objects, Program},
    rig::SECOND,
};
use efa_hw::admin::Opcode;
use efa_model::{FailedReset, Profile};
use ib_core::{dmabuf, udata, umem};
use kernel::{error::Result, sim};

use crate::{run_bound_with, run_with};

#[test]
fn an_object_whose_destruction_is_refused_keeps_no_bar() {
    for opcode in [Opcode::DestroyQp, Opcode::DeregMr] {
        run_bound_with(Profile::Efa3, |rig| {
            let objects = Objects::new().unwrap();
            rig.inject(always(of_command(Some(opcode)), status(5)));
            drop(objects);
            assert_ne!(rig.state("quarantine").as_deref(), Some("0"));
            rig.heal();
            rig.remove();
            assert_eq!(rig.slot.regions(), 0, "BARs that stay reserved");
            assert_eq!(rig.probe(), Ok(()));
        });
    }
}

/// A dma-buf in quarantine is attached to the device, whose managed resources are released first.
#[test]
fn a_dma_buffer_in_quarantine_does_not_outlive_its_action() {
    run_bound_with(Profile::Efa3, |rig| {
        let program = Program::new().unwrap();
        let pd = program.alloc_pd().unwrap();
        program
            .register_dmabuf(pd, dmabuf::export(1 << 16), 1 << 16)
            .unwrap();
        rig.die(death(u32::MAX, FailedReset::NeverStarts));
        let _ = program.alloc_pd();
        sim::sleep(100 * SECOND);
        drop(program);
        rig.remove();
    });
}

/// The device executes a command, and completes it with an unknown status. It has the memory, which is not freed.
#[test]
fn an_unknown_status_is_no_refusal() {
    run_bound_with(Profile::Efa3, |rig| {
        let program = Program::new().unwrap();
        // The status of the completion.
        let unknown = then(r#"{"corrupt": [{"offset": 2, "value": 177}]}"#);
        rig.inject(once(of_command(Some(Opcode::CreateCq)), unknown, 0));
        assert!(program.create_cq(16, false, None).is_err());
    });
}

/// The device may have created the object of a failed command.
#[test]
fn nonsense_without_end_does_not_keep_memory_without_end() {
    run_bound_with(Profile::Efa3, |rig| {
        let program = Program::new().unwrap();
        rig.inject(always(of_command(Some(Opcode::CreateCq)), status(177)));
        for _ in 0..100 {
            assert!(program.create_cq(16, false, None).is_err());
        }
        drop(program);
        rig.check_quiet();
        assert_eq!(rig.state("last_reset").as_deref(), Some("memory_held"));
        assert_eq!(rig.state("quarantine").as_deref(), Some("0"));
    });
}

/// The quarantine fails to allocate the record of a region.
#[test]
fn a_region_that_is_forgotten_keeps_no_bar() {
    for number in 0..40 {
        run_bound_with(Profile::Efa3, |rig| {
            let objects = Objects::new().unwrap();
            rig.die(death(u32::MAX, FailedReset::NeverStarts));
            sim::sleep(SECOND);
            sim::fail_allocation(Some(number));
            sim::sleep(100 * SECOND);
            sim::fail_allocation(None);
            drop(objects);
            rig.remove();
            assert_eq!(rig.slot.regions(), 0, "BARs that stay reserved");
        });
    }
}

/// A peer with the old key would access the new region.
#[test]
fn the_key_of_revoked_memory_stays_in_use() {
    run_with(Profile::Efa3, |rig| {
        // With few numbers, each is soon reused.
        rig.set(r#"{"max_mr": 3}"#);
        rig.probe().unwrap();
        let program = Program::new().unwrap();
        let pd = program.alloc_pd().unwrap();
        let buffer = dmabuf::export(1 << 16);
        let (revoked, key) = program.register_dmabuf(pd, buffer, 1 << 16).unwrap();
        dmabuf::revoke(buffer);
        let other = dmabuf::export(1 << 16);
        let keys = || -> Vec<_> {
            let one = |_| {
                let (mr, key) = program.register_dmabuf(pd, other, 1 << 16).unwrap();
                program.process.destroy(mr).unwrap();
                key
            };
            (0..300).map(one).collect()
        };
        assert!(!keys().contains(&key), "a key has two regions");
        program.process.destroy(revoked).unwrap();
        assert!(keys().contains(&key), "a key is lost");
    });
}

/// Returns how often `call` fails with its first error: until the device is halted because of it.
fn failures(call: impl Fn() -> Result<u32>) -> usize {
    let mut results = (0..1000).map(|_| call().unwrap_err());
    let first = results.next();
    1 + results.take_while(|error| Some(*error) == first).count()
}

/// Each failed registration is one refusal, with and without a list of pages.
#[test]
fn a_failed_registration_counts_once() {
    for pages in [1, 32] {
        run_bound_with(Profile::Efa3, |rig| {
            umem::set_in_pieces(true);
            let program = Program::new().unwrap();
            let pd = program.alloc_pd().unwrap();
            let length = pages << 12;
            let memory = umem::Memory::new(length);
            rig.inject(always(of_command(Some(Opcode::RegMr)), status(177)));
            let register = || program.register(pd, memory.address(), length as u64);
            let failures = failures(|| register().map(|(id, _)| id));
            assert_eq!(failures, 65, "{pages} pages");
        });
    }
}

/// A program with unwritable outputs would use up the numbers of the device.
#[test]
fn refusals_to_undo_are_counted() {
    for opcode in [Opcode::DeallocPd, Opcode::DeallocUar] {
        run_bound_with(Profile::Efa3, |rig| {
            let program = Program::new().unwrap();
            rig.inject(always(of_command(Some(opcode)), status(5)));
            udata::set_unwritable(true);
            let call = || match opcode {
                Opcode::DeallocPd => program.alloc_pd(),
                _ => Program::new().map(|_| 0),
            };
            assert_eq!(failures(call), 65, "{opcode:?}");
        });
    }
}
