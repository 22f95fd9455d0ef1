// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Errors of a program in the use of its queues that no completion status reports. Only an emulator can report them.

use std::fmt::{self, Display, Formatter};

use schemars::JsonSchema;
use serde::Serialize;

/// An error of a program. The device continues as the interface specifies.
#[allow(missing_docs, reason = "the messages describe the fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A completion queue got more completions than it has room for: entries of all its sub-queues.
    #[error("cq {cq} has {depth} entries and overflows: {unread} completions, {since}")]
    CqOverflow { cq: u16, depth: u32, unread: u32, since: Since },
    /// A memory region is deregistered while a send queue has a work request that uses it.
    #[error("mr {lkey:#x} is deregistered while work request {req_id} of sq {qp} uses it")]
    RegionInUse { lkey: u32, qp: u16, req_id: u16 },
    /// Two work requests of a send queue in flight have the same id.
    #[error("sq {qp} has two work requests with id {req_id} at a time")]
    DuplicateId { qp: u16, req_id: u16 },
    /// A work request is malformed. `queue` is its kind, as in other lines of the trace: `sq` or `rq`.
    #[error("{queue} {qp} has a malformed work request at {index}: {reason}: {bytes}")]
    Malformed { queue: &'static str, qp: u16, index: u32, reason: Fault, bytes: Hex },
}

/// Start of the count of the completions that overflow a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Since {
    /// Entries are certainly lost.
    #[error("by the consumer index of its doorbell")]
    ConsumerIndex,
    /// More work requests were posted than it has entries.
    #[error("since the last doorbell of any of its queues")]
    Doorbell,
}

/// Reason why a work request is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// `meta_desc` is not set in the first word of a send work request.
    #[error("`meta_desc` is 0")]
    NoMeta,
    /// `meta_extension` is set in the first word of a send work request.
    #[error("`meta_extension` is 1")]
    Extension,
    /// A send work request is not its own first and last entry.
    #[error("`first` or `last` is 0")]
    Parts,
    /// The phase is that of another round through the queue.
    #[error("`phase` is that of another round")]
    Phase,
    /// Reserved bits are not zero.
    #[error("reserved bits are not 0")]
    Reserved,
    /// The first receive descriptor lacks `first`, or another one has it.
    #[error("`first` is not on the first descriptor only")]
    First,
    /// None of the posted receive descriptors has `last`, within the limit on descriptors of a work request.
    #[error("no descriptor has `last`")]
    Endless,
}

/// Bytes in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hex(pub Box<[u8]>);

impl Display for Hex {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Numbers of program errors since the device was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProgramErrors {
    /// Overflows of completion queues.
    pub cq_overflows: u64,
    /// Deregistrations of memory regions that a work request used.
    pub regions_in_use: u64,
    /// Send work requests with the id of another one in flight.
    pub duplicate_ids: u64,
    /// Malformed work requests.
    pub malformed_requests: u64,
}

impl ProgramErrors {
    pub(crate) fn count(&mut self, error: &ProgramError) {
        *match error {
            ProgramError::CqOverflow { .. } => &mut self.cq_overflows,
            ProgramError::RegionInUse { .. } => &mut self.regions_in_use,
            ProgramError::DuplicateId { .. } => &mut self.duplicate_ids,
            ProgramError::Malformed { .. } => &mut self.malformed_requests,
        } += 1;
    }
}
