// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions and semaphores.

use core::cell::Cell;

use super::ETIME;
use crate::{
    ffi::{c_int, c_long, c_ulong},
    time::JIFFY,
};

pub struct completion {
    done: Cell<u32>,
}

fn place<T>(what: *mut T) -> usize {
    what as usize
}

fn end(jiffies: usize) -> Option<u64> {
    Some(sim::now().saturating_add((jiffies as u64).saturating_mul(JIFFY)))
}

pub unsafe fn init_completion(slot: *mut completion) {
    // SAFETY: The caller guarantees that there is room.
    unsafe { slot.write(completion { done: Cell::new(0) }) };
}

pub unsafe fn try_wait_for_completion(this: *mut completion) -> bool {
    sim::point();
    // SAFETY: The caller guarantees that it is initialized.
    let done = unsafe { &(*this).done };
    match done.get() {
        0 => return false,
        u32::MAX => {}
        count => done.set(count - 1),
    }
    true
}

pub unsafe fn complete(this: *mut completion) {
    // SAFETY: As above.
    let done = unsafe { &(*this).done };
    if done.get() != u32::MAX {
        done.set(done.get() + 1);
    }
    sim::signal(place(this));
    sim::point();
}

pub unsafe fn complete_all(this: *mut completion) {
    // SAFETY: As above.
    unsafe { (*this).done.set(u32::MAX) };
    sim::signal(place(this));
    sim::point();
}

pub unsafe fn wait_for_completion_timeout(this: *mut completion, jiffies: c_ulong) -> c_ulong {
    sim::might_sleep("waiting for a completion");
    let end = end(jiffies);
    loop {
        // SAFETY: As above.
        if unsafe { try_wait_for_completion(this) } {
            return 1;
        }
        if !sim::wait_until(place(this), end) {
            // SAFETY: As above.
            return unsafe { try_wait_for_completion(this) }.into();
        }
    }
}

pub struct semaphore {
    count: Cell<u32>,
}

pub unsafe fn sema_init(slot: *mut semaphore, count: c_int) {
    let count = Cell::new(count as u32);
    // SAFETY: The caller guarantees that there is room.
    unsafe { slot.write(semaphore { count }) };
}

pub unsafe fn down_timeout(this: *mut semaphore, jiffies: c_long) -> c_int {
    sim::might_sleep("a semaphore is taken");
    sim::point();
    let end = end(jiffies as usize);
    // SAFETY: As above.
    let count = unsafe { &(*this).count };
    let mut in_time = true;
    loop {
        if let Some(left) = count.get().checked_sub(1) {
            count.set(left);
            return 0;
        }
        if !in_time {
            return -ETIME;
        }
        in_time = sim::wait_until(place(this), end);
    }
}

pub unsafe fn up(this: *mut semaphore) {
    // SAFETY: As above.
    let count = unsafe { &(*this).count };
    count.set(count.get() + 1);
    sim::signal(place(this));
    sim::point();
}
