// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device may use, and when it can be freed.

use core::ops::Deref;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use super::{
    error::CommandError,
    health::Cause,
    quarantine::Quarantine, //
};
use crate::{
    hw::admin::NoData,
    sys::atomic::{
        Acquire,
        AtomicU32,
        Release, //
    }, //
};

/// The most objects of one session that the device may refuse to release, before it is reset. What a program
/// of usual size has of each kind.
const MAX_REFUSED: u32 = 64;

/// The device may use memory.
const RUNNING: u32 = 0;
/// The device is no bus master, and was not reset.
const HALTED: u32 = 1;
/// The device was reset, or is gone.
const STOPPED: u32 = 2;

/// What stops a device.
pub(super) trait Halt<'bound>: Send + Sync {
    /// Stops the device because of `cause`, unless it was stopped in this epoch. When this returns, it
    /// [is halted](Epoch::is_halted).
    fn halt(&self, epoch: &Epoch<'bound>, cause: Cause);
}

/// Whether the device may use the memory of one session.
pub(crate) struct Epoch<'bound> {
    state: AtomicU32,
    /// Objects that the device has refused to release.
    refused: Atomic<u32>,
    device: Arc<dyn Halt<'bound> + 'bound>,
    quarantine: Arc<Quarantine<'bound>>,
}

impl<'bound> Epoch<'bound> {
    /// Makes the epoch of a new session.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        device: Arc<dyn Halt<'bound> + 'bound>,
        quarantine: &Arc<Quarantine<'bound>>,
    ) -> Result<Arc<Self>> {
        let epoch = Self {
            state: AtomicU32::new(RUNNING),
            refused: Atomic::new(0),
            device,
            quarantine: quarantine.clone(),
        };
        Ok(Arc::new(epoch, GFP_KERNEL)?)
    }

    /// Notes that the device was reset, or else that it is no bus master any more.
    pub(super) fn end(&self, was_reset: bool) {
        self.state
            .store(if was_reset { STOPPED } else { HALTED }, Release);
    }

    /// Returns whether the device can't use anything of the session any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.load(Acquire) == STOPPED
    }

    /// Returns whether the device can't write to memory of the session any more.
    #[inline]
    pub(crate) fn is_halted(&self) -> bool {
        self.state.load(Acquire) != RUNNING
    }

    /// Stops the device: see [`Halt::halt`].
    pub(crate) fn halt(&self, cause: Cause) {
        self.device.halt(self, cause);
    }

    /// Takes the result of the command that destroys an object, which is gone after this. A device that does
    /// not answer is halted. So is one that has refused, or was too busy for, [`MAX_REFUSED`] of them.
    pub(crate) fn settle(&self, result: Result<NoData, CommandError>) {
        match result {
            Ok(NoData {}) => (),
            Err(CommandError::Status(_) | CommandError::NoSlot) => self.count_refused(),
            Err(_) => self.halt(Cause::CommandTimeout),
        }
    }

    /// Counts an object that the device has not released.
    fn count_refused(&self) {
        if self.refused.fetch_add(1, Relaxed) >= MAX_REFUSED {
            self.halt(Cause::MemoryHeld);
        }
    }
}

/// Memory for the device.
///
/// Once it was [lent](Self::lend) it is freed only after the device has released it, or was stopped;
/// else it is put into quarantine.
pub(crate) struct Lent<'bound, T: Send + Sync + 'bound> {
    memory: Arc<T>,
    what: &'static str,
    is_lent: Atomic<bool>,
    epoch: Arc<Epoch<'bound>>,
}

impl<'bound, T: Send + Sync + 'bound> Lent<'bound, T> {
    /// Takes memory of `what`, which the device does not use yet.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(
        epoch: &Arc<Epoch<'bound>>,
        what: &'static str,
        memory: Arc<T>,
    ) -> Result<Self> {
        epoch.quarantine.reserve()?;
        Ok(Self {
            memory,
            what,
            is_lent: Atomic::new(false),
            epoch: epoch.clone(),
        })
    }

    /// Notes that the device has released the memory.
    pub(crate) fn give_back(&self) {
        self.is_lent.store(false, Relaxed);
    }

    /// Notes that the device gets the memory next, and has it until it is stopped.
    pub(super) fn lend_until_stop(&self) {
        self.is_lent.store(true, Relaxed);
    }

    /// Runs the command that gives the memory to the device. If it fails such that the device does not have the memory, that
    /// is not lent. Else this counts as an object that the device has refused to release.
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
            if error.device_may_use_memory() {
                self.epoch.count_refused();
            } else {
                self.give_back();
            }
        })
    }

    /// Takes the result of the command that has the device release the memory: see [`Epoch::settle`].
    pub(crate) fn settle(&self, result: Result<NoData, CommandError>) {
        if result.is_ok() {
            self.give_back();
        }
        self.epoch.settle(result);
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
        let (epoch, quarantine) = (&self.epoch, &self.epoch.quarantine);
        if self.is_lent.load(Relaxed) && !epoch.is_stopped() {
            quarantine.keep(self.what, self.memory.clone(), &|| epoch.is_stopped());
        } else {
            quarantine.cancel();
        }
    }
}
