// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices that fail and come back, or do not.

use driver::{
    fault::{command as of_command, death, once, silence},
    program::{Objects, Program},
    rig::{PROFILES, SECOND},
};
use efa_hw::{admin::Opcode, aenq::AenqGroup};
use efa_model::{Death, FailedReset};
use ib_core::registry;
use kernel::{error::code::*, sim};

use crate::{command, run, run_with};

#[test]
fn a_command_times_out_and_the_device_is_brought_back() {
    run(|rig| {
        rig.probe().unwrap();
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

/// Nobody waits for the time limit of a command that the reset has ended.
#[test]
fn a_failure_ends_the_commands_in_flight() {
    run(|rig| {
        rig.probe().unwrap();
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
    run(|rig| {
        rig.probe().unwrap();
        rig.die(death(1000, FailedReset::NeverEnds));
        sim::sleep(300 * SECOND);
        assert!(registry::registered().is_none());
        let events = rig.slot.uevents();
        assert_eq!(events[2..], ["EFA_EVENT=failed", "EFA_REASON=fatal_error"]);
        // A reset by sysfs asks for one more attempt.
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

#[test]
fn keep_alives_that_stay_away_are_noticed() {
    run(|rig| {
        rig.probe().unwrap();
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
fn the_bus_takes_the_device_away_and_gives_it_back() {
    for profile in PROFILES {
        run_with(profile, |rig| {
            rig.probe().unwrap();
            let _objects = [Objects::new().unwrap(), {
                rig.reset();
                Objects::new().unwrap()
            }];
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

/// Each allocation of a recovery fails, one at a time.
#[test]
fn memory_is_short() {
    for number in 0.. {
        let count = run(|rig| {
            rig.probe().unwrap();
            let objects = Objects::new().unwrap();
            sim::fail_allocation(Some(number));
            rig.shared.with(|device, machine, now| {
                device.post_event(machine, now, AenqGroup::FatalError.into(), 0)
            });
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
