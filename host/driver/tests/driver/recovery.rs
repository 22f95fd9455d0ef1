// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recovery of failed devices, and devices that are given up.

use std::{cell::RefCell, rc::Rc};

use driver::{
    fault::{always, command as of_command, death, once, register, rule, silence},
    program::{Objects, Program},
    rig::{Rig, PROFILES, SECOND},
};
use efa_hw::{admin::Opcode, aenq::AenqGroup, regs::Register};
use efa_model::{Death, FailedReset, Profile};
use ib_core::{ffi::ib_event_type_IB_EVENT_DEVICE_FATAL, registry};
use kernel::{
    error::code::*,
    pci::slot::{Neighbour, Vote},
    sim::{self, Rng},
};

use crate::{
    command, counter, messages, run, run_bound, run_bound_as, run_bound_with, run_with, traced,
};

/// Number of failed recovery attempts after which a device is given up.
const ATTEMPTS: &str = "5";

/// Attributes of a device that sends no keep-alives.
const QUIET: &str = r#"{"keep_alive_ms": 0}"#;

/// Checks that the device works again, after at most `most` resets.
fn check_back(rig: &Rig, most: u64) {
    rig.check_quiet();
    assert_eq!(rig.state("state").as_deref(), Some("up"));
    assert!(command().0.is_ok());
    let resets = counter("resets");
    assert!((1..=most).contains(&resets), "{resets} resets");
}

/// As [`check_back`], and checks that the driver has made no protocol errors.
fn check_back_without_errors(rig: &Rig, most: u64) {
    check_back(rig, most);
    rig.check_device();
}

/// Checks that the driver has given the device up, and has logged advice once.
fn check_given_up(rig: &Rig, attempts: &str) {
    rig.check_quiet();
    assert_eq!(rig.state("state").as_deref(), Some("failed"));
    assert_eq!(rig.state("attempts").as_deref(), Some(attempts));
    assert!(registry::registered().is_none());
    let log = messages("");
    let advice = log.iter().filter(|line| line.contains("sysfs")).count();
    assert_eq!(advice, 1, "{log:?}");
}

/// Repairs a device that was given up, and resets it, as the driver advises.
fn repair(rig: &Rig) {
    rig.heal();
    rig.set(QUIET);
    rig.reset();
    assert!(command().0.is_ok());
}

#[test]
fn a_command_times_out_and_the_device_is_brought_back() {
    run_bound(|rig| {
        rig.inject(once(of_command(Some(Opcode::AllocPd)), silence(), 0));
        assert_eq!(command(), (Err(ETIME), 30 * SECOND));
        sim::sleep(SECOND);
        assert_eq!(registry::registrations(), 2);
        assert_eq!(command(), (Ok(()), 0));
        let expected = [
            "EFA_EVENT=reset",
            "EFA_REASON=command_timeout",
            "EFA_EVENT=recovered",
            "EFA_REASON=command_timeout",
        ];
        assert_eq!(rig.slot.uevents(), expected);
    });
}

/// A device keeps its network namespace and its name, unless the core would read that as a format. The name
/// counts as assigned by a user, as udev would change it otherwise.
#[test]
fn a_device_keeps_its_name() {
    for (name, then, by_user) in [
        ("mine", "mine", 1),
        ("my%s", "efa_0", 0),
        ("%d", "efa_0", 0),
    ] {
        run_bound(|rig| {
            let device = registry::registered().unwrap();
            // SAFETY: The device is registered.
            assert_eq!(unsafe { (*device).name_assign_type }, 0);
            registry::rename(device, name);
            registry::move_to(device, 2);
            let net = registry::net_of(device);
            rig.event(AenqGroup::FatalError.into(), 1);
            sim::sleep(SECOND);
            let device = registry::registered().unwrap();
            assert_eq!(registry::name(device), then);
            // SAFETY: The device is registered.
            assert_eq!(unsafe { (*device).name_assign_type }, by_user);
            assert_eq!(registry::net_of(device), net);
        });
    }
}

