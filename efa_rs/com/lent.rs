// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device knows of, and when it can be given back.

use core::ops::Deref;

use kernel::{
    prelude::*,
    sync::Arc,
    time::Delta, //
};

use super::{
    error::CommandError,
    quarantine::Quarantine, //
};
use crate::sys::{
    atomic::{
        Acquire,
        AtomicBool,
        AtomicU32,
        Relaxed,
        Release, //
    },
    completion::Completion, //
};

/// How long to wait for a device to be stopped that does not answer. What that takes at most: two resets
/// with halves of 3.1 s each, a reset by the bus between them, and what reads of registers take.
const HALT_TIMEOUT: Delta = Delta::from_secs(20);

/// The device may use memory.
const RUNNING: u32 = 0;
/// The device is no bus master, and was not reset.
const HALTED: u32 = 1;
/// The device was reset, or is gone.
const STOPPED: u32 = 2;

/// Whether the device may use what it was told of in one session.
#[pin_data]
pub(crate) struct Epoch<'bound> {
    state: AtomicU32,
    #[pin]
    over: Completion,
    quarantine: Arc<Quarantine<'bound>>,
}

impl<'bound> Epoch<'bound> {
    /// Makes the epoch of a new session.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(quarantine: &Arc<Quarantine<'bound>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state: AtomicU32::new(RUNNING),
                over <- Completion::new(),
                quarantine: quarantine.clone(),
            }),
            GFP_KERNEL,
        )
    }

    /// Says that the device was reset, or else that it is no bus master any more.
    pub(super) fn end(&self, was_reset: bool) {
        self.state
            .store(if was_reset { STOPPED } else { HALTED }, Release);
        self.over.complete_all();
    }

    /// Returns whether the device can't use anything of the session any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.load(Acquire) == STOPPED
    }

    /// Returns whether the device can't write to memory of the session any more.
    pub(crate) fn is_halted(&self) -> bool {
        self.state.load(Acquire) != RUNNING
    }

    /// Decides what has become of an object that the device was told to destroy.
    ///
    /// A device that does not answer is stopped by whoever looks after it, and this waits until it
    /// is: then the object is gone as well.
    ///
    /// # Errors
    ///
    /// - Those of the command if the device refuses, or was not stopped in time: it may still use what
    ///   the object consists of.
    pub(crate) fn settle(&self, result: Result<(), CommandError>) -> Result {
        match result {
            Err(error) if error.is_final() && self.is_over() => Ok(()),
            result => Ok(result?),
        }
    }

    /// Waits until the device is stopped, or at least no bus master, and returns whether it is.
    pub(super) fn is_over(&self) -> bool {
        self.is_halted() || self.over.wait_timeout(HALT_TIMEOUT)
    }
}

/// Memory that the device is told of.
///
/// Once it was [lent](Self::lend) it is given back only after the device let go of it, or was stopped;
/// else it goes into quarantine.
pub(crate) struct Lent<'bound, T: Send + Sync + 'bound> {
    memory: Arc<T>,
    what: &'static str,
    is_lent: AtomicBool,
    epoch: Arc<Epoch<'bound>>,
}

impl<'bound, T: Send + Sync + 'bound> Lent<'bound, T> {
    /// Takes memory of `what`, of which the device does not know yet.
    pub(crate) fn new(epoch: &Arc<Epoch<'bound>>, what: &'static str, memory: Arc<T>) -> Self {
        Self {
            memory,
            what,
            is_lent: AtomicBool::new(false),
            epoch: epoch.clone(),
        }
    }

    /// Says that the device has let go of the memory.
    pub(crate) fn give_back(&self) {
        self.is_lent.store(false, Relaxed);
    }

    /// Says that the device is told of the memory next, and has it until it is stopped.
    pub(super) fn lend_until_stop(&self) {
        self.is_lent.store(true, Relaxed);
    }

    /// Runs the command that tells the device of the memory. If it fails, and the device can't have heard
    /// of it, the memory is not lent.
    ///
    /// # Errors
    ///
    /// Those of the command.
    pub(crate) fn lend<R>(
        &self,
        command: impl FnOnce() -> Result<R, CommandError>,
    ) -> Result<R, CommandError> {
        self.lend_until_stop();
        command().inspect_err(|error| {
            if !error.device_may_use_memory() {
                self.give_back();
            }
        })
    }

    /// Looks at the result of the command that was to have the device let go of the memory: see
    /// [`Epoch::settle`].
    pub(crate) fn settle(&self, result: Result<(), CommandError>) -> Result {
        if result.is_ok() {
            self.give_back();
        }
        self.epoch.settle(result)
    }

    /// Returns the memory, to be shared with others that use it.
    pub(crate) fn memory(&self) -> &Arc<T> {
        &self.memory
    }
}

impl<'bound, T: Send + Sync + 'bound> Deref for Lent<'bound, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.memory
    }
}

impl<'bound, T: Send + Sync + 'bound> Drop for Lent<'bound, T> {
    fn drop(&mut self) {
        let epoch = &self.epoch;
        if self.is_lent.load(Relaxed) && !epoch.is_stopped() {
            epoch
                .quarantine
                .keep(self.what, self.memory.clone(), &|| epoch.is_stopped());
        }
    }
}
