// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Why an admin command failed.

use kernel::prelude::*;

use crate::hw::admin::Status;

/// Outside of `com` each becomes an errno. For a status this is the errno of Linux's C driver.
#[derive(Clone, Copy)]
pub(crate) enum CommandError {
    /// The device completed the command with this status, one of [`Status`] unless it is faulty.
    Status(u8),
    /// The device did not complete the command in time.
    Timeout,
    /// No slot became free in time; the command was not submitted.
    NoSlot,
    /// The queue was closed; the command was not submitted.
    Closed,
    /// The queue was closed while the command was in flight.
    Abandoned,
    /// The device completed the command with an impossible result.
    InvalidResponse,
}

impl CommandError {
    /// Returns whether the device may use the command's memory. An unknown status is not a refusal.
    pub(crate) fn device_may_use_memory(self) -> bool {
        match self {
            Self::Status(status) => Status::try_from(status).is_err(),
            Self::NoSlot | Self::Closed => false,
            Self::Timeout | Self::Abandoned | Self::InvalidResponse => true,
        }
    }
}

impl From<CommandError> for Error {
    // One copy: commands can fail in many places, but rarely do.
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
            CommandError::Closed | CommandError::Abandoned | CommandError::InvalidResponse => EIO,
        }
    }
}