/// In-kernel clients and programs learn within a second that their device has failed. Clients get no event if it is unbound.
#[test]
fn a_failure_is_an_event_for_clients() {
    run_bound(|rig| {
        let [failed, unbound] = [(); 2].map(|()| Rc::new(RefCell::new(Vec::new())));
        let note = |events: &Rc<RefCell<Vec<u32>>>| {
            let events = events.clone();
            registry::on_event(registry::registered().unwrap(), move |event| {
                events.borrow_mut().push(event);
            });
        };
        note(&failed);
        let program = Program::new().unwrap();
        rig.die(Death::default());
        sim::sleep(SECOND);
        assert_eq!(failed.take(), [ib_event_type_IB_EVENT_DEVICE_FATAL]);
        assert_eq!(program.alloc_pd(), Err(EIO));
        check_back(rig, 1);
        note(&unbound);
        rig.remove();
        assert_eq!(unbound.take(), [0; 0]);
    });
}

/// No task waits for the timeout of a command that the reset has aborted.
#[test]
fn a_failure_ends_the_commands_in_flight() {
    run_bound(|rig| {
        let program = Program::new().unwrap();
        rig.inject(once(of_command(Some(Opcode::AllocPd)), silence(), 0));
        let task = sim::spawn("program", move || assert_eq!(program.alloc_pd(), Err(EIO)));
        sim::sleep(SECOND);
        rig.die(Death::default());
        sim::join(task);
        assert!(sim::now() < 10 * SECOND, "{} ns", sim::now());
    });
}

#[test]
fn a_device_that_stays_dead_is_given_up() {
    run_bound(|rig| {
        rig.die(death(1000, FailedReset::NeverEnds));
        sim::sleep(300 * SECOND);
        assert!(registry::registered().is_none());
        let events = rig.slot.uevents();
        assert_eq!(events[2..], ["EFA_EVENT=failed", "EFA_REASON=fatal_error"]);
        // A reset through sysfs triggers one more attempt.
        rig.heal();
        rig.reset();
        assert!(command().0.is_ok());
    });
}

#[test]
fn without_recovery_a_device_is_given_up_at_once() {
    run(|rig| {
        kernel::module::set_parameter("recovery", Some(0));
        rig.probe().unwrap();
        rig.die(Death::default());
        sim::sleep(10 * SECOND);
        assert!(registry::registered().is_none());
        assert_eq!(registry::registrations(), 1);
    });
}

/// A client holds the device until the bus has given up waiting for its reset.
#[test]
fn a_device_that_is_reset_meanwhile_is_not_given_up() {
    run(|rig| {
        kernel::module::set_parameter("recovery", Some(0));
        rig.probe().unwrap();
        let reference = registry::Reference::new();
        rig.die(Death::default());
        sim::sleep(SECOND);
        rig.reset();
        drop(reference);
        sim::sleep(SECOND);
        assert!(command().0.is_ok());
        assert!(!rig.slot.uevents().contains(&"EFA_EVENT=failed".to_string()));
    });
}

/// The timeouts that a device asks for end with its session.
#[test]
fn a_hint_holds_for_one_session() {
    run_bound_as(r#"{"mmio_read_timeout_ms": 900}"#, |rig| {
        rig.set(r#"{"mmio_read_timeout_ms": 0}"#);
        rig.reset();
        rig.inject(always(register(Register::DevSts), silence()));
        sim::keep_log(true);
        rig.reset();
        let log = messages("err: Reading register timed out");
        assert!(log[0].ends_with("within 50000 us\n"), "{log:?}");
    });
}

#[test]
fn keep_alives_that_stay_away_are_noticed() {
    run_bound(|rig| {
        sim::sleep(60 * SECOND);
        assert_eq!(registry::registrations(), 1);
        rig.die(Death {
            silent: true,
            ..Death::default()
        });
        sim::sleep(10 * SECOND);
        assert_eq!(registry::registrations(), 2);
        assert_eq!(rig.slot.uevents()[1], "EFA_REASON=keep_alive");
    });
}

