// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tests of the driver in virtual time. Each has a machine of its own, so that they run in parallel.

mod admin_queue;
mod client_findings;
mod drain;
mod effects;
mod events;
mod findings;
mod halt;
mod kernel_clients;
mod known;
mod lies;
mod probe;
mod probe_errors;
mod programs;
mod races;
mod recovery;
mod schedules;
mod udata;
mod verbs;

use driver::rig::{self, Rig};
use efa_model::Profile;
use ib_core::{registry::registered, stats};
use kernel::{
    error::Result,
    sim::{self, Policy},
};

/// Runs `f` with a device of a profile, without preemption.
fn run_with<R: 'static>(profile: Profile, f: impl FnOnce(&mut Rig) -> R) -> R {
    rig::run(profile, Policy::Sequential, f)
}

/// Runs `f` with a device of the second generation.
fn run<R: 'static>(f: impl FnOnce(&mut Rig) -> R) -> R {
    run_with(Profile::Efa2, f)
}

/// Runs `f` with a device that has faults. Known findings may explain complaints at the end.
fn run_known(profile: Profile, f: impl FnOnce(&mut Rig)) {
    rig::run_without_end(profile, Policy::Sequential, |mut rig| {
        f(&mut rig);
        rig.end_unless_known();
    });
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
