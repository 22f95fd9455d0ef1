// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Halting a device: tasks that wait for it, actions of the device meanwhile, and the restart.

use std::{cell::Cell, rc::Rc};

use driver::{
    client,
    fault::{always, command as of_command, death, once, register, silence, status, then},
    program::{Objects, Program},
    rig::{Rig, SECOND},
};
use efa_hw::{admin::Opcode, aenq::AenqGroup, regs::Register};
use efa_model::{Death, FailedReset, Profile, Then, When};
use ib_core::{
    dmabuf,
    registry::{registered, registrations, Reference},
};
use kernel::{
    error::code::{EIO, ENODEV},
    module,
    pci::slot::Neighbour,
    sim,
};

use crate::{
    command, die_and_write, no_interrupt, run, run_bound, run_bound_as, run_bound_with, run_with,
    traced,
};

/// Times a bus callback, in seconds, while a client holds a reference to a failed device.
fn while_a_client_holds_it(bus: impl FnOnce(&mut Rig)) -> u64 {
    run_bound(|rig| {
        let program = Program::new().unwrap();
        let reference = Reference::new();
        rig.die(Death::default());
        sim::sleep(SECOND);
        let client = sim::spawn("client", move || {
            sim::sleep(100 * SECOND);
            drop(reference);
        });
        let start = sim::now();
        bus(rig);
        let took = sim::now() - start;
        assert_eq!(program.alloc_pd(), Err(EIO));
        sim::join(client);
        drop(program);
        took / SECOND
    })
}

#[test]
fn the_bus_does_not_wait_for_clients() {
    assert!(while_a_client_holds_it(|rig| rig.slot.shutdown()) < 10);
    for bus in [
        Rig::reset as fn(&Rig),
        Rig::sleep,
        |rig| rig.bus_error(false),
        |rig| rig.bus_error(true),
    ] {
        let took = while_a_client_holds_it(|rig| bus(rig));
        assert!((10..30).contains(&took), "{took} s");
    }
}

/// The recovery waits for the reference of the client.
#[test]
fn a_device_comes_back_when_its_client_releases_it() {
    run_bound(|rig| {
        let reference = Reference::new();
        rig.reset();
        assert_eq!(rig.state("state").as_deref(), Some("resetting"));
        drop(reference);
        rig.check_quiet();
        assert!(command().0.is_ok());
        assert_eq!(registrations(), 2);
    });
}

/// A client takes long to add a recovered device. The bus resets the device meanwhile.
#[test]
fn a_device_that_the_bus_has_halted_while_it_came_back_is_not_up() {
    run(|rig| {
        let added = Cell::new(0);
        let add = move |device| {
            added.set(added.get() + 1);
            if added.get() == 2 {
                sim::sleep(60 * SECOND);
            }
            client::Objects::new(device, client::DIRECT)
        };
        let number = ib_core::client::register_client(client::Ulp::new(add, false));
        rig.probe().unwrap();
        rig.die(Death::default());
        sim::sleep(SECOND);
        // The client is not ready before both callbacks have returned.
        rig.reset();
        sim::sleep(60 * SECOND);
        rig.check_quiet();
        assert!(command().0.is_ok());
        ib_core::client::unregister_client(number);
    });
}

/// The bus resets a dead device, which takes 65 s. A program ends meanwhile.
#[test]
fn a_reset_by_the_bus_may_take_a_minute() {
    run(|rig| {
        rig.slot.set_reset_time(65 * SECOND);
        rig.probe().unwrap();
        let objects = Objects::new().unwrap();
        rig.die(death(3, FailedReset::NeverStarts));
        // The end of the program and the recovery share one halt.
        drop(objects);
        rig.check_quiet();
        assert!(command().0.is_ok());
    });
}

