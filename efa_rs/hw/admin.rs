// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: commands, their completions, and what all of them have in common.
//!
//! A command is one entry of the submission queue (AQ), a completion one entry of the completion
//! queue (ACQ). Structures in here describe whole entries, so that each field's offset is the one
//! from the start of the entry; what is common to all entries is [`AqHeader`] and [`AcqHeader`].

pub mod ah;
pub mod control;
pub mod cq;
pub mod eq;
pub mod mr;
pub mod pd;
pub mod qp;
pub mod uar;

pub use control::CtrlBuffInfo;

use super::{
    admin,
    wire::{
        self,
        bits,
        codes,
        layout,
        At, //
    }, //
};

/// An entry of the submission queue.
pub type AqEntry = [u8; 64];

/// An entry of the completion queue.
pub type AcqEntry = [u8; 64];

/// Position of the opcode in a submission queue entry.
const AQ_OPCODE_OFFSET: usize = 2;

/// Position of the byte with the phase in a completion queue entry.
pub const ACQ_PHASE_OFFSET: usize = 3;

/// Position of the checksum in a completion queue entry.
pub const ACQ_CHECKSUM_OFFSET: usize = 4;

/// Bits of a command id.
pub const COMMAND_ID_BITS: u32 = 12;

codes! {
    /// Commands.
    pub enum Opcode: u8 {
        /// [`qp::CreateQp`].
        CreateQp = 1 => "CREATE_QP",
        /// [`qp::ModifyQp`].
        ModifyQp = 2 => "MODIFY_QP",
        /// [`qp::QueryQp`].
        QueryQp = 3 => "QUERY_QP",
        /// [`qp::DestroyQp`].
        DestroyQp = 4 => "DESTROY_QP",
        /// [`ah::CreateAh`].
        CreateAh = 5 => "CREATE_AH",
        /// [`ah::DestroyAh`].
        DestroyAh = 6 => "DESTROY_AH",
        /// [`mr::RegMr`].
        RegMr = 7 => "REG_MR",
        /// [`mr::DeregMr`].
        DeregMr = 8 => "DEREG_MR",
        /// [`cq::CreateCq`].
        CreateCq = 9 => "CREATE_CQ",
        /// [`cq::DestroyCq`].
        DestroyCq = 10 => "DESTROY_CQ",
        /// [`GetFeature`](super::features::GetFeature).
        GetFeature = 11 => "GET_FEATURE",
        /// [`SetFeature`](super::features::SetFeature).
        SetFeature = 12 => "SET_FEATURE",
        /// [`GetStats`](super::stats::GetStats).
        GetStats = 13 => "GET_STATS",
        /// [`pd::AllocPd`].
        AllocPd = 14 => "ALLOC_PD",
        /// [`pd::DeallocPd`].
        DeallocPd = 15 => "DEALLOC_PD",
        /// [`uar::AllocUar`].
        AllocUar = 16 => "ALLOC_UAR",
        /// [`uar::DeallocUar`].
        DeallocUar = 17 => "DEALLOC_UAR",
        /// [`eq::CreateEq`].
        CreateEq = 18 => "CREATE_EQ",
        /// [`eq::DestroyEq`].
        DestroyEq = 19 => "DESTROY_EQ",
        /// [`mr::AllocMr`].
        AllocMr = 20 => "ALLOC_MR",
    }
}

codes! {
    /// How a command ended.
    pub enum Status: u8 {
        /// It was done.
        Success = 0 => "SUCCESS",
        /// The device has no more of what was asked for.
        ResourceAllocationFailure = 1 => "RESOURCE_ALLOCATION_FAILURE",
        /// There is no such command.
        BadOpcode = 2 => "BAD_OPCODE",
        /// This device does not do it.
        UnsupportedOpcode = 3 => "UNSUPPORTED_OPCODE",
        /// The command contradicts its own format.
        MalformedRequest = 4 => "MALFORMED_REQUEST",
        /// A parameter has a value that is not allowed.
        IllegalParameter = 5 => "ILLEGAL_PARAMETER",
        /// Something else went wrong.
        UnknownError = 6 => "UNKNOWN_ERROR",
        /// Something else still uses what was to be destroyed or changed.
        ResourceBusy = 7 => "RESOURCE_BUSY",
    }
}

bits! {
    /// Number by which the driver finds the command that a completion belongs to.
    pub struct CommandId(u16) {
        /// The number; its range is [`COMMAND_ID_BITS`].
        11:0 id => u16,
    }
}

