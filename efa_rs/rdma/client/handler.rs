// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Handlers of completions.

use core::ptr::NonNull;

use kernel::{
    ffi::c_void,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use crate::ffi;

/// Is called when there are completions to poll.
pub(crate) trait CompletionHandler: Send + Sync {
    /// Called in any context, interrupt handlers included, once for each time that it was asked for.
    fn completed(&self);
}

/// How often to look whether a handler still runs.
const CLOSE_INTERVAL: Delta = Delta::from_millis(1);

/// Whether a handler may be called, and how many calls there are at the moment.
pub(super) struct Gate {
    is_closed: Atomic<bool>,
    calls: Atomic<u32>,
}

impl Gate {
    /// Has the handler not called any more, and waits until it is not. May sleep.
    pub(super) fn close(&self) {
        // A call that enters after this sees it; one that has entered before is counted.
        self.is_closed.xchg(true, Full);
        while self.calls.load(Acquire) != 0 {
            fsleep(CLOSE_INTERVAL);
        }
    }
}

/// A handler, and what the core's object points to.
pub(super) struct Handler<'a> {
    gate: Gate,
    handler: Arc<dyn CompletionHandler + 'a>,
}

impl<'a> Handler<'a> {
    /// Takes a handler, to an address that stays.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(handler: Arc<dyn CompletionHandler + 'a>) -> Result<KBox<Self>> {
        let gate = Gate {
            is_closed: Atomic::new(false),
            calls: Atomic::new(0),
        };
        Ok(KBox::new(Self { gate, handler }, GFP_KERNEL)?)
    }

    /// Returns what the core is to pass to [`on_completion`].
    pub(super) fn context(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns where the gate is.
    pub(super) fn gate(&self) -> NonNull<Gate> {
        NonNull::from(&self.gate)
    }
}

/// Called by the provider of a completion queue.
///
/// # Safety
///
/// `context` must be that of a [`Handler`], which is freed only after the queue was destroyed.
pub(super) unsafe extern "C" fn on_completion(_cq: *mut ffi::ib_cq, context: *mut c_void) {
    // SAFETY: The caller guarantees that the handler is there. What is valid for its lifetime is so as long as the gate is
    // open.
    let this = unsafe { &*context.cast::<Handler<'_>>() };
    this.gate.calls.fetch_add(1, Full);
    if !this.gate.is_closed.load(Acquire) {
        this.handler.completed();
    }
    this.gate.calls.fetch_sub(1, Full);
}
