// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device may use, and when it can be freed.

use core::ops::Deref;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    epoch::Epoch,
    error::CommandError,
    quarantine::Block, //
};
use crate::{
    hw::admin::NoData,
    sys::atomic::{
        Acquire,
        AtomicBool,
        Release, //
    }, //
};

/// The state of memory for the device.
///
/// Once it was [lent](Self::lend) it is freed only after the device has released it, or was
/// stopped; else it is put into quarantine.
pub(crate) struct Loan<'bound> {
    is_lent: AtomicBool,
    epoch: Arc<Epoch<'bound>>,
}

impl<'bound> Loan<'bound> {
    /// Makes the state of memory that the device does not use yet. The owner of the memory calls
    /// [`Self::end`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(epoch: &Arc<Epoch<'bound>>) -> Result<Self> {
        epoch.device.quarantine.reserve()?;
        Ok(Self {
            is_lent: AtomicBool::new(false),
            epoch: epoch.clone(),
        })
    }

    /// Notes that the device has released the memory.
    pub(crate) fn mark_released(&self) {
        self.is_lent.store(false, Release);
    }

    /// Marks the memory as used until the device is stopped. Called before the device gets it.
    pub(super) fn lend_until_stop(&self) {
        self.is_lent.store(true, Release);
    }

    /// Runs the command that lends the memory. After a failure it is not lent, unless the device
    /// may use it. Then it counts as an object that the device has refused to release.
    ///
    /// # Errors
    ///
    /// Those of the command.
    #[inline]
    pub(crate) fn lend<R>(
        &self,
        command: impl FnOnce() -> Result<R, CommandError>,
    ) -> Result<R, CommandError> {
        Self::lend_any(Some(self), command)
    }

    /// Like [`Self::lend`], for a command that may lend no memory.
    // One copy of the command for all kinds of memory.
    #[inline]
    pub(crate) fn lend_any<R>(
        loan: Option<&Self>,
        command: impl FnOnce() -> Result<R, CommandError>,
    ) -> Result<R, CommandError> {
        if let Some(loan) = loan {
            loan.lend_until_stop();
        }
        command().inspect_err(|error| {
            if let Some(loan) = loan {
                loan.was_not_lent(error);
            }
        })
    }

    #[cold]
    #[inline(never)]
    fn was_not_lent(&self, error: &CommandError) {
        if error.device_may_use_memory() {
            self.epoch.count_refused();
        } else {
            self.mark_released();
        }
    }

    /// Runs a command that uses the memory, if any, only until it is answered. The memory that the
    /// same command lends counts a failure.
    ///
    /// # Errors
    ///
    /// Those of the command.
    #[inline]
    pub(crate) fn lend_any_during<R>(
        loan: Option<&Self>,
        command: impl FnOnce() -> Result<R, CommandError>,
    ) -> Result<R, CommandError> {
        if let Some(loan) = loan {
            loan.lend_until_stop();
        }
        let result = command();
        let is_kept = matches!(&result, Err(error) if error.device_may_use_memory());
        if let Some(loan) = loan.filter(|_| !is_kept) {
            loan.mark_released();
        }
        result
    }

    /// Handles the result of the command that releases the memory: see [`Epoch::settle`].
    pub(crate) fn settle(&self, result: Result<NoData, CommandError>) {
        if result.is_ok() {
            self.mark_released();
        }
        self.epoch.settle(result);
    }

    /// Ends the use of the memory by its owner. If the device may still use it, a reference to it is
    /// kept until the device was stopped. `what` names its purpose in messages.
    #[inline]
    pub(crate) fn end(&self, what: &str, reference: impl FnOnce() -> Block<'bound>) {
        if self.is_lent.load(Acquire) && !self.epoch.is_stopped() {
            self.keep(what, reference());
        } else {
            self.epoch.device.quarantine.cancel();
        }
    }

    #[cold]
    #[inline(never)]
    fn keep(&self, what: &str, memory: Block<'bound>) {
        let is_stopped = || self.epoch.is_stopped();
        self.epoch.device.quarantine.keep(what, memory, &is_stopped);
    }
}

/// Memory for the device, with its [state](Loan).
pub(crate) struct Lent<'bound, T: Send + Sync + 'bound> {
    memory: Arc<T>,
    loan: Loan<'bound>,
    /// Its purpose. A thin pointer, of which many objects have one.
    what: &'static &'static str,
}

impl<'bound, T: Send + Sync + 'bound> Lent<'bound, T> {
    /// Wraps memory that the device does not use yet. `what` names its purpose in messages.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(
        epoch: &Arc<Epoch<'bound>>,
        what: &'static &'static str,
        memory: Arc<T>,
    ) -> Result<Self> {
        let loan = Loan::new(epoch)?;
        Ok(Self { memory, loan, what })
    }

    #[inline]
    pub(crate) fn loan(&self) -> &Loan<'bound> {
        &self.loan
    }

    /// Returns the memory, so that its other users can share it.
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
        self.loan.end(self.what, || self.memory.clone());
    }
}
