// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions, semaphores and spinlocks.

use core::{cell::Cell, ffi::CStr, ptr::null};

use sim::{Class, RawLock};

use super::{lock_class_key, spinlock_t, ETIME};
use crate::{
    ffi::{c_char, c_int, c_long, c_ulong},
    time::JIFFY,
};

pub struct completion {
    pub done: u32,
}

pub unsafe fn jiffies64_to_msecs(jiffies: u64) -> u64 {
    jiffies
}

fn place<T>(what: *mut T) -> usize {
    what as usize
}

fn end(jiffies: usize, start: u64) -> Option<u64> {
    Some(start.saturating_add((jiffies as u64).saturating_mul(JIFFY)))
}

pub unsafe fn init_completion(slot: *mut completion) {
    // SAFETY: The caller guarantees that there is room.
    unsafe { slot.write(completion { done: 0 }) };
}

unsafe fn try_wait(this: *mut completion) -> bool {
    sim::point();
    // SAFETY: The caller guarantees that the completion is initialized.
    let done = unsafe { &mut (*this).done };
    let is_done = *done != 0;
    *done -= u32::from(is_done);
    is_done
}

pub unsafe fn complete(this: *mut completion) {
    // SAFETY: As above.
    unsafe { (*this).done += 1 };
    sim::signal(place(this));
    sim::point();
}

pub unsafe fn wait_for_completion_timeout(this: *mut completion, jiffies: c_ulong) -> c_ulong {
    sim::might_sleep("waiting for a completion");
    let start = sim::now();
    let mut may_wait = true;
    loop {
        // SAFETY: As above.
        if unsafe { try_wait(this) } {
            let waited = (sim::now() - start).div_ceil(JIFFY) as usize;
            return jiffies.saturating_sub(waited).max(1);
        }
        if !may_wait {
            return 0;
        }
        may_wait = sim::wait_until(place(this), end(jiffies, start));
    }
}

/// Serves waiters in the order of their arrival.
pub struct semaphore {
    count: Cell<u32>,
    first: Cell<*const Waiter>,
}

/// A list entry on the stack of the waiting task.
struct Waiter {
    is_served: Cell<bool>,
    next: Cell<*const Waiter>,
}

impl semaphore {
    /// Returns the link that points to a waiter, or the last link, which is null.
    ///
    /// # Safety
    ///
    /// All tasks in the list must be waiting.
    unsafe fn find(&self, waiter: *const Waiter) -> &Cell<*const Waiter> {
        let mut place = &self.first;
        while place.get() != waiter && !place.get().is_null() {
            // SAFETY: The caller guarantees that the waiter exists.
            place = unsafe { &(*place.get()).next };
        }
        place
    }
}

pub unsafe fn sema_init(slot: *mut semaphore, count: c_int) {
    let semaphore = semaphore {
        count: Cell::new(count as u32),
        first: Cell::new(null()),
    };
    // SAFETY: The caller guarantees that there is room.
    unsafe { slot.write(semaphore) };
}

pub unsafe fn down_trylock(this: *mut semaphore) -> c_int {
    sim::point();
    // SAFETY: As above.
    let count = unsafe { &(*this).count };
    match count.get().checked_sub(1) {
        Some(left) => {
            count.set(left);
            0
        }
        None => 1,
    }
}

pub unsafe fn down_timeout(this: *mut semaphore, jiffies: c_long) -> c_int {
    sim::might_sleep("a semaphore is taken");
    sim::point();
    let end = end(jiffies as usize, sim::now());
    // SAFETY: As above.
    let this = unsafe { &*this };
    if let Some(left) = this.count.get().checked_sub(1) {
        this.count.set(left);
        return 0;
    }
    let waiter = Waiter {
        is_served: Cell::new(false),
        next: Cell::new(null()),
    };
    // SAFETY: The tasks in the list are in this function, which removes their entries.
    unsafe { this.find(null()) }.set(&raw const waiter);
    while !waiter.is_served.get() {
        if !sim::wait_until((&raw const waiter) as usize, end) && !waiter.is_served.get() {
            // SAFETY: As above.
            unsafe { this.find(&raw const waiter) }.set(waiter.next.get());
            return -ETIME;
        }
    }
    0
}

pub unsafe fn up(this: *mut semaphore) {
    // SAFETY: As above.
    let this = unsafe { &*this };
    // SAFETY: The tasks in the list are in `down_timeout`.
    match unsafe { this.first.get().as_ref() } {
        None => this.count.set(this.count.get() + 1),
        Some(waiter) => {
            this.first.set(waiter.next.get());
            waiter.is_served.set(true);
            sim::signal((&raw const *waiter) as usize);
        }
    }
    sim::point();
}

const _: () = assert!(
    size_of::<RawLock>() <= size_of::<spinlock_t>()
        && align_of::<RawLock>() <= align_of::<spinlock_t>()
);

pub unsafe fn __spin_lock_init(
    slot: *mut spinlock_t,
    name: *const c_char,
    _key: *mut lock_class_key,
) {
    // SAFETY: The caller passes a static text.
    let name: &'static CStr = unsafe { CStr::from_ptr(name.cast()) };
    let class = Class::Name(name.to_str().expect("a name in ASCII"));
    // SAFETY: The caller guarantees that there is room.
    unsafe { slot.cast::<RawLock>().write(RawLock::of_class(class)) };
}

/// Disables no interrupts: the holder of the lock is in atomic context.
pub unsafe fn _raw_spin_lock_irqsave(lock: *mut RawLock) -> c_ulong {
    // SAFETY: The caller guarantees that the lock is initialized.
    unsafe { (*lock).lock(false) };
    0
}

pub unsafe fn _raw_spin_unlock_irqrestore(lock: *mut RawLock, _flags: c_ulong) {
    // SAFETY: As above.
    unsafe { (*lock).unlock(false) };
}
