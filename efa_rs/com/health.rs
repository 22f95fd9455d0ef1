// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Failures of a device, and how missing keep-alive events are detected.

use core::mem::take;

use kernel::{
    str::CStr,
    time::Delta, //
};

use crate::hw::regs::ResetReason;

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
    pub(super) const COUNT: usize = Self::MemoryHeld as usize + 1;

    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Self::FatalError => c"fatal_error",
            Self::CommandTimeout => c"command_timeout",
            Self::KeepAlive => c"keep_alive",
            Self::RegisterTimeout => c"register_timeout",
            Self::Requested => c"requested",
            Self::MemoryHeld => c"memory_held",
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