/// The exporter of a dma-buf revokes it while the device does not answer.
#[test]
fn an_exporter_halts_a_device_that_does_not_answer() {
    run_bound(|rig| {
        let program = Program::new().unwrap();
        let pd = program.alloc_pd().unwrap();
        let buffer = dmabuf::export(1 << 16);
        program.register_dmabuf(pd, buffer, 1 << 16).unwrap();
        die_and_write(rig, 3);
        let start = sim::now();
        dmabuf::revoke(buffer);
        // The duration of the first reset. The exporter does not wait for the work item.
        assert!(sim::now() - start < 8 * SECOND, "{} ns", sim::now() - start);
        rig.check_quiet();
        assert!(command().0.is_ok());
        drop(program);
    });
}

/// Configuration reads return all ones for a while, as if the device were unplugged.
#[test]
fn a_device_that_seems_to_be_gone_keeps_its_memory() {
    run_bound(|rig| {
        let objects = Objects::new().unwrap();
        rig.shared.set_present(false);
        die_and_write(rig, 4);
        sim::sleep(SECOND);
        drop(objects);
        assert_ne!(rig.state("quarantine").as_deref(), Some("0"));
        rig.shared.set_present(true);
        rig.check_quiet();
        assert_eq!(rig.state("quarantine").as_deref(), Some("0"));
        assert!(command().0.is_ok());
    });
}

/// The driver recognizes a function that it has left halted by its PCI configuration.
#[test]
fn a_function_that_was_left_halted_is_reset_by_the_bus_first() {
    let first_of_a_probe = |rig: &mut Rig| {
        let (result, log) = traced(|| rig.probe());
        let first = log.iter().find(|line| line.contains("device: "));
        (
            result,
            first.is_some_and(|line| line.contains("function reset")),
        )
    };
    run(|rig| {
        assert_eq!(first_of_a_probe(rig), (Ok(()), false));
        rig.die(death(u32::MAX, FailedReset::NeverStarts));
        sim::sleep(100 * SECOND);
        rig.remove();
        rig.heal();
        assert_eq!(first_of_a_probe(rig), (Ok(()), true));
        rig.remove();
        assert_eq!(first_of_a_probe(rig), (Ok(()), false));
    });
}

/// The bus does not reset a function that it has isolated, and that works on.
#[test]
fn a_function_that_the_bus_has_not_reset_is_reset_before_it_is_bus_master() {
    run_bound(|rig| {
        let objects = Objects::new().unwrap();
        die_and_write(rig, u32::MAX);
        rig.bus_error(true);
        assert_eq!(rig.state("state").as_deref(), Some("failed"));
        drop(objects);
        rig.remove();
        let _ = rig.probe();
        rig.heal();
    });
}

/// Configuration reads return all ones while the function is bound again.
#[test]
fn a_function_that_seems_to_be_gone_may_have_been_left_halted() {
    run_bound(|rig| {
        let objects = Objects::new().unwrap();
        die_and_write(rig, u32::MAX);
        sim::sleep(100 * SECOND);
        drop(objects);
        rig.remove();
        rig.shared.set_present(false);
        assert_eq!(rig.probe(), Err(ENODEV));
        rig.shared.set_present(true);
        rig.heal();
        rig.probe().unwrap();
    });
}

/// The device reports a fatal error at the end of a reset. A function-level reset follows.
#[test]
fn a_reset_that_ends_with_a_fatal_error_halts_nothing() {
    run_bound_as(r#"{"keep_alive_ms": 0}"#, |rig| {
        let failed = then(r#"{"value": 49}"#);
        // The reads before are: ready, reset in progress.
        rig.inject(once(register(Register::DevSts), failed, 2));
        let ((), log) = traced(|| {
            rig.event(AenqGroup::FatalError.into(), 1);
            rig.check_quiet();
        });
        let log = log.concat();
        assert!(log.contains("function reset"), "{log}");
        assert!(command().0.is_ok());
    });
}

