// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A machine in one thread: tasks, interrupts, work, memory and a device, with a virtual clock.
//!
//! A task is a coroutine. It runs until it blocks, or until the [`Policy`] preempts it at a
//! [`point`]. An interrupt handler, its thread and each work item are separate tasks. So
//! others can run in the middle of each, as on other CPUs. The clock advances only when no task can
//! run, or when the policy decides so. Runs with the same policy and seed are identical.
//!
//! Each OS thread has its own machine. Tests of one process can run in parallel.
//!
//! # What the machine checks
//!
//! | the kernel's rule | what checks it here |
//! |---|---|
//! | no sleep in atomic context | [`might_sleep`] panics |
//! | some task can run, or the clock can move | [`run`] panics with the names of the tasks that wait |
//! | no task waits for more than two minutes, nor does a call take longer | [`take_longest_wait`], [`take_longest_call`] |
//! | no task takes a CPU for long, nor stays in atomic context | [`count_step`] panics |
//! | the machine ends | [`run`] panics with the names of the tasks that are left |
//! | locks are taken in one order | [`RawLock`], [`Rw`], [`Work::disable_sync`], [`disable_line`] and [`pass`] panic |
//! | a lock is not taken twice, nor freed while held | [`RawLock`] panics |
//! | what a device writes is read once | [`memory::read_once`] changes it |
//! | a device accesses mapped memory only | [`memory::take_violations`] |
//! | memory is freed after the device has released it | [`memory::set_strict`] |
//! | each allocation may fail | [`fail_allocation`] |
//! | memory is not used after it is freed | it has a pattern; a write to it is a violation |
//! | what was allocated is freed | [`live`], [`memory::mappings`] |
//! | no handler or work runs after the end | [`under_way`] |
//!
//! Weak memory, and an interrupt on the CPU that holds a lock, are not modelled.

mod failing;
mod freed;
mod hardware;
mod irq;
mod lock;
mod lock_order;
mod log;
mod machine;
pub mod memory;
mod policy;
mod report;
mod task;
mod work;

pub use self::{
    failing::{
        allocations, count_allocated, count_freed, fail_allocation, has_failed, live, may_allocate,
        take_failed,
    },
    hardware::{attach, detach, device, kick_device, write_device, Hardware},
    irq::{
        allocate_lines, disable_line, enable_line, enable_lines, free_line, has_handler, interrupt,
        request_line,
    },
    lock::{RawLock, Rw},
    lock_order::{pass, Class},
    log::{keep_log, log, take_log},
    machine::{now, run, switches},
    policy::{hurries, point, search, searched, stall, take_stall, Policy, Rng},
    task::{
        block, change_atomic, count_step, current, is_atomic, join, might_sleep, signal, sleep,
        spawn, take_longest_call, take_longest_wait, timed, under_way, wait_for, wait_until, wake,
    },
    work::Work,
};

/// Nanoseconds.
pub type Nanos = u64;

/// The number of a task.
pub type TaskId = usize;
