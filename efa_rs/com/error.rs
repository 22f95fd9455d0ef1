// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Why an admin command failed.

use kernel::prelude::*;

use crate::hw::admin::Status;

/// Why an admin command failed.
///
/// Outside of `com` each becomes an errno, for statuses the one that Linux's C driver gives.
#[derive(Clone, Copy)]
pub(crate) enum CommandError {
    /// The device completed the command with this status, one of [`Status`] unless it is faulty.
    Status(u8),
    /// The device did not complete the command in time.
    Timeout,
    /// No slot became free in time: the device was never given the command.
    NoSlot,
    /// The queue was closed: the device was never given the command.
    Closed,
    /// The queue was closed while the device had the command.
    Abandoned,
    /// The device completed the command with what can't be.
    Nonsense,
}

impl CommandError {
    /// Returns whether the device may use memory whose address the command had. An unknown status is no refusal.
    pub(crate) fn device_may_use_memory(self) -> bool {
        match self {
            Self::Status(status) => Status::try_from(status).is_err(),
            Self::NoSlot | Self::Closed => false,
            Self::Timeout | Self::Abandoned | Self::Nonsense => true,
        }
    }
}

impl From<CommandError> for Error {
    // One copy: commands fail in many places, and rarely.
    #[cold]
    #[inline(never)]
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Status(status) => match Status::try_from(status) {
                Ok(Status::ResourceAllocationFailure) => ENOMEM,
                Ok(Status::UnsupportedOpcode) => EOPNOTSUPP,
                _ => EINVAL,
            },
            CommandError::Timeout | CommandError::NoSlot => ETIME,
            CommandError::Closed | CommandError::Abandoned | CommandError::Nonsense => EIO,
        }
    }
}
