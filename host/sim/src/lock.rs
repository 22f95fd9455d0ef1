// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Locks without the data that they protect.

use std::{cell::Cell, panic::Location};

use crate::{
    lock_order::{acquire, hold, release, Class},
    policy::point,
    task::{change_atomic, current, might_sleep, signal, wait_for},
    TaskId,
};

/// A mutex or spinlock. The holder of a spinlock is in atomic context.
pub struct RawLock {
    class: Class,
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
    /// Returns a lock that is not held. All locks that one line of a source creates are a class.
    #[track_caller]
    #[allow(
        clippy::new_without_default,
        reason = "the line would be that of `Default`"
    )]
    pub const fn new() -> Self {
        Self::of_class(Class::Place(Location::caller()))
    }

    /// As [`RawLock::new`], with a class.
    pub const fn of_class(class: Class) -> Self {
        Self {
            class,
            owner: Cell::new(None),
            has_waiters: Cell::new(false),
        }
    }

    /// Takes the lock. `sleeps`: whether it is a mutex.
    pub fn lock(&self, sleeps: bool) {
        if sleeps {
            might_sleep("a mutex is taken");
        }
        acquire(self.class);
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
        release(self.class);
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
pub struct Rw {
    class: Class,
    readers: Cell<u32>,
    is_written: Cell<bool>,
    waiting: Cell<u32>,
}

impl Rw {
    /// Returns a semaphore that is not held, of the class of the line that creates it.
    #[track_caller]
    #[allow(
        clippy::new_without_default,
        reason = "the line would be that of `Default`"
    )]
    pub const fn new() -> Self {
        Self {
            class: Class::Place(Location::caller()),
            readers: Cell::new(0),
            is_written: Cell::new(false),
            waiting: Cell::new(0),
        }
    }

    fn place(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Takes it for reading, unless a task writes or waits to write. Returns whether it was taken.
    pub fn try_read(&self) -> bool {
        let is_free = self.try_to_read();
        if is_free {
            hold(self.class);
        }
        is_free
    }

    fn try_to_read(&self) -> bool {
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
        acquire(self.class);
        while !self.try_to_read() {
            wait_for(self.place());
        }
    }

    /// Ends reading.
    pub fn end_read(&self) {
        release(self.class);
        self.readers.set(self.readers.get() - 1);
        signal(self.place());
        point();
    }

    /// Takes it for writing.
    pub fn write(&self) {
        might_sleep("a semaphore is taken");
        acquire(self.class);
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
        release(self.class);
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
