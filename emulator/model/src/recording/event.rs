// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What happens to a device, and what it does.

use std::{
    borrow::Cow,
    fmt::{self, Display, Formatter},
};

use efa_hw::io::CompStatus;
use serde::{Deserialize, Serialize};

use super::call::Call;
use crate::{Fetched, Refusal, RuleId, Segment, code};

/// Bytes that are shown of memory.
const SHOWN: usize = 64;

/// Something that happens to a device, or that it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event<'a> {
    /// It is called.
    Call(Call),
    /// The call ends.
    Return(Outcome),
    /// It reads memory of its host.
    Read {
        /// Where.
        address: u64,
        /// How many bytes.
        length: u64,
        /// What is there, nothing if it is not mapped.
        #[serde(with = "bytes")]
        data: Cow<'a, [u8]>,
        /// Whether it is mapped.
        mapped: bool,
    },
    /// It writes memory of its host.
    Write {
        /// Where.
        address: u64,
        /// What.
        #[serde(with = "bytes")]
        data: Cow<'a, [u8]>,
        /// Whether it is mapped.
        mapped: bool,
    },
    /// It reads its own memory, which its host writes.
    DeviceMemory {
        /// Where.
        offset: u64,
        /// What is there.
        #[serde(with = "bytes")]
        data: Cow<'a, [u8]>,
    },
    /// It asks for the time, which is this in ns.
    Time(Option<u64>),
    /// It asks whether it may access memory at all.
    BusMaster(bool),
    /// It raises an interrupt.
    Interrupt(u16),
    /// It tells something, which is this line of the trace.
    Trace(Cow<'a, str>),
}

/// What a call returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Nothing.
    Nothing,
    /// When there is something to do next, in ns.
    Due(Option<u64>),
    /// What was fetched.
    Fetched(Fetched),
    /// Where memory is, or how what needs it ends.
    Memory(Result<Vec<Segment>, Status>),
    /// Where the payload of something from a peer goes, or why it is refused.
    Begun(Result<Vec<Segment>, Refusal>),
    /// It was delivered, or why not.
    Ended(Result<(), Refusal>),
    /// It was done, or why not.
    Done(Result<(), String>),
    /// The number of a rule.
    Rule(RuleId),
    /// So many completions were released.
    Released(u64),
}

/// How a work request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status(#[serde(with = "code")] pub(crate) CompStatus);

impl Display for Event<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call) => write!(f, "{call}"),
            Self::Return(outcome) => write!(f, "returns {outcome:?}"),
            Self::Read {
                address,
                length,
                data,
                mapped,
            } => {
                write!(f, "reads {length} bytes at {address:#x}: ")?;
                if *mapped {
                    hex(f, data)
                } else {
                    f.write_str("not mapped")
                }
            }
            Self::Write {
                address,
                data,
                mapped,
            } => {
                write!(f, "writes {} bytes at {address:#x}: ", data.len())?;
                hex(f, data)?;
                f.write_str(if *mapped { "" } else { ", not mapped" })
            }
            Self::DeviceMemory { offset, data } => {
                write!(f, "reads {} bytes of its own memory", data.len())?;
                write!(f, " at {offset:#x}: ")?;
                hex(f, data)
            }
            Self::Time(None) => f.write_str("asks for the time: there is no clock"),
            Self::Time(Some(ns)) => write!(f, "asks for the time: {ns} ns"),
            Self::BusMaster(may) => write!(f, "asks whether it may access memory: {may}"),
            Self::Interrupt(vector) => write!(f, "raises interrupt {vector}"),
            Self::Trace(line) => write!(f, "tells: {line}"),
        }
    }
}

fn hex(f: &mut Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for byte in bytes.iter().take(SHOWN) {
        write!(f, "{byte:02x}")?;
    }
    f.write_str(if bytes.len() > SHOWN { "..." } else { "" })
}

/// Bytes, which are borrowed where they are written and owned where they were read.
mod bytes {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serializer};
    use serde_bytes::ByteBuf;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, 'a, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Cow<'a, [u8]>, D::Error> {
        Ok(Cow::Owned(ByteBuf::deserialize(deserializer)?.into_vec()))
    }
}
