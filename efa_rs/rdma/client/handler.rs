// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Handlers of completion events.

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

/// A handler that is called when completions can be polled.
pub(crate) trait CompletionHandler: Send + Sync {
    /// Called in any context, interrupt handlers included, once for each requested notification.
    fn completed(&self);
}

/// Interval of the checks whether a handler still runs.
const CLOSE_INTERVAL: Delta = Delta::from_millis(1);

/// Whether a handler may be called, and the number of calls in progress.
pub(super) struct Gate {
    is_closed: Atomic<bool>,
    calls: Atomic<u32>,
}

impl Gate {
    /// Returns whether the handler may be called.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.load(Acquire)
    }

    /// Prevents further calls of the handler, and waits for calls in progress. May sleep. Calls are
    /// short, because interrupt handlers make them.
    pub(super) fn close(&self) {
        // A call that starts later sees the flag; a call that has started before is counted.
        self.is_closed.xchg(true, Full);
        while self.calls.load(Acquire) != 0 {
            fsleep(CLOSE_INTERVAL);
        }
    }
}

/// A handler and its gate, to which the core's object points.
pub(super) struct Handler<'a> {
    gate: Arc<Gate>,
    handler: Arc<dyn CompletionHandler + 'a>,
}

impl<'a> Handler<'a> {
    /// Boxes a handler, so that its address does not change.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(handler: Arc<dyn CompletionHandler + 'a>) -> Result<KBox<Self>> {
        let gate = Gate {
            is_closed: Atomic::new(false),
            calls: Atomic::new(0),
        };
        let gate = Arc::new(gate, GFP_KERNEL)?;
        Ok(KBox::new(Self { gate, handler }, GFP_KERNEL)?)
    }

    /// Returns the context that the core must pass to [`on_completion`].
    pub(super) fn context(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the gate.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}

/// Handles a completion event. Called by the provider of a completion queue.
///
/// # Safety
///
/// `context` must be that of a [`Handler`], which is freed only after the queue was destroyed.
pub(super) unsafe extern "C" fn on_completion(_cq: *mut ffi::ib_cq, context: *mut c_void) {
    // SAFETY: The caller guarantees that the handler exists. Its data is valid while the gate is
    // open.
    let this = unsafe { &*context.cast::<Handler<'_>>() };
    this.gate.calls.fetch_add(1, Full);
    if this.gate.is_open() {
        this.handler.completed();
    }
    this.gate.calls.fetch_sub(1, Full);
}
