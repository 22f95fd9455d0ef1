// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Locks without the data that they protect.

use std::cell::Cell;

use crate::{
    policy::point,
    task::{change_atomic, current, might_sleep, signal, wait_for},
    TaskId,
};

/// A mutex or spinlock. The holder of a spinlock is in atomic context.
#[derive(Default)]
pub struct RawLock {
    owner: Cell<Option<TaskId>>,
    has_waiters: Cell<bool>,
}

impl Drop for RawLock {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(
                self.owner.get().is_none() && !self.has_waiters.get(),
                "a lock is freed while it is in use"
            );
        }
    }
}

impl RawLock {
    /// Returns a lock that is not held.
    pub const fn new() -> Self {
        Self {
            owner: Cell::new(None),
            has_waiters: Cell::new(false),
        }
    }

    /// Takes the lock. `sleeps`: whether it is a mutex.
    pub fn lock(&self, sleeps: bool) {
        if sleeps {
            might_sleep("a mutex is taken");
        }
        point();
        let current = current();
        while let Some(owner) = self.owner.get() {
            assert!(owner != current, "a lock is taken twice by one task");
            self.has_waiters.set(true);
            wait_for(self.place());
        }
        self.owner.set(Some(current));
        if !sleeps {
            change_atomic(1);
        }
    }

    /// Takes the lock if it is free, and returns whether it was.
    pub fn try_lock(&self, sleeps: bool) -> bool {
        point();
        let is_free = self.owner.get().is_none();
        if is_free {
            self.owner.set(Some(current()));
            change_atomic(i32::from(!sleeps));
        }
        is_free
    }

    /// Releases the lock; `sleeps` as for [`RawLock::lock`].
    pub fn unlock(&self, sleeps: bool) {
        self.release(sleeps);
        point();
    }

    /// As [`RawLock::unlock`], without a preemption point, for a task that waits next.
    pub fn release(&self, sleeps: bool) {
        self.owner.set(None);
        if !sleeps {
            change_atomic(-1);
        }
        if self.has_waiters.replace(false) {
            signal(self.place());
        }
    }

    fn place(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }
}

/// A reader-writer semaphore. As in the kernel, a waiting writer blocks new readers.
#[derive(Default)]
pub struct Rw {
    readers: Cell<u32>,
    is_written: Cell<bool>,
    waiting: Cell<u32>,
}

impl Rw {
    fn place(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Takes it for reading, unless a task writes or waits to write. Returns whether it was taken.
    pub fn try_read(&self) -> bool {
        point();
        let is_free = !self.is_written.get() && self.waiting.get() == 0;
        if is_free {
            self.readers.set(self.readers.get() + 1);
        }
        is_free
    }

    /// Takes it for reading.
    pub fn read(&self) {
        might_sleep("a semaphore is taken");
        while !self.try_read() {
            wait_for(self.place());
        }
    }

    /// Ends reading.
    pub fn end_read(&self) {
        self.readers.set(self.readers.get() - 1);
        signal(self.place());
        point();
    }

    /// Takes it for writing.
    pub fn write(&self) {
        might_sleep("a semaphore is taken");
        point();
        self.waiting.set(self.waiting.get() + 1);
        while self.is_written.get() || self.readers.get() != 0 {
            wait_for(self.place());
        }
        self.waiting.set(self.waiting.get() - 1);
        self.is_written.set(true);
    }

    /// Ends writing.
    pub fn end_write(&self) {
        self.is_written.set(false);
        signal(self.place());
        point();
    }

    /// Converts writing to reading.
    pub fn downgrade(&self) {
        self.is_written.set(false);
        self.readers.set(self.readers.get() + 1);
        signal(self.place());
    }
}
