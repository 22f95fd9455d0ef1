// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The health reporter of devlink: what operators see of a failure, and how they recover a device.

use driver::{
    fault::{always, command as of_command, death, silence},
    operator::LIMIT,
    rig::{self, Rig, SECOND},
};
use efa_hw::aenq::AenqGroup;
use efa_model::{Death, FailedReset, Profile};
use ib_core::registry;
use kernel::{
    devlink::{self, Shown},
    error::code::*,
    sim::{self, Policy},
};

use crate::{command, run, run_bound, run_bound_as};

/// Attributes of a device that sends no keep-alives.
const QUIET: &str = r#"{"keep_alive_ms": 0}"#;

const NEW: Shown = Shown {
    is_healthy: true,
    errors: 0,
    recoveries: 0,
    grace_period: 0,
    auto_recover: true,
    has_dump: false,
};

/// Checks the state of the device, and whether its reporter shows it as healthy.
fn check(rig: &Rig, state: &str, is_healthy: bool) {
    rig.check_quiet();
    assert_eq!(rig.state("state").as_deref(), Some(state));
    assert_eq!(rig.diagnosis("state").as_deref(), Some(state));
    assert_eq!(devlink::show().unwrap().is_healthy, is_healthy);
}

/// Lets the device fail, which is not recovered automatically.
fn fail(rig: &Rig, how: Death) {
    devlink::set(false, 0).unwrap();
    rig.die(how);
    sim::sleep(SECOND);
    check(rig, "failed", false);
}

#[test]
fn a_failure_is_reported_and_recovered() {
    run_bound(|rig| {
        assert_eq!(devlink::show(), Ok(NEW));
        // A device that works is not recovered.
        assert_eq!(devlink::recover(), Ok(()));
        assert_eq!(rig.state("session").as_deref(), Some("1"));
        for count in 1..3 {
            rig.die(Death::default());
            sim::sleep(SECOND);
            check(rig, "up", true);
            let shown = Shown {
                errors: count,
                recoveries: count,
                has_dump: true,
                ..NEW
            };
            assert_eq!(devlink::show(), Ok(shown));
            assert_eq!(rig.diagnosis("last_reset").as_deref(), Some("fatal_error"));
        }
        // The dump is that of the first failure until it is cleared.
        for session in ["1", "3"] {
            assert_eq!(rig.dumped("session").as_deref(), Some(session));
            assert_eq!(rig.dumped("last_reset").as_deref(), Some("fatal_error"));
            assert_eq!(rig.dumped("in_flight").as_deref(), Some("0"));
            devlink::clear_dump().unwrap();
        }
    });
}

#[test]
fn an_operator_recovers_a_device() {
    for parameter in [None, Some(0)] {
        run(|rig| {
            kernel::module::set_parameter("recovery", parameter);
            rig.probe().unwrap();
            for count in 1..3 {
                // With the parameter, this setting has no effect.
                devlink::set(parameter.is_some(), 0).unwrap();
                rig.die(Death::default());
                sim::sleep(SECOND);
                check(rig, "failed", false);
                assert_eq!(devlink::recover(), Ok(()));
                check(rig, "up", true);
                assert!(command().0.is_ok());
                assert_eq!(devlink::show().unwrap().recoveries, count);
            }
        });
    }
}

#[test]
fn a_second_failure_in_the_grace_period_is_not_recovered() {
    run_bound(|rig| {
        devlink::set(true, 60_000).unwrap();
        for (wait, state) in [(70, "up"), (20, "up"), (0, "failed")] {
            rig.die(Death::default());
            sim::sleep(SECOND);
            check(rig, state, state == "up");
            sim::sleep(wait * SECOND);
        }
        assert_eq!(devlink::recover(), Ok(()));
        check(rig, "up", true);
    });
}

/// Each request of an operator makes further attempts to restart the device due.
#[test]
fn a_device_that_stays_dead_is_recovered_once_it_is_repaired() {
    run_bound_as(QUIET, |rig| {
        fail(rig, death(1 << 20, FailedReset::NeverStarts));
        for _ in 0..2 {
            assert_eq!(devlink::recover(), Err(EAGAIN));
            check(rig, "failed", false);
            assert_eq!(rig.diagnosis("attempts").as_deref(), Some("5"));
        }
        rig.heal();
        rig.set(QUIET);
        assert_eq!(devlink::recover(), Ok(()));
        check(rig, "up", true);
    });
}

/// A reset through sysfs counts as a recovery of a device in error, but not of one that works.
#[test]
fn the_bus_recovers_a_device() {
    run_bound(|rig| {
        rig.reset();
        assert_eq!(devlink::show(), Ok(NEW));
        rig.bus_error(true);
        check(rig, "failed", false);
        assert_eq!(devlink::recover(), Err(EIO));
        rig.reset();
        check(rig, "up", true);
        let recoveries = 1;
        assert_eq!(devlink::show(), Ok(Shown { recoveries, ..NEW }));
    });
}

