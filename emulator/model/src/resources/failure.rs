// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Why an admin command fails.

use efa_hw::admin::Status;

use crate::dma::DmaError;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The device refuses to execute it.
    Refused(Status),
    /// Host memory of the command is not accessible.
    Dma(DmaError),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<DmaError> for Failure {
    fn from(error: DmaError) -> Self {
        Self::Dma(error)
    }
}

impl Failure {
    /// Returns the status that the driver gets.
    pub(crate) fn status(self) -> Status {
        match self {
            Self::Refused(status) => status,
            Self::Dma(_) => Status::UnknownError,
        }
    }
}