bits! {
    /// Flags of a submission queue entry.
    pub struct AqFlags(u8) {
        /// Which round through the queue the entry belongs to; the first is 1.
        0:0 phase => bool,
        /// The command has a control buffer.
        1:1 ctrl_data => bool,
        /// The control buffer is described by [a chain of chunks](control).
        2:2 ctrl_data_indirect => bool,
    }
}

layout! {
    /// Start of every submission queue entry.
    pub struct AqHeader[4] {
        /// Number of the command.
        command_id @ 0: CommandId,
        /// What to do, an [`Opcode`].
        opcode @ 2: u8,
        /// Phase, and where the command's data is.
        flags @ 3: AqFlags,
    }
}

impl AqHeader {
    /// Takes the header from an entry.
    #[inline]
    pub fn of(entry: &AqEntry) -> Self {
        Self::decode(&At::<0>::load(entry))
    }
}

/// Gives an encoded command its number and its phase, which only the queue knows.
#[inline]
pub fn stamp(entry: &mut AqEntry, command_id: u16, phase: bool) {
    let mut header = AqHeader::of(entry);
    header.command_id = CommandId { id: command_id };
    header.flags.phase = phase;
    At::<0>::store(entry, header.encode());
}

bits! {
    /// Flags of a completion queue entry.
    pub struct AcqFlags(u8) {
        /// Which round through the queue the entry belongs to; the first is 1.
        0:0 phase => bool,
    }
}

layout! {
    /// Start of every completion queue entry.
    pub struct AcqHeader[8] {
        /// Number of the command that is complete.
        command_id @ 0: CommandId,
        /// How it ended, a [`Status`].
        status @ 2: u8,
        /// Whether the entry is new. The device writes it last.
        flags @ 3: AcqFlags,
        /// [Checksum](super::checksum) of the entry, or zero.
        checksum @ 4: u16,
    }
}

impl AcqHeader {
    /// Takes the header from an entry.
    #[inline]
    pub fn of(entry: &AcqEntry) -> Self {
        Self::decode(&At::<0>::load(entry))
    }

    /// Replaces the header of an entry.
    #[inline]
    pub fn put(&self, entry: &mut AcqEntry) {
        At::<0>::store(entry, self.encode());
    }
}

/// A command.
pub trait Command: Sized {
    /// What the command does.
    const OPCODE: Opcode;

    /// What its completion holds if it succeeds.
    type Response: Response;

    /// Makes the entry, all but command id and phase: see [`stamp`].
    fn to_entry(&self) -> AqEntry;

    /// Takes the command from an entry that has its opcode.
    fn from_entry(entry: &AqEntry) -> Self;
}

/// Content of a completion.
pub trait Response: Sized {
    /// Makes the entry, all but its [header](AcqHeader).
    fn to_entry(&self) -> AcqEntry;

    /// Takes the content from the completion of a command that succeeded.
    fn from_entry(entry: &AcqEntry) -> Self;
}

/// Makes a layout a command, and, unless it is [`NoData`], another one its response.
///
/// The macro names this module as `admin`, so a file that calls it has to import it by that name.
macro_rules! command {
    ($opcode:expr, $command:ident => NoData) => {
        command!(@command $opcode, $command, NoData);
    };
    ($opcode:expr, $command:ident => $response:ident) => {
        command!(@command $opcode, $command, $response);
        command!(@response $response);
    };
    (@command $opcode:expr, $command:ident, $response:ident) => {
        impl admin::Command for $command {
            const OPCODE: Opcode = $opcode;

            type Response = $response;

            #[inline]
            fn to_entry(&self) -> admin::AqEntry {
                admin::with_opcode(self.encode(), $opcode)
            }

            #[inline]
            fn from_entry(entry: &admin::AqEntry) -> Self {
                Self::decode(entry)
            }
        }
    };
    (@response $response:ident) => {
        impl admin::Response for $response {
            #[inline]
            fn to_entry(&self) -> admin::AcqEntry {
                self.encode()
            }

            #[inline]
            fn from_entry(entry: &admin::AcqEntry) -> Self {
                Self::decode(entry)
            }
        }
    };
}

pub(crate) use command;

/// Writes the opcode into an entry.
#[inline]
pub fn with_opcode(mut entry: AqEntry, opcode: Opcode) -> AqEntry {
    At::<AQ_OPCODE_OFFSET>::store(&mut entry, [u8::from(opcode)]);
    entry
}

layout! {
    /// Content of a completion that says no more than how the command ended.
    pub struct NoData[64] {}
}

command!(@response NoData);
