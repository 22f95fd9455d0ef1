// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Why an admin command failed.

use kernel::{
    fmt,
    prelude::*, //
};

use crate::{
    hw::admin::Status,
    sys::errno::{
        eopnotsupp,
        etime, //
    },
};

/// Why an admin command failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// The device completed it with this status, one of [`Status`] unless the device is faulty.
    Status(u8),
    /// The device did not complete it in time. The queue is closed from now on.
    Timeout,
    /// The queue is closed.
    Closed,
}

impl CommandError {
    /// Returns whether it is unknown what the device has done.
    pub(crate) fn is_unanswered(self) -> bool {
        !matches!(self, Self::Status(_))
    }

    /// Returns whether the device may still use memory that the command referred to.
    pub(crate) fn device_may_use_memory(self) -> bool {
        self == Self::Timeout
    }
}

impl From<CommandError> for Error {
    /// The errno is the one that Linux's C driver gives.
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Status(status) => match Status::try_from(status) {
                Ok(Status::ResourceAllocationFailure) => ENOMEM,
                Ok(Status::UnsupportedOpcode) => eopnotsupp(),
                _ => EINVAL,
            },
            CommandError::Timeout => etime(),
            CommandError::Closed => ENODEV,
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => match Status::try_from(*status) {
                Ok(status) => write!(f, "the device says {}", status.name()),
                Err(_) => write!(f, "the device gives the unknown status {status:#x}"),
            },
            Self::Timeout => f.write_str("the device does not answer"),
            Self::Closed => f.write_str("the admin queue is closed"),
        }
    }
}
