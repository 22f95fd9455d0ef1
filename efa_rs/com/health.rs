// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Failures of a device: how they are detected and reported to recovery.

use core::mem::take;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SetOnce, //
    },
    time::Delta, //
};

use super::registers::Registers;
use crate::{
    hw::regs::{
        DevSts,
        Register,
        ResetReason, //
    },
    sys::pci_driver::Wakers,
};

/// Interval of health checks. ENA's driver uses the same.
pub(super) const INTERVAL: Delta = Delta::from_secs(1);

/// Number of missing keep-alive events after which the device is considered dead. ENA's driver uses
/// the same.
const MISSED_KEEP_ALIVES: u64 = 6;

/// Number of keep-alive events from which their period is known. The first two may come together.
const MIN_KEEP_ALIVES: u64 = 3;

/// Minimum number of checks without keep-alive events after which the device is considered dead. The
/// first check after a stop of the system may precede the next event.
const MIN_SILENT_CHECKS: u64 = 2;

/// Maximum of that number, however long the period of the events is.
const MAX_SILENT_CHECKS: u64 = 10;

/// Value read from a register if the device is gone.
const ALL_ONES: u32 = u32::MAX;

/// Reason for the reset of a device in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The device has reported a fatal error.
    FatalError,
    /// A command was not answered.
    CommandTimeout,
    /// Keep-alive events are missing.
    KeepAlive,
    /// A register can't be read.
    RegisterTimeout,
    /// The bus or an operator requested the reset.
    Requested,
    /// The device did not release revoked memory or a destroyed object, or flush work requests.
    MemoryHeld,
}

impl Cause {
    /// All causes.
    pub(crate) const ALL: [Self; 6] = [
        Self::FatalError,
        Self::CommandTimeout,
        Self::KeepAlive,
        Self::RegisterTimeout,
        Self::Requested,
        Self::MemoryHeld,
    ];

    /// Returns a name for messages and files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FatalError => "fatal_error",
            Self::CommandTimeout => "command_timeout",
            Self::KeepAlive => "keep_alive",
            Self::RegisterTimeout => "register_timeout",
            Self::Requested => "requested",
            Self::MemoryHeld => "memory_held",
        }
    }

    /// Returns the reason that is written to the device's register.
    pub(super) fn reset_reason(self) -> ResetReason {
        match self {
            Self::FatalError | Self::RegisterTimeout | Self::MemoryHeld => ResetReason::Generic,
            Self::CommandTimeout => ResetReason::AdminTimeout,
            Self::KeepAlive => ResetReason::KeepAliveTimeout,
            Self::Requested => ResetReason::OsTrigger,
        }
    }
}

/// The reported faults of one session.
pub(crate) struct Health {
    wakers: Wakers,
    /// The first fault.
    cause: SetOnce<Cause>,
    /// Whether the device has to flush work requests.
    is_flushing: Atomic<bool>,
}

impl Health {
    /// Creates the health of a session without faults. The first fault wakes `wakers`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(wakers: &Wakers) -> Result<Arc<Self>> {
        let health = Self {
            wakers: wakers.clone(),
            cause: SetOnce::new(),
            is_flushing: Atomic::new(false),
        };
        Ok(Arc::new(health, GFP_KERNEL)?)
    }

    /// Reports a fault; later ones have no effect. May be called from interrupt handlers.
    pub(crate) fn report(&self, cause: Cause) {
        if self.cause.populate(cause) {
            self.wakers.monitor.wake();
            self.wakers.work.wake();
        }
    }

    /// Notes that the device has to flush work requests. Kernel clients are woken within
    /// [`INTERVAL`] to poll for them. May be called from interrupt handlers.
    #[cfg(kverbs)]
    pub(crate) fn expect_flush(&self) {
        self.is_flushing.store(true, Relaxed);
    }

    /// Returns whether [`Self::expect_flush`] was called since the last call.
    pub(super) fn take_flush(&self) -> bool {
        self.is_flushing.xchg(false, Relaxed)
    }

    /// Returns the first fault that was reported.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.cause.copy()
    }
}

/// Returns the fault of a device that reports a fatal error or can't be read.
pub(super) fn read_status(registers: &Registers<'_>) -> Option<Cause> {
    match registers.read(Register::DevSts) {
        Err(_) | Ok(ALL_ONES) => Some(Cause::RegisterTimeout),
        Ok(status) if DevSts::from_raw(status).fatal_error => Some(Cause::FatalError),
        Ok(_) => None,
    }
}

/// The keep-alive events of a session. Time is counted in health checks, so that none are missing
/// because the system was stopped for a while.
pub(super) struct KeepAlives {
    /// Number of events before the session.
    before: u64,
    /// Number of events until the last check.
    received: u64,
    /// Number of checks until the last one with a new event.
    active: u64,
    /// Number of checks since then.
    silent: u64,
}

impl KeepAlives {
    /// Begins a session, before which this number of events was received.
    pub(super) fn new(before: u64) -> Self {
        Self {
            before,
            received: before,
            active: 0,
            silent: 0,
        }
    }

    /// Counts a check, and returns whether events have been missing for too long. `received` is the
    /// number of events until now. `hint_ms` is the timeout that the device advises; 0 means none.
    pub(super) fn check(&mut self, received: u64, hint_ms: u16) -> bool {
        self.silent = self.silent.saturating_add(1);
        if received != self.received {
            self.received = received;
            self.active = self.active.saturating_add(take(&mut self.silent));
        }
        let events = received.saturating_sub(self.before);
        if events < MIN_KEEP_ALIVES {
            return false;
        }
        let periods = self.active.saturating_mul(MISSED_KEEP_ALIVES);
        let limit = match hint_ms {
            0 => periods.div_ceil(events),
            // There is a check each second.
            hint => u64::from(hint.div_ceil(1_000)),
        };
        self.silent >= limit.clamp(MIN_SILENT_CHECKS, MAX_SILENT_CHECKS)
    }
}
