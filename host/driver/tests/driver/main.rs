// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tests of the driver in virtual time. Each has a machine of its own, so that they run in parallel.

mod admin_queue;
mod client_failures;
mod drain;
mod effects;
mod events;
mod halt;
mod health;
mod kernel_clients;
mod lies;
mod limits;
mod lnd;
mod models;
mod phases;
mod probe;
mod probe_errors;
mod programs;
mod qp_states;
mod quarantine;
mod recovery;
mod schedules;
mod udata;
mod verbs;
mod work_requests;

use driver::{
    fault::{death, then},
    hardware::trace_device,
    rig::{self, Rig},
};
use efa_model::{Death, FailedReset, Profile, Then};
use ib_core::{registry::registered, stats};
use kernel::{
    error::Result,
    sim::{self, Policy, Rng},
};

/// Runs `f` with a device of a profile, without preemption.
fn run_with<R: 'static>(profile: Profile, f: impl FnOnce(&mut Rig) -> R) -> R {
    rig::run(profile, Policy::Sequential, f)
}

/// Runs `f` with a device of the second generation.
fn run<R: 'static>(f: impl FnOnce(&mut Rig) -> R) -> R {
    run_with(Profile::Efa2, f)
}

/// As [`run_with`], with a device that is bound.
fn run_bound_with<R: 'static>(profile: Profile, f: impl FnOnce(&mut Rig) -> R) -> R {
    run_with(profile, |rig| {
        rig.probe().unwrap();
        f(rig)
    })
}

/// As [`run`], with a device that is bound.
fn run_bound<R: 'static>(f: impl FnOnce(&mut Rig) -> R) -> R {
    run_bound_with(Profile::Efa2, f)
}

/// As [`run_bound`], with attributes of the device that differ from its profile.
fn run_bound_as<R: 'static>(attributes: &str, f: impl FnOnce(&mut Rig) -> R) -> R {
    run(|rig| {
        rig.set(attributes);
        rig.probe().unwrap();
        f(rig)
    })
}

/// Returns a policy that preempts tasks at random, as a seed determines.
fn at_random(seed: u64) -> Policy {
    Policy::Random {
        rng: Rng::new(seed),
        preempt: 3,
        hurry: 0,
    }
}

/// Kills a device, which then continues DMA until the reset of this number.
fn die_and_write(rig: &Rig, resets: u32) {
    // Without a minimum time for each access, the model would write millions of times.
    rig.shared.set_pace(50_000_000);
    rig.die(Death {
        dma: true,
        ..death(resets, FailedReset::NeverStarts)
    });
}

/// Completes a command without its interrupt.
fn no_interrupt() -> Then {
    then(r#"{"no_interrupt": true}"#)
}

/// Returns the result of `f`, and what the driver logs and the device does meanwhile.
fn traced<R>(f: impl FnOnce() -> R) -> (R, Vec<String>) {
    trace_device(true);
    sim::keep_log(true);
    let result = f();
    let log = sim::take_log();
    trace_device(false);
    sim::keep_log(false);
    (result, log)
}

/// Allocates a protection domain in a new program, by one command. Returns result and duration.
fn command() -> (Result, u64) {
    let program = match driver::program::Program::new() {
        Ok(program) => program,
        Err(error) => return (Err(error), 0),
    };
    let start = sim::now();
    let result = program.alloc_pd().map(drop);
    (result, sim::now() - start)
}

/// Returns the messages of the driver since [`sim::keep_log`], of a level if one is given.
fn messages(level: &str) -> Vec<String> {
    let start = format!("] 0000:00:05.0 {level}");
    let log = sim::take_log().into_iter();
    log.filter(|line| line.contains(&start)).collect()
}

/// Returns a counter of the device.
fn counter(name: &str) -> u64 {
    let values = stats::read_stats(registered().expect("a device"), 0).expect("counters");
    let found = values.into_iter().find(|(other, _)| other == name);
    found.expect("a counter of this name").1
}
