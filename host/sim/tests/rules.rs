// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Violations of the rules of locking and of the use of CPUs, none of which depends on the schedule.

use std::{env, panic, process::Command, rc::Rc};

use sim::{Class, Policy, RawLock, Work};

/// Runs `f` in a machine, and returns the message of its panic.
fn panic_of(f: impl FnOnce()) -> String {
    let run = panic::AssertUnwindSafe(|| sim::run(Policy::Sequential, f));
    let payload = panic::catch_unwind(run).expect_err("a panic");
    *payload.downcast::<String>().expect("a message")
}

/// Takes two locks, one after the other.
fn both(first: &RawLock, second: &RawLock) {
    first.lock(true);
    second.lock(true);
    second.unlock(true);
    first.unlock(true);
}

/// The two tasks never hold a lock at the same time.
#[test]
fn two_orders_of_locks_are_found() {
    let message = panic_of(|| {
        let locks = Rc::new((RawLock::new(), RawLock::of_class(Class::Name("other"))));
        let other = locks.clone();
        sim::join(sim::spawn("one", move || both(&other.0, &other.1)));
        sim::join(sim::spawn("two", move || both(&locks.1, &locks.0)));
    });
    assert!(message.contains("rules.rs"), "{message}");
    assert!(message.contains("with other held"), "{message}");
}

/// A work item has taken a lock that is held during the wait for its end.
#[test]
fn a_wait_for_work_that_needs_a_lock_is_found() {
    fn run(lock: usize) {
        // SAFETY: The lock exists as long as the machine.
        let lock = unsafe { &*(lock as *const RawLock) };
        lock.lock(true);
        lock.unlock(true);
    }
    let message = panic_of(|| {
        let lock = RawLock::of_class(Class::Name("of work"));
        let mut work = Work::new(run, &raw const lock as usize);
        work.queue(0);
        sim::sleep(1);
        lock.lock(true);
        work.disable_sync();
    });
    assert!(message.contains("with of work held"), "{message}");
}

#[test]
fn memory_of_a_program_is_not_accessed_under_dma_resv() {
    let message = panic_of(|| {
        let lock = RawLock::of_class(Class::DMA_RESV);
        lock.lock(true);
        sim::pass(Class::MMAP_LOCK);
    });
    assert!(message.contains("mmap_lock is waited for"), "{message}");
}

#[test]
fn a_long_loop_is_found_in_atomic_context_and_elsewhere() {
    for (sleeps, rounds, expected) in [
        (false, 3_000, "atomic context"),
        (true, 200_000, "without a sleep"),
    ] {
        let message = panic_of(move || {
            let lock = RawLock::new();
            lock.lock(sleeps);
            (0..rounds).for_each(|_| sim::point());
        });
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_machine_without_end_is_ended() {
    let message = panic_of(|| {
        sim::spawn("waits", || sim::wait_for(1));
        loop {
            sim::sleep(1_000_000_000);
        }
    });
    assert_eq!(message, "no end: main, waits");
}

/// A panic that reaches C aborts the process.
#[test]
#[ignore = "a_panic_that_aborts_is_reported runs it"]
fn panics_in_a_callback() {
    extern "C" fn callback(_: u32) {
        panic!("the message");
    }
    sim::run(Policy::Sequential, || callback(0));
}

#[test]
fn a_panic_that_aborts_is_reported() {
    let mut program = Command::new(env::current_exe().expect("this program"));
    let program = program.args(["--ignored", "--exact", "panics_in_a_callback"]);
    let output = program.output().expect("a process");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("panics_in_a_callback: "), "{text}");
    assert!(text.contains("the message"), "{text}");
}