/// The machine shuts down while a recovery waits for an interrupt that does not arrive.
#[test]
fn a_shutdown_does_not_wait_for_a_recovery() {
    run_bound(|rig| {
        rig.inject(always(of_command(None), no_interrupt()));
        rig.die(Death::default());
        sim::sleep(SECOND);
        assert_eq!(rig.state("state").as_deref(), Some("resetting"));
        let start = sim::now();
        rig.slot.shutdown();
        assert!(
            sim::now() - start < 10 * SECOND,
            "{} ns",
            sim::now() - start
        );
    });
}

/// The bus isolates a function, and resets it.
#[test]
fn a_frozen_function_is_left_alone() {
    run_bound_as(r#"{"keep_alive_ms": 0}"#, |rig| {
        let _objects = Objects::new().unwrap();
        let accesses = Cell::new(None);
        traced(|| {
            // The driver checks the health of the device once a second.
            rig.slot.freeze();
            sim::sleep(5 * SECOND);
            rig.slot.bus_error(true, Neighbour::NONE, || {
                let log = sim::take_log();
                let lines = log.iter().filter(|line| line.contains("device: "));
                accesses.set(Some(lines.count()));
                rig.shared.with(|device, machine, _| device.reset(machine));
                true
            });
        });
        assert_eq!(accesses.get(), Some(0));
        assert!(command().0.is_ok());
    });
}

/// Returns the duration of an unbind in ns, while the device does not answer `what`.
fn unbind_time(rig: &mut Rig, what: When) -> u64 {
    rig.probe().unwrap();
    let objects = Objects::new().unwrap();
    rig.inject(always(what, silence()));
    let start = sim::now();
    rig.remove();
    drop(objects);
    sim::now() - start
}

