// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Admin commands in flight: many, completed out of order or late, or never by a dead device.

use std::{cell::Cell, rc::Rc};

use driver::{
    fault::rule,
    program::{Objects, Program},
    rig::{Rig, SECOND},
};
use efa_hw::aenq::AenqGroup;
use efa_model::{Death, FailedReset, Profile};
use ib_core::{registry::registered, stats, umem::Memory};
use kernel::{error::code::*, page::PAGE_SIZE, sim};

use crate::{command, counter, messages, run_bound, run_bound_as, run_bound_with};

/// Limit on the driver's commands in flight.
const SLOTS: usize = 32;

/// Waits until a condition holds.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = sim::now() + 100 * SECOND;
    while !condition() {
        assert!(sim::now() < deadline, "{what}");
        sim::sleep(SECOND / 100);
    }
}

/// Opens the device, and allocates and frees four protection domains, one after the other.
fn work() {
    let program = Program::new().unwrap();
    for _ in 0..4 {
        let pd = program.alloc_pd().unwrap();
        program.process.destroy(pd).unwrap();
    }
}

fn check_nothing_lost(rig: &Rig) {
    rig.check_quiet();
    rig.check_device();
    let admin = rig.device().admin;
    assert_eq!(admin.in_flight, 0);
    assert_eq!(admin.submitted, admin.completed);
    assert_eq!(counter("no_completion_cmds"), 0);
}

#[test]
fn has_many_commands_in_flight() {
    run_bound(|rig| {
        rig.inject(rule(
            r#"{"when": {"opcode": "ANY"}, "then": {"hold": "all"}}"#,
        ));
        let tasks = [(); 64].map(|()| sim::spawn("program", work));
        wait_until("commands are in flight", || {
            rig.device().held.get("all") == Some(&SLOTS)
        });
        rig.heal();
        tasks.into_iter().for_each(sim::join);
        check_nothing_lost(rig);
    });
}

#[test]
fn takes_completions_in_another_order() {
    for profile in [Profile::Efa2, Profile::Efa4] {
        run_bound_with(profile, |rig| {
            for number in 0..16 {
                rig.inject(rule(&format!(
                    r#"{{"when": {{"opcode": "ALLOC_PD"}}, "then": {{"hold": "{number}"}}, "skip": {number}, "times": 1}}"#
                )));
            }
            let tasks = [(); 16].map(|()| sim::spawn("program", work));
            wait_until("all programs wait", || rig.device().held.len() == 16);
            assert!(stats::read_stats(registered().unwrap(), 1).is_ok());
            for number in (0..16).rev() {
                rig.shared
                    .with(|device, _, _| device.release(&number.to_string(), None));
                sim::sleep(SECOND / 100);
            }
            tasks.into_iter().for_each(sim::join);
            check_nothing_lost(rig);
        });
    }
}

/// Eight readers of five sets each would wait for the fifth slot if they had four each.
#[test]
fn is_not_blocked_by_readers_of_counters() {
    run_bound(|rig| {
        rig.inject(rule(
            r#"{"when": {"opcode": "ALLOC_PD"}, "then": {"hold": "all"}}"#,
        ));
        let programs = [(); SLOTS].map(|()| sim::spawn("program", || assert!(command().0.is_ok())));
        wait_until("all slots are taken", || {
            rig.device().held.get("all") == Some(&SLOTS)
        });
        let readers = [(); 8].map(|()| {
            sim::spawn("reader", || {
                assert!(stats::read_stats(registered().unwrap(), 1).is_ok());
            })
        });
        sim::sleep(SECOND / 100);
        let start = sim::now();
        for _ in 0..SLOTS {
            rig.shared
                .with(|device, _, _| device.release("all", Some(1)));
            sim::sleep(SECOND / 100);
        }
        readers.into_iter().for_each(sim::join);
        assert!(sim::now() - start < SECOND);
        programs.into_iter().for_each(sim::join);
        check_nothing_lost(rig);
    });
}

/// The ring has 32 entries, and the id of a command 12 bits.
#[test]
fn wraps_around() {
    for profile in [Profile::Efa2, Profile::Efa4] {
        run_bound_with(profile, |rig| {
            (0..1000).for_each(|_| work());
            check_nothing_lost(rig);
        });
    }
}

/// REG_MR is the longest command, and ends with an address that is not zero.
#[test]
fn uses_all_of_an_entry() {
    for profile in [Profile::Efa2, Profile::Efa4] {
        run_bound_with(profile, |rig| {
            let program = Program::new().unwrap();
            let pd = program.alloc_pd().unwrap();
            for pages in [1, 4, 64] {
                let memory = Memory::new(pages * PAGE_SIZE);
                for _ in 0..40 {
                    let length = (pages * PAGE_SIZE) as u64;
                    let (id, _) = program.register(pd, memory.address(), length).unwrap();
                    program.process.destroy(id).unwrap();
                }
            }
            drop(program);
            check_nothing_lost(rig);
        });
    }
}

#[test]
fn ignores_duplicate_completions() {
    run_bound(|rig| {
        rig.inject(rule(
            r#"{"when": {"opcode": "ALLOC_PD"}, "then": {"duplicate": true}, "skip": 3, "times": 5}"#,
        ));
        sim::keep_log(true);
        (0..10).for_each(|_| work());
        assert!(sim::take_log()
            .concat()
            .contains("completion with unexpected command id"));
        check_nothing_lost(rig);
    });
}