/// Runs `other` while an operator waits for a device that answers no command. Returns the operator's result, and how long
/// the operator or `other` took, in nanoseconds.
fn waits(other: fn(&mut Rig)) -> (kernel::error::Result, u64) {
    run_bound_as(QUIET, move |rig| {
        fail(rig, Death::default());
        rig.inject(always(of_command(None), silence()));
        let operator = sim::spawn("operator", || {
            let start = sim::now();
            let result = devlink::recover();
            RESULT.set(Some((result, sim::now() - start)));
        });
        sim::sleep(SECOND);
        let start = sim::now();
        other(rig);
        let took = sim::now() - start;
        sim::join(operator);
        let (result, waited) = RESULT.take().unwrap();
        rig.heal();
        (result, waited.max(took))
    })
}

thread_local! {
    static RESULT: std::cell::Cell<Option<(kernel::error::Result, u64)>> =
        const { std::cell::Cell::new(None) };
}

#[test]
fn a_wait_for_a_recovery_ends() {
    let (result, took) = waits(|_| ());
    assert_eq!(result, Err(ETIMEDOUT));
    assert!(took < LIMIT, "{took} ns");
    for other in [
        (|rig| rig.remove()) as fn(&mut Rig),
        |rig| {
            rig.heal();
            rig.reset();
        },
        |rig| rig.slot.shutdown(),
    ] {
        let (result, took) = waits(other);
        assert!(result.is_err());
        assert!(took < 9 * SECOND, "{took} ns");
    }
}

/// Runs `race` with a device in error, concurrently with an operator, in each schedule with one preemption. Neither waits
/// for the timeout of the other.
fn search(race: fn(&mut Rig), operate: fn()) {
    let runs = sim::search(1, false, move |policy| {
        rig::run(Profile::Efa3, policy, move |rig| {
            rig.set(QUIET);
            rig.probe().unwrap();
            fail(rig, Death::default());
            sim::searched(|| {
                let start = sim::now();
                let operator = sim::spawn("operator", operate);
                race(rig);
                sim::join(operator);
                let took = sim::now() - start;
                assert!(took < 9 * SECOND, "{took} ns");
            });
        });
    });
    assert!(runs > 50, "{runs} schedules");
}

fn recover() {
    let _ = devlink::recover();
}

#[test]
fn a_recovery_and_a_removal() {
    search(|rig| rig.remove(), recover);
}

#[test]
fn a_recovery_and_a_reset() {
    search(|rig| rig.reset(), recover);
}

#[test]
fn a_recovery_and_a_shutdown() {
    search(|rig| rig.slot.shutdown(), recover);
}

/// The device fails again as soon as it works, while operators recover it.
#[test]
fn recoveries_and_failures() {
    search(
        |rig| {
            for _ in 0..3 {
                rig.die(Death::default());
                sim::sleep(SECOND / 10);
            }
        },
        || (0..4).for_each(|_| recover()),
    );
}

/// An operator finds the device in error before the driver has devlink's lock. Neither waits for the timeout of the other.
#[test]
fn a_failure_and_a_recovery() {
    run_bound(|rig| {
        rig.event(AenqGroup::FatalError.into(), 0);
        while devlink::show().unwrap().is_healthy {
            sim::sleep(devlink::NOTIFICATION / 4);
        }
        assert_eq!(devlink::recover(), Err(EBUSY));
        sim::sleep(SECOND);
        check(rig, "up", true);
        assert_eq!(devlink::show().unwrap().recoveries, 1);
    });
}

/// The device fails again while an operator gets the result of a recovery. It is recovered, as devlink has that result first.
#[test]
fn a_failure_after_a_recovery() {
    for points in 0.. {
        let is_beyond = run_bound_as(QUIET, move |rig| {
            fail(rig, Death::default());
            devlink::set(true, 0).unwrap();
            let operator = sim::spawn("operator", move || {
                sim::stall(points, SECOND);
                recover();
                RESULT.set(Some((Ok(()), sim::take_stall().unwrap_or(0))));
            });
            sim::sleep(SECOND / 2);
            rig.die(Death::default());
            sim::join(operator);
            sim::sleep(SECOND);
            check(rig, "up", true);
            RESULT.take().is_some_and(|(_, left)| left != 0)
        });
        if is_beyond {
            assert!(points > 5, "{points} points");
            break;
        }
    }
}

#[test]
fn a_dump_and_a_removal() {
    search(
        |rig| rig.remove(),
        || {
            for _ in 0..2 {
                let _ = (devlink::dump(), devlink::diagnose(), devlink::clear_dump());
            }
        },
    );
}

/// Operators find no instance of a device that is not bound.
#[test]
fn a_removed_device_has_no_reporter() {
    sim::run(Policy::Sequential, || {
        assert_eq!(devlink::show(), Err(ENODEV))
    });
    run_bound(|rig| {
        fail(rig, Death::default());
        rig.remove();
        assert_eq!(devlink::recover(), Err(ENODEV));
        rig.probe().unwrap();
        assert_eq!(devlink::show(), Ok(NEW));
        // It is gone before the device is, for which the core waits here.
        let reference = registry::Reference::new();
        let operator = sim::spawn("operator", move || {
            sim::sleep(SECOND);
            assert_eq!(devlink::show(), Err(ENODEV));
            drop(reference);
        });
        rig.remove();
        sim::join(operator);
    });
}