/// Each command takes a little less than its timeout.
#[test]
fn a_slow_device_is_halted() {
    let slow = |rig: &Rig| {
        rig.inject(always(of_command(None), then(r#"{"delay_ms": 29000}"#)));
    };
    let limit = 100 * SECOND;
    run(|rig| {
        slow(rig);
        assert!(rig.probe().is_err());
        assert!(sim::now() < limit, "the probe took {} ns", sim::now());
    });
    for is_unbound in [true, false] {
        run_bound(|rig| {
            let program = Program::new().unwrap();
            for _ in 0..100 {
                program.alloc_pd().unwrap();
            }
            slow(rig);
            let start = sim::now();
            if is_unbound {
                rig.remove();
            }
            drop(program);
            let took = sim::now() - start;
            assert!(took < limit, "{took} ns");
            rig.heal();
        });
    }
}

/// Each command of a working device takes a second, or three seconds with pauses in between.
#[test]
fn a_device_is_not_halted_for_a_slow_command() {
    for (delay_ms, pause) in [(1_000, 0), (3_000, 20)] {
        run_bound(|rig| {
            let program = Program::new().unwrap();
            rig.inject(always(
                of_command(None),
                then(&format!(r#"{{"delay_ms": {delay_ms}}}"#)),
            ));
            for _ in 0..100 {
                program.alloc_pd().unwrap();
                sim::sleep(pause * SECOND);
            }
            rig.heal();
        });
    }
}

/// The first command that is not answered halts the device.
#[test]
fn an_unbind_waits_for_one_command() {
    run(|rig| {
        let took = unbind_time(rig, of_command(None));
        assert!(took < 31 * SECOND, "{took} ns");
    });
}

#[test]
fn an_unbind_of_a_failed_device_waits_for_no_command() {
    run(|rig| {
        let took = unbind_time(rig, When::Register(None));
        assert!(took < 10 * SECOND, "{took} ns");
    });
}

/// The device refuses each destroy command, and is reset after too many. No destruction fails.
#[test]
fn ten_thousand_destructions_are_refused() {
    run_bound_as(r#"{"keep_alive_ms": 0}"#, |rig| {
        for opcode in [
            Opcode::DestroyCq,
            Opcode::DestroyQp,
            Opcode::DeregMr,
            Opcode::DestroyAh,
            Opcode::DeallocPd,
        ] {
            rig.inject(always(of_command(Some(opcode)), status(5)));
        }
        let mut refused = 0;
        while refused < 10_000 {
            let Ok(objects) = Objects::new() else {
                sim::sleep(SECOND);
                continue;
            };
            drop(objects);
            refused += 5;
            let kept = rig.state("quarantine").unwrap().parse::<u32>().unwrap();
            assert!(kept <= 80, "{kept} pieces of memory are kept");
        }
        rig.heal();
        rig.check_quiet();
        assert_eq!(rig.state("last_reset").as_deref(), Some("memory_held"));
        assert!(command().0.is_ok());
    });
}

/// The last check uses the device in the registry, and so the newest session.
#[test]
fn a_device_dies_in_each_step_of_a_halt() {
    for number in 0..40 {
        run_bound(|rig| {
            let objects = Objects::new().unwrap();
            rig.die(Death::default());
            rig.inject(once(
                When::Register(None),
                Then {
                    die: Some(death(1 + number % 4, FailedReset::NeverEnds)),
                    ..Then::default()
                },
                u64::from(number),
            ));
            sim::sleep(30 * SECOND);
            drop(objects);
            rig.check_quiet();
            assert!(registered().is_some(), "{number}");
        });
    }
}

/// The device refuses to release memory, and fails at any point of its way into quarantine. Once the device was reset, no
/// memory is kept.
#[test]
fn nothing_is_kept_after_the_reset() {
    let has_ended = Rc::new(Cell::new(false));
    let mut points = 0;
    while !has_ended.get() {
        let has_ended = has_ended.clone();
        run_with(Profile::Efa3, |rig| {
            module::set_parameter("recovery", Some(0));
            rig.probe().unwrap();
            let program = Program::new().unwrap();
            let queue = program.create_cq(16, false, None).unwrap().id;
            rig.inject(once(of_command(Some(Opcode::DestroyCq)), status(5), 0));
            let destroyer = sim::spawn("destroyer", move || {
                sim::stall(points, 5 * SECOND);
                let _ = program.process.destroy(queue);
                has_ended.set(sim::take_stall().is_some());
            });
            sim::sleep(SECOND);
            rig.event(AenqGroup::FatalError.into(), 1);
            sim::join(destroyer);
            sim::sleep(10 * SECOND);
            assert_eq!(
                rig.state("quarantine").as_deref(),
                Some("0"),
                "{points} points"
            );
        });
        points += 1;
    }
    assert!(points > 20, "{points} points");
}

/// A dma-buf is revoked while the DMA of a dead device is disabled.
#[test]
fn a_halted_device_stays_halted() {
    run_bound_with(Profile::Efa3, |rig| {
        let program = Program::new().unwrap();
        let pd = program.alloc_pd().unwrap();
        let buffer = dmabuf::export(1 << 20);
        program.register_dmabuf(pd, buffer, 1 << 20).unwrap();
        die_and_write(rig, 1000);
        sim::sleep(5 * SECOND);
        // This waits until the DMA of the device is disabled.
        dmabuf::revoke(buffer);
        sim::sleep(60 * SECOND);
    });
}

/// The DMA of a dead device is disabled by its unbind. Then the device is bound again.
#[test]
fn a_device_is_reset_before_it_is_bus_master() {
    run_bound_with(Profile::Efa3, |rig| {
        let objects = Objects::new().unwrap();
        die_and_write(rig, 1000);
        sim::sleep(100 * SECOND);
        drop(objects);
        rig.remove();
        let _ = rig.probe();
    });
}

/// A client holds the device for longer than the bus waits, and releases it while the bus has the function.
#[test]
fn nothing_touches_a_function_that_the_bus_has() {
    for bus in [Rig::reset as fn(&Rig), Rig::sleep, Rig::hibernate, |rig| {
        rig.bus_error(false)
    }] {
        run_bound_with(Profile::Efa3, |rig| {
            rig.slot.set_reset_time(2 * SECOND);
            let reference = Reference::new();
            let client = sim::spawn("client", move || {
                sim::sleep(11 * SECOND);
                drop(reference);
            });
            bus(rig);
            sim::join(client);
        });
    }
}