#[test]
fn the_bus_resets_and_resumes_the_device() {
    for profile in PROFILES {
        run_bound_with(profile, |rig| {
            let objects = Objects::new().unwrap();
            let ((), log) = traced(|| rig.reset());
            // The cause precedes its effect.
            let traced = log.iter().filter_map(|line| line.split_once("trace: re"));
            let traced: Vec<_> = traced.map(|(_, text)| text.trim()).collect();
            assert_eq!(traced, ["set, requested", "setting", "setting"]);
            let _objects = [objects, Objects::new().unwrap()];
            rig.sleep();
            let program = Program::new().unwrap();
            rig.bus_error(false);
            assert_eq!(program.alloc_pd(), Err(EIO));
            assert!(command().0.is_ok());
            assert_eq!(registry::registrations(), 4);
            rig.bus_error(true);
            assert!(registry::registered().is_none());
            rig.remove();
            rig.probe().unwrap();
            let program = Program::new().unwrap();
            rig.slot.shutdown();
            assert_eq!(program.alloc_pd(), Err(EIO));
        });
    }
}

/// The bus does not change the function's state after a recovery that has failed.
#[test]
fn a_device_that_the_bus_has_given_up_can_be_reset_or_bound_again() {
    for resets in [true, false] {
        run_bound(|rig| {
            sim::keep_log(true);
            rig.bus_error(true);
            assert_eq!(rig.state("state").as_deref(), Some("failed"));
            let log = messages("");
            let advice = log.iter().filter(|line| line.contains("sysfs")).count();
            assert_eq!(advice, 1, "{log:?}");
            let events = rig.slot.uevents();
            let has_failed = events.iter().any(|event| event == "EFA_EVENT=failed");
            assert!(has_failed, "{events:?}");
            if resets {
                rig.reset();
            } else {
                rig.remove();
                rig.probe().unwrap();
            }
            assert!(command().0.is_ok());
        });
    }
}

#[test]
fn an_error_of_a_function_on_the_same_bus_changes_nothing() {
    run_bound(|rig| {
        let program = Program::new().unwrap();
        let neighbour = Neighbour {
            detected: Vote::NoDriver,
            ..Neighbour::NONE
        };
        rig.shared_bus_error(false, neighbour, false);
        sim::sleep(10 * SECOND);
        program.alloc_pd().unwrap();
        assert_eq!(counter("resets"), 0);
    });
}

/// One interrupt handles the first two events. The third one comes a second later.
#[test]
fn the_time_between_two_keep_alives_is_no_period() {
    run_bound_as(QUIET, |rig| {
        (0..2).for_each(|_| rig.event(AenqGroup::KeepAlive.into(), 0));
        sim::sleep(5 * SECOND);
        assert!(command().0.is_ok());
        assert_eq!(counter("resets"), 0);
    });
}

/// Each allocation of a recovery fails, one at a time.
#[test]
fn memory_is_short() {
    for number in 0.. {
        let count = run_bound(|rig| {
            let objects = Objects::new().unwrap();
            sim::fail_allocation(Some(number));
            rig.event(AenqGroup::FatalError.into(), 0);
            sim::sleep(20 * SECOND);
            let count = sim::allocations();
            sim::fail_allocation(None);
            assert!(command().0.is_ok(), "allocation {number}");
            drop(objects);
            count
        });
        if number >= count {
            break;
        }
    }
}

