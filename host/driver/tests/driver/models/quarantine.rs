// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that a device has not released: it is kept until the device was reset, and not for longer.

use kernel::{
    error::code::{EIO, ENOENT},
    module,
};

use super::*;
use crate::counter;

/// Limit on the destructions that a device may refuse.
const REFUSED: usize = 64;

/// Destroys a queue. It is gone already if its device was reset.
fn end(program: &Program, queue: u32) {
    let result = program.process.destroy(queue);
    assert!(
        [Ok(()), Err(ENOENT), Err(EIO)].contains(&result),
        "{result:?}"
    );
}

/// Destroys two queues, of which the device refuses one, while `what` happens.
fn refuse(rig: &mut Rig, what: fn(&Rig)) {
    let (program, _) = program();
    let queues = [(); 2].map(|()| program.create_cq(16, false, None).unwrap().id);
    rig.inject(once(of_command(Some(Opcode::DestroyCq)), status(5), 0));
    let tasks = queues.map(|queue| {
        let program = program.clone();
        sim::spawn("destroyer", move || end(&program, queue))
    });
    together(tasks, || {
        // The others begin.
        sim::sleep(1000);
        what(rig);
    });
    rig.heal();
}

fn kept(rig: &Rig) -> usize {
    rig.state("quarantine").unwrap().parse().unwrap()
}

/// The device says so itself if memory that it knows is unmapped.
#[test]
fn memory_that_the_device_knows_is_not_freed() {
    explore("refused", Profile::Efa3, TWO, |rig| {
        refuse(rig, |_| ());
        assert_eq!((kept(rig), rig.device().resources.cq), (1, 1));
        assert_eq!(counter("resets"), 0);
    });
}

#[test]
fn nothing_is_kept_after_a_reset() {
    explore("refused in a reset", Profile::Efa3, STALL, |rig| {
        refuse(rig, |rig| rig.reset());
        go_on();
        rig.check_quiet();
        // What is refused after the reset is that of the next session.
        assert_eq!(kept(rig), rig.device().resources.cq);
        rig.reset();
        assert_eq!(kept(rig), 0);
    });
}

/// The device is given up, so that no later start frees what is kept.
#[test]
fn nothing_is_kept_after_a_failure() {
    search("refused in a failure", Profile::Efa3, STALL, |rig| {
        module::set_parameter("recovery", Some(0));
        rig.probe().unwrap();
        refuse(rig, |rig| rig.event(AenqGroup::FatalError.into(), 1));
        go_on();
        state_is(rig, &["failed"]);
        assert_eq!(kept(rig), 0);
    });
}

/// Each queue has reserved its place, so that keeping its memory needs no allocation.
#[test]
fn what_is_kept_has_a_place() {
    explore("places", Profile::Efa3, ONE, |rig| {
        let (program, _) = program();
        let tasks = [(); 2].map(|()| {
            let program = program.clone();
            sim::spawn("creator", move || {
                let queue = program.create_cq(16, false, None).unwrap().id;
                sim::point();
                program.process.destroy(queue).unwrap();
            })
        });
        rig.inject(always(of_command(Some(Opcode::DestroyCq)), status(5)));
        together(tasks, || ());
        assert_eq!((kept(rig), rig.device().resources.cq), (2, 2));
        rig.heal();
        drop(program);
        rig.reset();
        assert_eq!(kept(rig), 0);
    });
}

/// Two tasks exceed the limit at the same time.
#[test]
fn a_device_that_refuses_too_much_is_halted_once() {
    explore("limit", Profile::Efa3, ONE, |rig| {
        let (program, _) = program();
        let mut queues: Vec<_> = (0..REFUSED + 2)
            .map(|_| program.create_cq(16, false, None).unwrap().id)
            .collect();
        rig.inject(always(of_command(Some(Opcode::DestroyCq)), status(5)));
        let last = queues.split_off(REFUSED - 1);
        for queue in queues {
            program.process.destroy(queue).unwrap();
        }
        assert_eq!((kept(rig), counter("resets")), (REFUSED - 1, 0));
        let tasks: Vec<_> = last
            .into_iter()
            .map(|queue| {
                let program = program.clone();
                sim::spawn("destroyer", move || end(&program, queue))
            })
            .collect();
        together(tasks, || ());
        rig.heal();
        go_on();
        rig.check_quiet();
        assert_eq!((kept(rig), counter("resets")), (0, 1));
        drop(program);
        comes_back(rig);
    });
}
