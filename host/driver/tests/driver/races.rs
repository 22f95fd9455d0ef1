// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Races of a few tasks, with each schedule of few preemptions: see [`sim::search`].

use driver::{
    client::{Objects, Request, Ulp, DIRECT},
    fault::{command as of_command, once, silence},
    program::{self, Program},
    rig::{self, Rig},
};
use efa_hw::admin::Opcode;
use efa_model::{Death, Profile};
use ib_core::client;
use kernel::sim;

/// The group of this event.
const FATAL_ERROR: u16 = 1;

/// Binds a device for each schedule of the [searched](sim::searched) part of `race` that deviates at most so often, and checks what is left
/// of it.
fn search(bound: usize, race: impl Fn(&mut Rig) + Copy + 'static) {
    let runs = sim::search(bound, |policy| {
        rig::run(Profile::Efa3, policy, |rig| {
            rig.probe().unwrap();
            race(rig);
        });
    });
    assert!(runs > 100, "{runs} schedules");
}

/// Has two programs do the same while something happens to their device.
fn at_once(what: impl FnOnce(), f: impl Fn(&Program) + Copy + 'static) {
    let tasks = [(); 2].map(|()| {
        let program = Program::new().unwrap();
        sim::spawn("program", move || f(&program))
    });
    sim::searched(|| {
        what();
        tasks.into_iter().for_each(sim::join);
    });
}

fn nothing() {}

#[test]
fn two_commands() {
    search(2, |rig| {
        at_once(nothing, |program| assert!(program.alloc_pd().is_ok()));
        rig.check_device();
    });
}

#[test]
fn a_command_and_its_time_limit() {
    search(1, |rig| {
        rig.inject(once(of_command(Some(Opcode::AllocPd)), silence(), 0));
        at_once(nothing, |program| {
            let _ = program.alloc_pd();
        });
        rig.check_quiet();
        rig.check_device();
    });
}

/// Two programs share the handle of a peer, which the device has once.
#[test]
fn two_address_handles_of_a_peer() {
    search(1, |rig| {
        at_once(nothing, |program| {
            let pd = program.alloc_pd().unwrap();
            let gid = program::own_gid().unwrap();
            for _ in 0..2 {
                let (id, _) = program.create_ah(pd, &gid).unwrap();
                program.process.destroy(id).unwrap();
            }
        });
        rig.check_device();
    });
}

/// Has a program create all kinds of objects while something happens to their device.
fn objects_and(what: impl FnOnce()) {
    let task = sim::spawn("program", || drop(program::Objects::new()));
    sim::searched(|| {
        what();
        sim::join(task);
    });
}

#[test]
fn objects_and_a_removal() {
    search(1, |rig| objects_and(|| rig.remove()));
}

#[test]
fn objects_and_a_reset() {
    search(1, |rig| {
        objects_and(|| rig.reset());
        rig.check_device();
    });
}

#[test]
fn objects_and_the_death_of_the_device() {
    search(1, |rig| {
        objects_and(|| rig.die(Death::default()));
        rig.check_quiet();
        rig.check_device();
    });
}

#[test]
fn a_kernel_client_and_a_removal() {
    search(1, |rig| {
        let ulp = Ulp::new(|device| Objects::new(device, DIRECT), true);
        let number = client::register_client(ulp.clone());
        let sender = sim::spawn("sender", move || {
            let request = Request::new(0);
            let _ = ulp.with(|objects| objects.post_recv(&request));
            // It may not have ended.
            std::mem::forget(request);
        });
        sim::searched(|| {
            rig.remove();
            sim::join(sender);
        });
        client::unregister_client(number);
    });
}

/// The device reports a failure, and completes the commands that it has.
#[test]
fn commands_and_a_failure() {
    search(1, |rig| {
        sim::keep_log(true);
        let fail = || {
            rig.shared
                .with(|device, machine, now| device.post_event(machine, now, FATAL_ERROR, 0));
        };
        at_once(fail, |program| {
            for _ in 0..4 {
                let _ = program.alloc_pd();
            }
        });
        rig.check_quiet();
        rig.check_device();
        let log = sim::take_log().concat();
        assert!(log.contains("The device has failed (fatal_error)"), "{log}");
        assert!(!log.contains("which no command has"), "{log}");
    });
}