/// A fault occurs at each step of a recovery. The next attempt succeeds.
#[test]
fn a_fault_occurs_at_each_step() {
    for (when, then) in [
        (r#"{"opcode": "ANY"}"#, r#"{"die": {"silent": true}}"#),
        (r#"{"opcode": "ANY"}"#, r#"{"die": {}}"#),
        (r#"{"opcode": "ANY"}"#, r#"{"status": "UNKNOWN_ERROR"}"#),
        (r#"{"opcode": "ANY"}"#, r#"{"wrong_id": true}"#),
        (r#"{"register": "ANY"}"#, r#"{"silence": true}"#),
        // For another register, such as VERSION, this would be a valid value.
        (r#"{"register": "DEV_STS"}"#, r#"{"value": 4294967295}"#),
        (r#"{"register": "ANY"}"#, r#"{"die": {}}"#),
    ] {
        let steps = (0..).find(|step| {
            run_with(Profile::Efa3, |rig| {
                rig.set(QUIET);
                rig.probe().unwrap();
                let objects = Objects::new().unwrap();
                rig.inject(rule(&format!(
                    r#"{{"when": {when}, "then": {then}, "skip": {step}, "times": 1}}"#
                )));
                rig.die(Death::default());
                sim::sleep(SECOND / 10);
                assert_eq!(objects.program.alloc_pd(), Err(EIO));
                rig.check_quiet();
                let is_beyond = rig.device().faults_hit == 0;
                rig.heal();
                rig.set(QUIET);
                check_back_without_errors(rig, 2);
                is_beyond
            })
        });
        assert!(steps > Some(3), "{when} {then}: {steps:?} steps");
    }
}

/// The device is hot-unplugged at each step of a recovery, and plugged in again.
#[test]
fn the_device_is_unplugged_at_each_step() {
    let steps = (0..).find(|step| {
        run_with(Profile::Efa3, |rig| {
            rig.set(QUIET);
            rig.probe().unwrap();
            rig.inject(rule(&format!(
                r#"{{"when": {{"register": "ANY"}}, "then": {{"unplug": true}}, "skip": {step}, "times": 1}}"#
            )));
            rig.die(Death::default());
            for _ in 0..100 {
                sim::sleep(SECOND / 2);
                let is_gone = |rig: &Rig| !rig.device().plugged;
                if is_gone(rig) {
                    rig.slot.lose_power();
                    rig.shared.with(|device, machine, _| device.plug(machine));
                }
            }
            let is_beyond = rig.device().faults_hit == 0;
            rig.heal();
            rig.set(QUIET);
            // The driver detects the loss of state in the device, which reports this doorbell.
            let _ = command();
            check_back(rig, 3);
            is_beyond
        })
    });
    assert!(steps > Some(3), "{steps:?} steps");
}

#[test]
fn the_second_reset_succeeds() {
    for how in [FailedReset::NeverStarts, FailedReset::NeverEnds] {
        run_bound(|rig| {
            rig.die(death(2, how));
            sim::sleep(SECOND);
            check_back_without_errors(rig, 1);
        });
    }
}

/// The device dies again at a random time of the reset.
#[test]
fn the_device_dies_again() {
    for seed in 0..200 {
        let attributes = r#"{"keep_alive_ms": 0, "reset_ms": 200, "reset_timeout": 10}"#;
        run_bound_as(attributes, |rig| {
            let mut rng = Rng::new(seed);
            rig.die(Death::default());
            sim::sleep(rng.below(SECOND));
            rig.die(Death {
                silent: rng.one_in(2),
                ..Death::default()
            });
            sim::sleep(60 * SECOND);
            // This command reveals the silent death of a device that had recovered.
            let _ = command();
            check_back_without_errors(rig, 3);
        });
    }
}

#[test]
fn a_device_that_keeps_failing_is_given_up() {
    for how in [FailedReset::NeverStarts, FailedReset::NeverEnds] {
        run_bound_as(QUIET, |rig| {
            sim::keep_log(true);
            rig.die(death(1 << 20, how));
            sim::sleep(200 * SECOND);
            check_given_up(rig, ATTEMPTS);
            let events = [
                "EFA_EVENT=reset",
                "EFA_REASON=fatal_error",
                "EFA_EVENT=failed",
                "EFA_REASON=fatal_error",
            ];
            assert_eq!(rig.slot.uevents(), events);
            // A reset before the repair fails.
            rig.reset();
            rig.check_quiet();
            assert_eq!(rig.state("state").as_deref(), Some("failed"));
            repair(rig);
        });
    }
}

/// The device dies in each recovery attempt, or soon after each recovery.
#[test]
fn a_device_that_lives_too_shortly_is_given_up() {
    run_bound_as(QUIET, |rig| {
        sim::keep_log(true);
        rig.inject(rule(
            r#"{"when": {"opcode": "SET_FEATURE", "feature": "HOST_INFO"}, "then": {"die": {}}}"#,
        ));
        rig.die(Death::default());
        sim::sleep(200 * SECOND);
        check_given_up(rig, ATTEMPTS);
        repair(rig);
    });
    run_bound_as(QUIET, |rig| {
        sim::keep_log(true);
        for _ in 0..6 {
            rig.die(Death::default());
            sim::sleep(10 * SECOND);
        }
        check_given_up(rig, ATTEMPTS);
        repair(rig);
    });
}

#[test]
fn a_device_that_was_given_up_can_be_bound_again() {
    run_bound(|rig| {
        rig.die(death(1 << 20, FailedReset::NeverStarts));
        sim::sleep(200 * SECOND);
        assert_eq!(rig.state("state").as_deref(), Some("failed"));
        rig.remove();
        rig.heal();
        rig.probe().unwrap();
        assert!(command().0.is_ok());
        assert_eq!(counter("resets"), 0);
    });
}

#[test]
fn a_device_that_is_gone_is_given_up() {
    run_bound_as(QUIET, |rig| {
        sim::keep_log(true);
        rig.shared.with(|device, machine, _| device.unplug(machine));
        sim::sleep(200 * SECOND);
        check_given_up(rig, ATTEMPTS);
        assert_eq!(rig.slot.uevents()[1], "EFA_REASON=register_timeout");
        rig.shared.with(|device, machine, _| device.plug(machine));
        repair(rig);
    });
}

/// A device is unbound, or reset through sysfs, at a random time of a recovery.
#[test]
fn unbind_or_reset_at_any_time() {
    for seed in 0..200 {
        run_bound_as(r#"{"keep_alive_ms": 0, "reset_ms": 50}"#, |rig| {
            let mut rng = Rng::new(seed);
            let objects = Objects::new().unwrap();
            rig.die(death(
                1 + u32::from(rng.one_in(3)),
                FailedReset::NeverStarts,
            ));
            sim::sleep(rng.below(3 * SECOND / 2));
            if rng.one_in(2) {
                rig.remove();
                rig.probe().unwrap();
            } else {
                rig.reset();
                check_back_without_errors(rig, 2);
            }
            assert_eq!(objects.program.alloc_pd(), Err(EIO));
            assert!(command().0.is_ok());
        });
    }
}

/// The number of places where a reset by the bus may be preempted, after some seconds.
fn steps_of_a_reset(seconds: u64) -> u64 {
    run_bound_as(QUIET, |rig| {
        sim::sleep(seconds * SECOND);
        sim::stall(u64::MAX, 0);
        rig.reset();
        u64::MAX - sim::take_stall().unwrap()
    })
}

#[test]
fn a_reset_does_not_take_longer_with_the_uptime() {
    let (first, second) = (steps_of_a_reset(10), steps_of_a_reset(20_010));
    assert!(second < first + 1000, "{first} and {second}");
}

#[test]
fn an_ordinary_death_takes_four_lines_of_the_log() {
    run_bound(|rig| {
        let objects = Objects::new().unwrap();
        sim::keep_log(true);
        rig.die(Death::default());
        check_back_without_errors(rig, 1);
        let lines = messages("");
        assert!((1..=4).contains(&lines.len()), "{lines:?}");
        drop(objects);
    });
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
            run_bound_with(Profile::Efa3, |rig| {
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
            });
        }
    }
}

/// A device that is reset often does not log more: ten messages of each kind in five seconds.
#[test]
fn limits_of_messages_outlive_sessions() {
    const UNKNOWN_GROUP: u16 = 9;
    const RESETS: usize = 40;

    run_bound(|rig| {
        sim::keep_log(true);
        for fault in [
            r#"{"when": {"opcode": "ANY"}, "then": {"duplicate": true}}"#,
            r#"{"when": {"opcode": "ALLOC_PD"}, "then": {"status": "UNKNOWN_ERROR"}}"#,
        ] {
            rig.inject(rule(fault));
        }
        let start = sim::now();
        for _ in 0..RESETS {
            rig.reset();
            let _ = command();
            rig.event(UNKNOWN_GROUP, 0);
            sim::sleep(SECOND / 100);
        }
        let windows = (sim::now() - start).div_ceil(5 * SECOND) as usize + 1;
        assert!(windows < 3, "{windows} windows of five seconds");
        let log = messages("err");
        for text in ["unexpected command id", "ALLOC_PD", "unknown group"] {
            let count = log.iter().filter(|line| line.contains(text)).count();
            assert!((10..=10 * windows).contains(&count), "{count} of {text:?}");
        }
    });
}
