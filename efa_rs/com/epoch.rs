// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The time between two resets: the device's faults, and whether it may use memory.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SetOnce, //
    }, //
};

use super::{
    bound::BoundDevice,
    error::CommandError,
    health::Cause, //
};
use crate::{
    hw::admin::NoData,
    sys::atomic::{
        smp_mb,
        Acquire,
        AtomicU32,
        Full,
        Release, //
    }, //
};

/// Limit on objects of one session that the device may refuse to release before it is reset. A
/// typical program has as many of each kind.
const MAX_REFUSED: u32 = 64;

/// The device may use memory.
const RUNNING: u32 = 0;
/// The device is being stopped, and may use memory. It gets no more work requests.
const CLOSED: u32 = 1;
/// The device is no bus master, and was not reset.
const HALTED: u32 = 2;
/// The device was reset, or is gone.
const STOPPED: u32 = 3;

/// An object that stops a device.
pub(super) trait Halt<'bound>: Send + Sync {
    /// Stops the device because of `cause`, unless it was stopped in this epoch. When this returns,
    /// it [is halted](Epoch::is_halted).
    fn halt(&self, epoch: &Epoch<'bound>, cause: Cause);
}

/// The epoch of a session, which outlives it: the reported faults, and whether the device may use
/// the memory of the session.
pub(crate) struct Epoch<'bound> {
    state: AtomicU32,
    /// Number of objects that the device has refused to release.
    refused: Atomic<u32>,
    /// The first fault.
    fault: SetOnce<Cause>,
    /// Whether the device has to flush work requests.
    is_flushing: Atomic<bool>,
    pub(super) device: Arc<BoundDevice<'bound>>,
    controller: Arc<dyn Halt<'bound> + 'bound>,
}

impl<'bound> Epoch<'bound> {
    /// Creates the epoch of a new session.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        device: Arc<BoundDevice<'bound>>,
        controller: Arc<dyn Halt<'bound> + 'bound>,
    ) -> Result<Arc<Self>> {
        let epoch = Self {
            state: AtomicU32::new(RUNNING),
            refused: Atomic::new(0),
            fault: SetOnce::new(),
            is_flushing: Atomic::new(false),
            device,
            controller,
        };
        Ok(Arc::new(epoch, GFP_KERNEL)?)
    }

    /// Notes that the device is about to be stopped.
    pub(super) fn close(&self) {
        self.state.store(CLOSED, Release);
    }

    /// Ends the epoch: the device was reset, or else is no longer a bus master.
    pub(super) fn end(&self, was_reset: bool) {
        self.state
            .store(if was_reset { STOPPED } else { HALTED }, Release);
        // Orders this before the polls of the clients that are woken next. A post that they do not
        // see then sees this: it looks at the epoch after the barrier of its doorbell.
        smp_mb(Full);
    }

    /// Returns whether the device can no longer use any resource of the session.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.load(Acquire) == STOPPED
    }

    /// Returns whether the device can no longer write to memory of the session.
    #[inline]
    pub(crate) fn is_halted(&self) -> bool {
        self.state.load(Acquire) >= HALTED
    }

    /// Returns whether the device accepts no work requests, as it is being stopped, or was.
    #[inline]
    #[cfg(kverbs)]
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Acquire) != RUNNING
    }

    /// Reports a fault; later ones have no effect. May be called from interrupt handlers.
    pub(crate) fn report(&self, cause: Cause) {
        if self.fault.populate(cause) {
            self.device.wakers.monitor.wake();
            self.device.wakers.work.wake();
        }
    }

    pub(super) fn fault(&self) -> Option<Cause> {
        self.fault.copy()
    }

    /// Notes that the device has to flush work requests. Kernel clients are woken within
    /// [`INTERVAL`](super::health::INTERVAL) to poll for them. May be called from interrupt
    /// handlers.
    #[cfg(kverbs)]
    pub(crate) fn expect_flush(&self) {
        self.is_flushing.store(true, Relaxed);
    }

    /// Returns whether [`Self::expect_flush`] was called since the last call.
    pub(super) fn take_flush(&self) -> bool {
        self.is_flushing.xchg(false, Relaxed)
    }

    /// Stops the device: see [`Halt::halt`].
    pub(crate) fn halt(&self, cause: Cause) {
        self.controller.halt(self, cause);
    }

    /// Handles the result of the command that destroys an object, which the driver drops in any
    /// case. Halts a device that does not answer, or that has refused, or was too busy for, more
    /// than [`MAX_REFUSED`] such commands.
    pub(crate) fn settle(&self, result: Result<NoData, CommandError>) {
        self.settle_by(result, Self::count_refused);
    }

    /// Like [`Self::settle`], for an object through which the device may use memory that a kernel
    /// client frees next. A device that has not destroyed it is halted.
    #[cfg(kverbs)]
    pub(crate) fn settle_now(&self, result: Result<NoData, CommandError>) {
        self.settle_by(result, |epoch| epoch.halt(Cause::MemoryHeld));
    }

    fn settle_by(&self, result: Result<NoData, CommandError>, refused: impl FnOnce(&Self)) {
        match result {
            Ok(NoData {}) => (),
            Err(CommandError::Status(_) | CommandError::NoSlot) => refused(self),
            Err(_) => self.halt(Cause::CommandTimeout),
        }
    }

    pub(super) fn count_refused(&self) {
        if self.refused.fetch_add(1, Relaxed) >= MAX_REFUSED {
            self.halt(Cause::MemoryHeld);
        }
    }
}
