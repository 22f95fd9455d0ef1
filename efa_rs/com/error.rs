// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Why an admin command failed.

use kernel::prelude::*;

use crate::{
    hw::admin::Status,
    sys::errno::{
        eopnotsupp,
        etime, //
    },
};

/// Why an admin command failed: the errno that Linux's C driver gives for it.
///
/// # Invariants
///
/// It is `ETIME` if and only if the device did not complete the command, and [`ENODEV`] if and only
/// if the queue was closed; all others stand for a status with which the device completed it.
#[derive(Clone, Copy)]
pub(crate) struct CommandError(Error);

impl CommandError {
    /// Returns the error of a command that the device completed with `status`, one of [`Status`]
    /// unless the device is faulty.
    pub(super) fn status(status: u8) -> Self {
        // INVARIANT: None is `ETIME` or `ENODEV`.
        Self(match Status::try_from(status) {
            Ok(Status::ResourceAllocationFailure) => ENOMEM,
            Ok(Status::UnsupportedOpcode) => eopnotsupp(),
            _ => EINVAL,
        })
    }

    /// Returns the error of a command that the device did not complete in time.
    pub(super) fn timeout() -> Self {
        Self(etime())
    }

    /// Returns the error of a command that a closed queue did not take or gave up.
    pub(super) fn closed() -> Self {
        Self(ENODEV)
    }

    /// Returns whether it is unknown what the device has done.
    pub(crate) fn is_unanswered(self) -> bool {
        self.0 == ENODEV || self.device_may_use_memory()
    }

    /// Returns whether the device may still use memory that the command referred to.
    pub(crate) fn device_may_use_memory(self) -> bool {
        self.0 == etime()
    }
}

impl From<CommandError> for Error {
    #[inline]
    fn from(error: CommandError) -> Self {
        error.0
    }
}
