// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: three submitters, the interrupt handler, time limits, and the close of the queue.

use driver::fault::then;
use kernel::error::code::ENOMEM;

use super::*;
use crate::{counter, no_interrupt};

/// Limit on the commands in flight.
const SLOTS: usize = 32;

/// Starts three programs' threads, each with a command.
fn submitters(results: &Results<Result<u32>>) -> Vec<TaskId> {
    let (program, _) = program();
    (0..3)
        .map(|_| {
            let program = program.clone();
            results.spawn("submitter", move || program.alloc_pd())
        })
        .collect()
}

/// Searches three commands, of which the second one is executed as `then` says. Gives `check` the results.
fn one_of_three(
    property: &str,
    bounds: Bounds,
    then: fn() -> Then,
    check: fn(&Rig, Vec<Result<u32>>),
) {
    explore(property, Profile::Efa3, bounds, move |rig| {
        let results = Results::new();
        let tasks = submitters(&results);
        // The first ALLOC_PD is that of `program`.
        rig.inject(once(of_command(Some(Opcode::AllocPd)), then(), 1));
        together(tasks, || ());
        check(rig, results.take());
    });
}

fn failures(results: &[Result<u32>]) -> usize {
    results.iter().filter(|result| result.is_err()).count()
}

/// Each answer is the number of a queue with the depth that its task has asked for.
#[test]
fn each_command_ends_once_with_its_own_answer() {
    explore("answers", Profile::Efa3, TWO, |rig| {
        let (program, _) = program();
        let tasks = [16, 32, 64].map(|depth| {
            let (program, shared) = (program.clone(), rig.shared.clone());
            sim::spawn("creator", move || {
                let cq = program.create_cq(depth, false, None).unwrap();
                let queues = shared.with(|device, _, now| device.snapshot(now).completion_queues);
                let own = queues.iter().find(|queue| queue.number == cq.index);
                assert_eq!(own.map(|queue| queue.depth), Some(depth));
            })
        });
        together(tasks, || ());
        drop(program);
        rig.check_device();
        assert_eq!(counter("no_completion_cmds"), 0);
    });
}

/// A fatal error closes the queue: nobody waits for the time limit.
#[test]
fn a_closed_queue_ends_all_commands() {
    explore("close", Profile::Efa3, ONE, |rig| {
        let results = Results::new();
        let tasks = submitters(&results);
        rig.inject(always(of_command(Some(Opcode::AllocPd)), silence()));
        sim::sleep(SECOND / 1000);
        let start = sim::now();
        together(tasks, || rig.event(AenqGroup::FatalError.into(), 1));
        assert!(
            sim::now() - start < 10 * SECOND,
            "{} ns",
            sim::now() - start
        );
        assert_eq!(results.take().len(), 3);
        assert_eq!(rig.state("in_flight").as_deref(), Some("0"));
        comes_back(rig);
    });
}

/// The device takes a lower count for more commands than the ring has.
#[test]
fn doorbells_are_rung_in_order() {
    explore("doorbells", Profile::Efa4, TWO, |rig| {
        let results = Results::new();
        together(submitters(&results), || ());
        let admin = rig.device().admin;
        assert_eq!((admin.in_flight, admin.submitted), (0, admin.completed));
        assert_eq!(rig.device().protocol_errors, 0);
        assert_eq!(failures(&results.take()), 0);
    });
}

/// The device has one number, which it reuses at once. The driver refuses a number that is in use.
#[test]
fn two_queues_never_have_one_number() {
    search("numbers of queues", Profile::Efa3, STALL, |rig| {
        rig.set(r#"{"max_cq": 1}"#);
        rig.probe().unwrap();
        let (program, _) = program();
        let alive = Rc::new(RefCell::new(Vec::new()));
        let tasks = [(); 2].map(|()| {
            let (program, alive) = (program.clone(), alive.clone());
            sim::spawn("creator", move || {
                for _ in 0..2 {
                    let cq = match program.create_cq(16, false, None) {
                        Ok(cq) => cq,
                        Err(error) => {
                            assert_eq!(error, ENOMEM, "the number of a queue that is gone");
                            continue;
                        }
                    };
                    assert!(
                        !alive.borrow().contains(&cq.index),
                        "two queues have a number"
                    );
                    alive.borrow_mut().push(cq.index);
                    sim::point();
                    alive.borrow_mut().retain(|index| *index != cq.index);
                    program.process.destroy(cq.id).unwrap();
                }
            })
        });
        together(tasks, || ());
        drop(program);
        rig.check_device();
    });
}

#[test]
fn slots_are_free_after_all_commands() {
    let duplicate = || then(r#"{"duplicate": true}"#);
    one_of_three("slots", ONE, duplicate, |rig, results| {
        assert_eq!(failures(&results), 0);
        rig.inject(driver::fault::rule(
            r#"{"when": {"opcode": "ANY"}, "then": {"hold": "all"}}"#,
        ));
        let tasks: Vec<_> = (0..SLOTS + 1)
            .map(|_| sim::spawn("program", || assert!(crate::command().0.is_ok())))
            .collect();
        sim::sleep(SECOND);
        assert_eq!(rig.device().held.get("all"), Some(&SLOTS));
        rig.heal();
        tasks.into_iter().for_each(sim::join);
        rig.check_device();
    });
}

/// No interrupt of the admin queue arrives.
#[test]
fn a_lost_interrupt_delays_a_command() {
    search("lost interrupt", Profile::Efa3, ONE, |rig| {
        rig.set(r#"{"keep_alive_ms": 0, "driver_watchdog_timeout_ms": 65535}"#);
        rig.probe().unwrap();
        let results = Results::new();
        let tasks = submitters(&results);
        rig.inject(always(of_command(None), no_interrupt()));
        together(tasks, || ());
        assert_eq!(failures(&results.take()), 0);
        assert_eq!(counter("resets"), 0);
        rig.check_device();
    });
}

/// A command is completed or aborted. One that has timed out was aborted.
#[test]
fn counters_add_up() {
    one_of_three("counters", ONE, silence, |rig, results| {
        go_on();
        rig.check_quiet();
        let [submitted, completed, missing] =
            ["submitted_cmds", "completed_cmds", "no_completion_cmds"].map(counter);
        let aborted = submitted - completed;
        assert_eq!(missing, 1);
        assert!((missing..=3).contains(&aborted), "{aborted} aborted");
        assert!(failures(&results) as u64 >= aborted, "{results:?}");
    });
}

/// The device answers the second command with the id of another one.
#[test]
fn a_wrong_id_ends_no_command_of_another_task() {
    let wrong = || then(r#"{"wrong_id": true}"#);
    one_of_three("wrong id", ONE, wrong, |rig, results| {
        let failed = failures(&results);
        assert!((1..=3).contains(&failed), "{results:?}");
        assert!(results.iter().flatten().count() == 3 - failed);
        go_on();
        rig.check_quiet();
        assert_eq!(counter("no_completion_cmds"), 1);
    });
}

#[test]
fn each_wait_has_one_time_limit() {
    one_of_three("time limit", ONE, silence, |rig, results| {
        // The limit of a command, and that of the reset.
        assert!(sim::now() < 45 * SECOND, "{} ns", sim::now());
        assert_eq!(results.len(), 3);
        comes_back(rig);
    });
}

#[test]
fn a_command_completes_at_its_time_limit() {
    let late = || then(r#"{"delay_ms": 30000}"#);
    one_of_three("late answer", ONE, late, |rig, _| {
        go_on();
        rig.check_quiet();
        rig.check_device();
    });
}
