// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A halt, the destruction of objects, a revocation, an unregistration, a shutdown and resets by the bus, at the same time.

use driver::{
    client::{Objects, Ulp, DIRECT},
    fault::death,
};
use efa_model::{FailedReset, Host};
use ib_core::{client, dmabuf};

use super::*;
use crate::{counter, die_and_write};

/// What happens to the function.
type Bus = fn(&mut Rig);

/// Searches a device that stops answering while a program destroys a region, an exporter revokes another one, and `bus` runs.
fn halts(property: &str, bus: Bus, check: fn(&Rig)) {
    explore(property, Profile::Efa3, ONE, move |rig| {
        let (program, pd) = program();
        let (one, other) = (dmabuf::export(4096), dmabuf::export(4096));
        let (region, _) = program.register_dmabuf(pd, one, 4096).unwrap();
        program.register_dmabuf(pd, other, 4096).unwrap();
        rig.inject(always(of_command(None), silence()));
        let destroyer = program.clone();
        let tasks = [
            sim::spawn("destroyer", move || {
                let _ = destroyer.process.destroy(region);
            }),
            sim::spawn("revoker", move || dmabuf::revoke(other)),
        ];
        together(tasks, || bus(rig));
        rig.heal();
        check(rig);
        drop(program);
    });
}

/// Both tasks, and the monitor, find that the device does not answer.
#[test]
fn a_device_is_halted_once() {
    halts(
        "halts",
        |_| (),
        |rig| {
            go_on();
            rig.check_quiet();
            assert_eq!(counter("resets"), 1);
            // The device does not answer the commands of the start either, so that others follow.
            let resets = rig.device().resets;
            let halts = resets.iter().filter(|reason| *reason == "ADMIN_TO");
            assert_eq!(halts.count(), 1, "{resets:?}");
            comes_back(rig);
        },
    );
}

#[test]
fn halts_end_whatever_the_bus_does() {
    for (property, bus) in [
        (
            "halts and a recovery",
            (|rig| rig.die(Death::default())) as Bus,
        ),
        ("halts and a reset", |rig| rig.reset()),
        ("halts and a removal", |rig| rig.remove()),
        ("halts and an error", |rig| rig.bus_error(false)),
    ] {
        halts(property, bus, |rig| {
            go_on();
            if rig.slot.is_bound() {
                rig.check_quiet();
            }
        });
    }
}

/// A device that reports a fatal error, or was reset, gets no command before it was reset and started.
#[test]
fn no_command_reaches_a_halted_device() {
    explore("commands of a halt", Profile::Efa3, ONE, |rig| {
        let (program, _) = program();
        let tasks = [(); 2].map(|()| {
            let program = program.clone();
            sim::spawn("thread", move || {
                for _ in 0..2 {
                    if let Ok(pd) = program.alloc_pd() {
                        let _ = program.process.destroy(pd);
                    }
                }
            })
        });
        let before = rig.device().admin.submitted;
        together(tasks, || rig.reset());
        assert!(rig.device().admin.submitted >= before);
        assert_eq!(rig.device().protocol_errors, 0);
        drop(program);
        comes_back(rig);
    });
}

/// A dead device writes to memory until its second reset. Its programs end, and its function is reset.
fn writes_on(property: &str, profile: Profile, bus: Bus) {
    explore(property, profile, ONE, move |rig| {
        // The device writes on while the bus resets it.
        rig.slot.set_reset_time(2 * SECOND);
        let objects = program::Objects::new().unwrap();
        die_and_write(rig, 2);
        let task = sim::spawn("program", move || drop(objects));
        together([task], || bus(rig));
        rig.heal();
    });
}

#[test]
fn memory_is_freed_after_the_device_was_stopped() {
    writes_on("memory and a halt", Profile::Efa3, |_| sim::sleep(SECOND));
}

#[test]
fn memory_is_freed_after_the_bus_has_reset_the_device() {
    writes_on("memory and a reset", Profile::Efa3, |rig| rig.reset());
}

#[test]
fn memory_is_freed_after_a_removal_has_stopped_the_device() {
    writes_on("memory and a removal", Profile::Efa3, |rig| rig.remove());
}

/// No reset of the dead device succeeds. The bounds are in the guide of threats.
#[test]
fn each_call_of_the_bus_ends() {
    for (name, bus) in [
        ("reset", (|rig| rig.reset()) as Bus),
        ("error of the bus", |rig| rig.bus_error(false)),
        ("removal", |rig| rig.remove()),
    ] {
        explore(name, Profile::Efa2, ONE, move |rig| {
            let (program, _) = program();
            rig.die(death(u32::MAX, FailedReset::NeverEnds));
            let task = sim::spawn("thread", move || {
                let _ = program.alloc_pd();
            });
            let start = sim::now();
            together([task], || bus(rig));
            assert!(
                sim::now() - start < 100 * SECOND,
                "{} ns",
                sim::now() - start
            );
            rig.heal();
        });
    }
}

/// The recovery has begun to start the device, which does not answer, when the bus resets it. The bus waits 10 s for the next start.
#[test]
fn a_start_ends_when_the_bus_takes_the_function() {
    explore("start and reset", Profile::Efa2, ONE, |rig| {
        rig.inject(always(of_command(None), silence()));
        rig.event(AenqGroup::FatalError.into(), 1);
        sim::sleep(SECOND);
        let start = sim::now();
        together([], || rig.reset());
        assert!(
            sim::now() - start < 20 * SECOND,
            "{} ns",
            sim::now() - start
        );
        comes_back(rig);
    });
}

/// The emulated bus warns about each access to a function that it has.
#[test]
fn nothing_accesses_a_function_that_the_bus_resets() {
    explore("accesses", Profile::Efa2, ONE, |rig| {
        let (program, _) = program();
        let (other, shared) = (program.clone(), rig.shared.clone());
        let tasks = [
            sim::spawn("thread", move || {
                let _ = other.alloc_pd();
            }),
            sim::spawn("events", move || {
                shared.with(|device, machine, now| {
                    device.post_event(machine, now, AenqGroup::Warning.into(), 0)
                });
            }),
        ];
        together(tasks, || rig.reset());
        drop(program);
        comes_back(rig);
    });
}

#[test]
fn a_function_is_no_bus_master_after_a_shutdown() {
    halts(
        "shutdown",
        |rig| rig.slot.shutdown(),
        |rig| {
            sim::sleep(100 * SECOND);
            assert!(!rig.shared.with(|_, machine, _| machine.is_bus_master()));
        },
    );
}

/// A client drains its queue pair while the device dies and is unregistered.
#[test]
fn a_client_ends_while_its_device_is_halted() {
    explore("client and halt", Profile::Efa3, ONE, |rig| {
        let ulp = Ulp::new(|device| Objects::new(device, DIRECT), true);
        let number = client::register_client(ulp.clone());
        ulp.with(|objects| {
            (0..2)
                .try_for_each(|_| objects.post_message(false))
                .unwrap()
        });
        rig.die(Death::default());
        together([], || client::unregister_client(number));
        comes_back(rig);
    });
}