/// Versions without checksums, with those of commands and completions, and of completions only.
#[test]
fn follows_the_version_of_each_session() {
    run_bound(|rig| {
        for version in [1, 3, 2, 3] {
            rig.set(&format!(r#"{{"version": {version}}}"#));
            rig.event(AenqGroup::FatalError.into(), 1);
            rig.check_quiet();
            assert!(command().0.is_ok());
        }
        assert_eq!(counter("resets"), 4);
        check_nothing_lost(rig);
    });
}

/// The completion arrives in the next session, where it must not complete another command.
#[test]
fn ignores_completions_of_the_last_session() {
    for after in 1..8 {
        run_bound(|rig| {
            rig.inject(rule(&format!(
                r#"{{"when": {{"opcode": "ALLOC_PD"}}, "then": {{"after_reset": true, "after_commands": {after}}}, "times": 1}}"#
            )));
            sim::keep_log(true);
            assert_eq!(command().0, Err(ETIME));
            rig.check_quiet();
            assert_eq!(rig.device().late, 0);
            assert!(sim::take_log()
                .concat()
                .contains("completion with unexpected command id"));
            assert!(command().0.is_ok());
            assert_eq!(counter("resets"), 1);
        });
    }
}

/// Each program waits for at most one command. Halting takes three resets, the first attempt two.
#[test]
fn ends_for_all_programs_when_the_device_stops_answering() {
    run_bound(|rig| {
        let death = r#"{"die": {"silent": true, "resets": 6}}"#;
        rig.inject(rule(&format!(
            r#"{{"when": {{"opcode": "ANY"}}, "then": {death}, "skip": 40, "times": 1}}"#
        )));
        let failed = Rc::new(Cell::new(0));
        let tasks = [(); 16].map(|()| {
            let failed = failed.clone();
            sim::spawn("program", move || {
                let Ok(program) = Program::new() else {
                    return failed.set(failed.get() + 1);
                };
                loop {
                    match program.alloc_pd() {
                        Ok(pd) => drop(program.process.destroy(pd)),
                        Err(error) => {
                            assert!([ETIME, EIO].contains(&error), "{error:?}");
                            return failed.set(failed.get() + 1);
                        }
                    }
                }
            })
        });
        tasks.into_iter().for_each(sim::join);
        assert_eq!(failed.get(), 16);
        rig.check_quiet();
        assert!((1..=16).contains(&counter("no_completion_cmds")));
        assert_eq!(rig.state("attempts").as_deref(), Some("2"));
        assert_eq!(rig.state("last_reset").as_deref(), Some("command_timeout"));
        assert!(command().0.is_ok());
    });
}

/// Five commands read the counters of a port.
#[test]
fn waits_once_for_the_counters_of_a_port() {
    run_bound(|rig| {
        rig.inject(rule(
            r#"{"when": {"opcode": "GET_STATS"}, "then": {"silence": true}, "times": 5}"#,
        ));
        let device = registered().unwrap();
        assert_eq!(stats::read_stats(device, 1).err(), Some(ETIME));
        assert!(sim::now() <= 31 * SECOND, "{} ns", sim::now());
        rig.check_quiet();
        assert_eq!(counter("no_completion_cmds"), 1);
        assert!(stats::read_stats(registered().unwrap(), 1).is_ok());
    });
}

/// A command takes 1.2 s, and waits for a slot end after 3 s: each slot serves three in turn.
#[test]
fn what_finds_no_slot_for_its_destruction_stays_in_the_device() {
    run_bound_as(r#"{"admin_completion_timeout_ms": 1500}"#, |rig| {
        let objects = Rc::new(Objects::new().unwrap());
        rig.inject(rule(
            r#"{"when": {"opcode": "ANY"}, "then": {"delay_ms": 1200}}"#,
        ));
        let others = [(); 3 * SLOTS].map(|()| {
            let objects = objects.clone();
            sim::spawn("thread", move || {
                objects.program.alloc_pd().unwrap();
            })
        });
        // The slots are granted in the order of the waiters.
        sim::sleep(SECOND / 10);
        let late = [objects.qp.id, objects.mr].map(|id| {
            let objects = objects.clone();
            sim::spawn("late", move || {
                assert_eq!(objects.program.process.destroy(id), Ok(()));
            })
        });
        late.into_iter().for_each(sim::join);
        rig.heal();
        others.into_iter().for_each(sim::join);
        let resources = rig.device().resources;
        assert_eq!((resources.qp, resources.mr), (1, 1));
        assert_eq!(rig.state("quarantine").as_deref(), Some("2"));
        assert_eq!(counter("resets"), 0);
        rig.reset();
        rig.check_device();
        drop(objects);
    });
}

/// 100 destructions. Each of the four kinds of messages is limited to ten in 5 s.
#[test]
fn a_dead_device_does_not_fill_the_log() {
    run_bound(|rig| {
        let program = Program::new().unwrap();
        for _ in 0..100 {
            program.create_cq(16, false, None).unwrap();
        }
        sim::keep_log(true);
        let death = Death {
            silent: true,
            ..driver::fault::death(1, FailedReset::NeverStarts)
        };
        rig.die(death);
        drop(program);
        rig.check_quiet();
        let lines = messages("").len();
        assert!((1..=40).contains(&lines), "{lines} lines");
    });
}
