// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Findings of reviews. A test of an unfixed one is ignored, and has an entry in `known.toml`.

use driver::{
    fault::{always, command as of_command, death, once, register, silence, status},
    program::{Objects, Program},
    rig::{self, Rig, SECOND},
};
use efa_hw::{admin::Opcode, regs::Register};
use efa_model::{Corruption, Death, FailedReset, Profile, Rule, Then};
use ib_core::{
    dmabuf,
    registry::{registrations, Reference},
    udata, umem,
};
use kernel::{
    error::Result,
    pci::slot::{Neighbour, Vote},
    sim::{self, Policy},
};

use crate::{die_and_write, no_interrupt};

/// Runs `f` without the final checks of the rig.
pub fn run_without_end(f: impl FnOnce(&mut Rig)) {
    rig::run_without_end(Profile::Efa3, Policy::Sequential, |mut rig| f(&mut rig));
}

/// As [`run_without_end`], with a device that is bound.
pub fn run_bound_without_end(f: impl FnOnce(&mut Rig)) {
    run_without_end(|rig| {
        rig.probe().unwrap();
        f(rig);
    });
}

fn refused_destroy_keeps_no_bar(opcode: Opcode) {
    run_bound_without_end(|rig| {
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

#[test]
fn a_queue_pair_whose_destruction_is_refused_keeps_no_bar() {
    refused_destroy_keeps_no_bar(Opcode::DestroyQp);
}

#[test]
fn a_region_whose_deregistration_is_refused_keeps_no_bar() {
    refused_destroy_keeps_no_bar(Opcode::DeregMr);
}

/// A dma-buf is revoked while the DMA of a dead device is disabled.
#[test]
fn a_halted_device_stays_halted() {
    run_bound_without_end(|rig| {
        let program = Program::new().unwrap();
        let pd = program.alloc_pd().unwrap();
        let buffer = dmabuf::export(1 << 20);
        program.register_dmabuf(pd, buffer, 1 << 20).unwrap();
        die_and_write(rig, 1000);
        sim::sleep(5 * SECOND);
        // This waits until the DMA of the device is disabled.
        dmabuf::revoke(buffer);
        sim::sleep(60 * SECOND);
        let writes = sim::memory::take_violations().len();
        assert_eq!(writes, 0, "stray writes to memory that was revoked");
    });
}

/// Probes a device that responds to commands as `then` says.
fn a_probe_ends_in_a_minute(opcode: Option<Opcode>, then: Then) {
    run_without_end(|rig| {
        rig.inject(always(of_command(opcode), then));
        let _ = rig.probe();
        assert!(
            sim::now() < 60 * SECOND,
            "the probe took {} s",
            sim::now() / SECOND
        );
    });
}

#[test]
fn a_probe_without_interrupts_fails_in_a_minute() {
    a_probe_ends_in_a_minute(None, no_interrupt());
}

#[test]
fn a_probe_has_one_time_limit() {
    a_probe_ends_in_a_minute(Some(Opcode::GetStats), silence());
}

/// A dma-buf in quarantine is attached to the device, whose managed resources are released first.
#[test]
fn a_dma_buffer_in_quarantine_does_not_outlive_its_action() {
    run_bound_without_end(|rig| {
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
        assert_eq!(kernel::take_warnings(), [""; 0]);
    });
}

/// The DMA of a dead device is disabled by its unbind. Then the device is bound again.
#[test]
fn a_device_is_reset_before_it_is_bus_master() {
    run_bound_without_end(|rig| {
        let objects = Objects::new().unwrap();
        die_and_write(rig, 1000);
        sim::sleep(100 * SECOND);
        drop(objects);
        rig.remove();
        let _ = rig.probe();
        let writes = sim::memory::take_violations().len();
        assert_eq!(writes, 0, "stray writes to memory that was freed");
    });
}

#[test]
fn a_reset_that_ends_with_a_fatal_error_has_failed() {
    run_without_end(|rig| {
        // The first three reads are: ready, reset in progress, reset at its end.
        let rule = Rule {
            skip: 3,
            ..always(
                register(Register::DevSts),
                Then {
                    value: Some(0x31),
                    ..Then::default()
                },
            )
        };
        rig.inject(rule);
        assert!(rig.probe().is_err(), "a device that has failed is used");
    });
}

/// The device executes a command, and completes it with an unknown status.
#[test]
fn an_unknown_status_is_no_refusal() {
    run_bound_without_end(|rig| {
        let program = Program::new().unwrap();
        // Offset and value of the status in a completion.
        let corrupt = vec![Corruption {
            offset: 2,
            value: 177,
        }];
        let then = Then {
            corrupt,
            ..Then::default()
        };
        rig.inject(once(of_command(Some(Opcode::CreateCq)), then, 0));
        assert!(program.create_cq(16, false, None).is_err());
        let known = sim::memory::take_violations();
        assert_eq!(known, [""; 0], "memory is freed that the device has");
    });
}

#[test]
fn refusals_without_end_do_not_keep_memory_without_end() {
    run_bound_without_end(|rig| {
        let program = Program::new().unwrap();
        rig.inject(always(of_command(Some(Opcode::DestroyCq)), status(5)));
        let mut kept = 0;
        while let Ok(cq) = program.create_cq(16, false, None) {
            program.process.destroy(cq.id).unwrap();
            kept += 1;
            assert!(kept < 100, "{kept} queues are in quarantine");
        }
        rig.check_quiet();
        assert_eq!(rig.state("last_reset").as_deref(), Some("memory_held"));
        assert_eq!(rig.state("quarantine").as_deref(), Some("0"));
    });
}

/// The device may have created the object of a failed command.
#[test]
fn nonsense_without_end_does_not_keep_memory_without_end() {
    run_bound_without_end(|rig| {
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

#[test]
fn a_device_that_fails_as_soon_as_it_is_used_is_given_up() {
    run_bound_without_end(|rig| {
        for _ in 0..1000 {
            if Program::new().is_ok() {
                rig.die(Death::default());
            }
            sim::sleep(SECOND / 10);
        }
        let resets = registrations() - 1;
        assert!(resets < 50, "{resets} resets in 100 s");
    });
}

/// The quarantine fails to allocate the record of a region.
#[test]
fn a_region_that_is_forgotten_keeps_no_bar() {
    for number in 0..40 {
        run_bound_without_end(|rig| {
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

/// A client holds a reference to a device that has failed. The machine shuts down.
#[test]
fn a_shutdown_does_not_wait_for_clients() {
    run_bound_without_end(|rig| {
        let reference = Reference::new();
        rig.die(Death::default());
        sim::sleep(SECOND);
        let start = sim::now();
        let client = sim::spawn("client", move || {
            sim::sleep(60 * SECOND);
            drop(reference);
        });
        rig.slot.shutdown();
        let took = (sim::now() - start) / SECOND;
        sim::join(client);
        assert!(took < 30, "the shutdown took {took} s");
    });
}

/// A client holds the device for longer than the bus waits, and releases it while the bus has the function.
#[test]
fn nothing_touches_a_function_that_the_bus_has() {
    for bus in [Rig::reset as fn(&Rig), Rig::sleep, Rig::hibernate, |rig| {
        rig.bus_error(false)
    }] {
        run_bound_without_end(|rig| {
            rig.slot.set_reset_time(2 * SECOND);
            let reference = Reference::new();
            let client = sim::spawn("client", move || {
                sim::sleep(11 * SECOND);
                drop(reference);
            });
            bus(rig);
            sim::join(client);
            assert_eq!(kernel::take_warnings(), [""; 0]);
        });
    }
}

/// The driver of another function behind the same port decides how the bus's recovery ends.
#[test]
fn each_recovery_of_the_bus_ends() {
    let answers = [
        Vote::None,
        Vote::NeedReset,
        Vote::Disconnect,
        Vote::NoDriver,
    ];
    let after_reset = [Vote::None, Vote::Disconnect];
    for (detected, slot_reset) in answers
        .iter()
        .flat_map(|one| after_reset.map(|two| (*one, two)))
    {
        for (is_fatal, resets) in [(true, true), (true, false), (false, true), (false, false)] {
            run_bound_without_end(|rig| {
                let neighbour = Neighbour {
                    detected,
                    slot_reset,
                };
                let case = (detected, slot_reset, is_fatal, resets);
                rig.shared_bus_error(is_fatal, neighbour, resets);
                sim::sleep(1000 * SECOND);
                let state = rig.state("state");
                let has_ended = matches!(state.as_deref(), Some("up" | "failed"));
                assert!(has_ended, "{state:?} after {case:?}");
                // The function may be left without its configuration.
                rig.reset();
                rig.check_quiet();
                assert_eq!(rig.state("state").as_deref(), Some("up"), "{case:?}");
                assert_eq!(kernel::take_warnings(), [""; 0], "{case:?}");
            });
        }
    }
}

/// A peer with the old key would access the new region.
#[test]
fn the_key_of_revoked_memory_stays_in_use() {
    run_without_end(|rig| {
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
        run_bound_without_end(|rig| {
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
        run_bound_without_end(|rig| {
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
