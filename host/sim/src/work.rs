// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work items, which may be delayed.

use std::cell::Cell;

use crate::{
    lock_order::{pass, Class},
    machine::{now, world},
    task::{might_sleep, wait_for},
    Nanos,
};

/// A work item that may be delayed. Its owner disables it before its memory is freed.
pub struct Work {
    pub(crate) function: fn(usize),
    pub(crate) argument: usize,
    pub(crate) due: Option<Nanos>,
    pub(crate) is_running: bool,
    disabled: u32,
    number: u64,
}

thread_local! {
    static NUMBERS: Cell<u64> = const { Cell::new(0) };
}

impl Work {
    /// Returns an item that is not queued. `function` is called with `argument`.
    pub fn new(function: fn(usize), argument: usize) -> Self {
        Self {
            function,
            argument,
            due: None,
            is_running: false,
            disabled: 0,
            number: NUMBERS.replace(NUMBERS.get() + 1),
        }
    }

    pub(crate) fn class(&self) -> Class {
        Class::Work(self.number)
    }

    fn set_due(&mut self, due: Nanos) {
        if self.disabled == 0 {
            if self.due.is_none() {
                let this: *mut Self = self;
                world(|world| world.works.push(this));
            }
            self.due = Some(due);
        }
    }

    fn cancel(&mut self) {
        if self.due.take().is_some() {
            let this: *mut Self = self;
            world(|world| world.works.retain(|work| *work != this));
        }
    }

    /// Queues the item, or changes when it is due.
    pub fn modify(&mut self, delay: Nanos) {
        self.set_due(now() + delay);
    }

    /// Queues the item, unless it is queued.
    pub fn queue(&mut self, delay: Nanos) {
        if self.due.is_none() {
            self.set_due(now() + delay);
        }
    }

    /// Cancels the item, and keeps it from being queued until [`Work::enable`] is called as often.
    pub fn disable(&mut self) {
        self.disabled += 1;
        self.cancel();
    }

    /// Reverts one [`Work::disable`].
    pub fn enable(&mut self) {
        self.disabled -= 1;
    }

    /// Disables the item, and waits until it does not run.
    pub fn disable_sync(&mut self) {
        might_sleep("waiting for work");
        pass(self.class());
        self.disable();
        let this: *mut Self = self;
        // SAFETY: The item exists, as the owner waits here. The machine changes it meanwhile.
        while unsafe { (&raw const (*this).is_running).read_volatile() } {
            wait_for(this as usize);
        }
    }
}
