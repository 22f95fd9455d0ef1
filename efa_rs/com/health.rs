// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Failures of a device: how they are detected and reported to recovery.

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
    sys::pci::Wakers,
};

/// Interval of health checks. ENA's driver uses the same.
pub(super) const INTERVAL: Delta = Delta::from_secs(1);

/// Number of missing keep-alive events after which the device is considered dead. ENA's driver uses
/// the same.
const MISSED_KEEP_ALIVES: i64 = 6;

/// Minimum time without keep-alive events, in milliseconds, after which the device is considered
/// dead, however short their period is.
const MIN_KEEP_ALIVE_TIMEOUT_MS: i64 = 1_000;

/// Maximum of that time, in milliseconds.
const MAX_KEEP_ALIVE_TIMEOUT_MS: i64 = 10_000;

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

/// Returns whether keep-alive events, which had this period, have been missing for too long.
/// `hint_ms` is the device's advised timeout in milliseconds; 0 means no advice.
pub(super) fn is_too_long(silence: Delta, period: Delta, hint_ms: u16) -> bool {
    let timeout = match hint_ms {
        0 => period.as_millis().saturating_mul(MISSED_KEEP_ALIVES),
        hint => hint.into(),
    };
    silence.as_millis() > timeout.clamp(MIN_KEEP_ALIVE_TIMEOUT_MS, MAX_KEEP_ALIVE_TIMEOUT_MS)
}
