// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Probe and removal.

use driver::{
    fault::{always, command as of_command, of_commands, once, silence},
    program::Objects,
    rig::{PROFILES, SECOND},
};
use efa_hw::admin::Opcode;
use efa_model::When;
use ib_core::{registry, stats};
use kernel::{error::code::*, sim};

use crate::{command, no_interrupt, run, run_bound, run_bound_with, run_with};

#[test]
fn comes_up_and_goes() {
    for profile in PROFILES {
        run_bound_with(profile, |rig| {
            let device = registry::registered().unwrap();
            assert_eq!(registry::name(device), "efa_0");
            assert!(command().0.is_ok());
            rig.check_device();
        });
    }
}

#[test]
fn a_device_that_does_not_answer_is_not_probed_again() {
    run(|rig| {
        rig.inject(always(When::Register(None), silence()));
        assert_eq!(rig.probe(), Err(ETIMEDOUT));
        assert!(sim::now() < SECOND);
        rig.heal();
        rig.probe().unwrap();
    });
}

#[test]
fn a_registration_that_fails_leaves_nothing() {
    run(|rig| {
        registry::set_refuses(true);
        assert_eq!(rig.probe(), Err(ENOMEM));
        registry::set_refuses(false);
        rig.probe().unwrap();
    });
}

#[test]
fn has_counters() {
    run_bound(|_| {
        for port in 0..2 {
            let values = stats::read_stats(registry::registered().unwrap(), port);
            assert!(!values.unwrap().is_empty());
        }
    });
}

/// The first command waits for its interrupt. The others are polled.
#[test]
fn interrupts_do_not_come() {
    run(|rig| {
        rig.inject(always(of_command(None), no_interrupt()));
        assert_eq!(rig.probe(), Ok(()));
        assert!(sim::now() < 35 * SECOND, "{} s", sim::now() / SECOND);
        rig.heal();
    });
}

/// Each allocation of a probe fails, one at a time.
#[test]
fn memory_is_short() {
    for profile in PROFILES {
        run_with(profile, |rig| {
            sim::fail_allocation(None);
            rig.probe().unwrap();
            let count = sim::allocations();
            assert!(count > 40);
            rig.remove();
            for number in 0..count {
                sim::fail_allocation(Some(number));
                let result = rig.probe();
                sim::fail_allocation(None);
                match result {
                    // Some of the allocations are optional.
                    Ok(()) => rig.remove(),
                    Err(error) => assert!([ENOMEM, ENOSPC, EFAULT].contains(&error), "{error:?}"),
                }
            }
        });
    }
}

/// Each fault occurs at each command of a probe and of a program.
#[test]
fn each_command_fails_in_each_way() {
    for profile in PROFILES {
        for fault in of_commands() {
            for number in 0..32 {
                let fault = fault.clone();
                run_with(profile, |rig| {
                    rig.inject(once(of_command(None), fault, number));
                    if rig.probe().is_ok() {
                        drop(Objects::new());
                        sim::sleep(40 * SECOND);
                    }
                });
            }
        }
    }
}

/// The limit is not that of each of its commands.
#[test]
fn has_one_time_limit() {
    run(|rig| {
        rig.inject(always(of_command(Some(Opcode::GetStats)), silence()));
        let _ = rig.probe();
        assert!(sim::now() < 60 * SECOND, "{} s", sim::now() / SECOND);
    });
}
