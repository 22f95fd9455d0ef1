// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: commands, their completions, and the headers that they share.
//!
//! A command is one entry of the submission queue (AQ), a completion one entry of the completion
//! queue (ACQ). Commands differ in their payload. Its offset in an entry, and the header before it,
//! depend on the [`Protocol`]; [`AqEntry`] encodes and decodes entries. The structure of a command
//! therefore describes its payload, with offsets from the payload's start. The structure of a
//! response describes the whole entry, which begins with an [`AcqHeader`].

pub mod ah;
pub mod control;
pub mod cq;
pub mod eq;
pub mod event_counter;
pub mod mr;
pub mod pd;
pub mod qp;
pub mod uar;

pub use control::CtrlBuffInfo;

use super::{
    admin,
    checksum,
    regs::Version,
    wire::{
        self,
        bits,
        codes,
        layout,
        At, //
    }, //
};

/// An entry of the completion queue.
pub type AcqEntry = [u8; 64];

/// Offset of the byte with the phase in a completion queue entry.
pub const ACQ_PHASE_OFFSET: usize = 3;

/// Bytes in the payload of a command. The entries of [`Protocol::V2`] have room for more, which no
/// command needs.
pub const PAYLOAD_SIZE: usize = 60;

/// Size in bytes of the blocks that submission queue entries consist of.
pub const AQ_BLOCK_SIZE: usize = 64;

/// Bytes in the largest entry of the submission queue.
const MAX_AQ_ENTRY_SIZE: usize = 2 * AQ_BLOCK_SIZE;

/// The first version of the interface in which commands have the format of [`Protocol::V2`].
const V2_VERSION: Version = Version { major: 0, minor: 3 };

/// Number of bits in a command id.
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
        /// Linux's interface defines only its name.
        Service = 21 => "SERVICE",
        /// [`event_counter::CreateEventCounter`].
        CreateEventCounter = 25 => "CREATE_EVENT_COUNTER",
        /// [`event_counter::DestroyEventCounter`].
        DestroyEventCounter = 26 => "DESTROY_EVENT_COUNTER",
        /// [`event_counter::AttachEventCounter`].
        AttachEventCounter = 27 => "ATTACH_EVENT_COUNTER",
        /// [`event_counter::ModifyEventCounter`].
        ModifyEventCounter = 28 => "MODIFY_EVENT_COUNTER",
        /// [`event_counter::DetachEventCounter`].
        DetachEventCounter = 29 => "DETACH_EVENT_COUNTER",
    }
}

codes! {
    /// Completion status of a command.
    pub enum Status: u8 {
        /// The command was executed.
        Success = 0 => "SUCCESS",
        /// The device has no free resource of the requested kind.
        ResourceAllocationFailure = 1 => "RESOURCE_ALLOCATION_FAILURE",
        /// The opcode is not defined.
        BadOpcode = 2 => "BAD_OPCODE",
        /// This device does not support the command.
        UnsupportedOpcode = 3 => "UNSUPPORTED_OPCODE",
        /// The command violates its format.
        MalformedRequest = 4 => "MALFORMED_REQUEST",
        /// A parameter has a value that is not allowed.
        IllegalParameter = 5 => "ILLEGAL_PARAMETER",
        /// Any other error.
        UnknownError = 6 => "UNKNOWN_ERROR",
        /// The object to destroy or to modify is in use.
        ResourceBusy = 7 => "RESOURCE_BUSY",
    }
}

bits! {
    /// Id by which the driver matches a completion to its command.
    pub struct CommandId(u16) {
        /// The id, of [`COMMAND_ID_BITS`] bits.
        11:0 id => u16,
    }
}

bits! {
    /// Flags of a submission queue entry.
    pub struct AqFlags(u8) {
        /// Phase: toggles with each pass through the queue; 1 in the first pass.
        0:0 phase => bool,
        /// Whether the command has a control buffer.
        1:1 ctrl_data => bool,
        /// Whether the control buffer is described by [a chain of chunks](control).
        2:2 ctrl_data_indirect => bool,
    }
}

layout! {
    /// Start of every submission queue entry, and the whole header in [`Protocol::V1`].
    pub struct AqHeader[4] {
        /// Id of the command.
        command_id @ 0: CommandId,
        /// Operation, an [`Opcode`].
        opcode @ 2: u8 as Opcode,
        /// Phase, and kind of the control buffer.
        flags @ 3: AqFlags,
    }
}

layout! {
    /// Header of a submission queue entry in [`Protocol::V2`].
    pub struct AqHeaderV2[12] {
        /// Start of the header, which both protocols share.
        common @ 0: AqHeader,
        /// [Checksum](super::checksum) of the entry.
        checksum @ 4: u16,
        /// Version of the payload's layout; only 0 is defined.
        payload_ver @ 6: u8,
    }
}

/// The format of the submission queue's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// 64 bytes: [`AqHeader`] and payload.
    V1,
    /// 128 bytes: [`AqHeaderV2`] and payload.
    V2,
}

impl Protocol {
    /// Returns the format that a device with this version of the interface requires.
    pub fn of(version: Version) -> Self {
        if version < V2_VERSION {
            Self::V1
        } else {
            Self::V2
        }
    }

    /// Returns the number of blocks in an entry.
    pub const fn blocks(self) -> usize {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// Returns the number of bytes in an entry.
    pub const fn entry_size(self) -> usize {
        self.blocks() * AQ_BLOCK_SIZE
    }
}

/// An encoded command without the fields that its queue determines: id and phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AqRequest {
    /// Operation, an [`Opcode`].
    pub opcode: u8,
    /// Kind of the control buffer; the phase is not used.
    pub control: AqFlags,
    /// The payload.
    pub payload: [u8; PAYLOAD_SIZE],
}

impl AqRequest {
    /// Returns the header of an entry with this command id and phase.
    #[inline]
    fn header(&self, command_id: u16, phase: bool) -> AqHeader {
        AqHeader {
            command_id: CommandId { id: command_id },
            opcode: self.opcode,
            flags: AqFlags {
                phase,
                ..self.control
            },
        }
    }

    /// Encodes an entry of [`Protocol::V1`].
    #[inline]
    pub fn encode_v1(&self, command_id: u16, phase: bool) -> [u8; Protocol::V1.entry_size()] {
        let mut entry = [0; Protocol::V1.entry_size()];
        At::<0>::store(&mut entry, self.header(command_id, phase).encode());
        At::<{ AqHeader::SIZE }>::store(&mut entry, self.payload);
        entry
    }

    /// Encodes an entry of [`Protocol::V2`], without its checksum.
    fn encode_v2(&self, command_id: u16, phase: bool) -> [u8; Protocol::V2.entry_size()] {
        let header = AqHeaderV2 {
            common: self.header(command_id, phase),
            ..AqHeaderV2::default()
        };
        let mut entry = [0; Protocol::V2.entry_size()];
        At::<0>::store(&mut entry, header.encode());
        At::<{ AqHeaderV2::SIZE }>::store(&mut entry, self.payload);
        entry
    }
}

/// An entry of the submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AqEntry {
    protocol: Protocol,
    /// The entry, followed by zeroes.
    bytes: [u8; MAX_AQ_ENTRY_SIZE],
}

impl AqEntry {
    /// Encodes a command with the id and the phase that the queue assigns to it.
    pub fn new(protocol: Protocol, request: &AqRequest, command_id: u16, phase: bool) -> Self {
        let mut entry = Self::zeroed(protocol);
        match protocol {
            Protocol::V1 => At::<0>::store(&mut entry.bytes, request.encode_v1(command_id, phase)),
            Protocol::V2 => entry.bytes = request.encode_v2(command_id, phase),
        }
        entry.update_checksum();
        entry
    }

    /// Makes an entry of zeroes.
    pub const fn zeroed(protocol: Protocol) -> Self {
        Self {
            protocol,
            bytes: [0; MAX_AQ_ENTRY_SIZE],
        }
    }

    /// Returns the header that both protocols share.
    #[inline]
    pub fn header(&self) -> AqHeader {
        AqHeader::decode(&At::<0>::load(&self.bytes))
    }

    /// Decodes the command of the entry.
    pub fn request(&self) -> AqRequest {
        let header = self.header();
        AqRequest {
            opcode: header.opcode,
            control: AqFlags {
                phase: false,
                ..header.flags
            },
            payload: match self.protocol {
                Protocol::V1 => At::<{ AqHeader::SIZE }>::load(&self.bytes),
                Protocol::V2 => At::<{ AqHeaderV2::SIZE }>::load(&self.bytes),
            },
        }
    }

    /// Returns the format of the entry.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the bytes of the entry.
    pub fn bytes(&self) -> &[u8] {
        match self.protocol {
            Protocol::V1 => &self.bytes[..Protocol::V1.entry_size()],
            Protocol::V2 => &self.bytes,
        }
    }

    /// Returns the bytes of the entry for modification.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self.protocol {
            Protocol::V1 => &mut self.bytes[..Protocol::V1.entry_size()],
            Protocol::V2 => &mut self.bytes,
        }
    }

    /// Returns the blocks of the entry.
    #[inline]
    pub fn blocks(&self) -> impl Iterator<Item = [u8; AQ_BLOCK_SIZE]> {
        [
            At::<0>::load(&self.bytes),
            At::<AQ_BLOCK_SIZE>::load(&self.bytes),
        ]
        .into_iter()
        .take(self.protocol.blocks())
    }

    /// Returns whether the checksum is correct, or the entry has none.
    pub fn is_intact(&self) -> bool {
        match self.protocol {
            Protocol::V1 => true,
            Protocol::V2 => {
                let header = AqHeaderV2::decode(&At::<0>::load(&self.bytes));
                header.checksum == checksum::of_entry(&self.bytes)
            }
        }
    }

    /// Updates the checksum, if the entry has one.
    pub fn update_checksum(&mut self) {
        if self.protocol == Protocol::V2 {
            let checksum = checksum::of_entry(&self.bytes);
            At::<{ checksum::OFFSET }>::store(&mut self.bytes, checksum.to_le_bytes());
        }
    }
}

bits! {
    /// Flags of a completion queue entry.
    pub struct AcqFlags(u8) {
        /// Phase: toggles with each pass through the queue; 1 in the first pass.
        0:0 phase => bool,
    }
}

layout! {
    /// Start of every completion queue entry.
    pub struct AcqHeader[8] {
        /// Id of the completed command.
        command_id @ 0: CommandId,
        /// Status of the command, a [`Status`].
        status @ 2: u8 as Status,
        /// Phase, which marks a new entry. The device writes it last.
        flags @ 3: AcqFlags,
        /// [Checksum](super::checksum) of the entry, or zero.
        checksum @ 4: u16,
    }
}

impl AcqHeader {
    /// Decodes the header of an entry.
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
    /// Opcode of the command.
    const OPCODE: Opcode;

    /// Content of the completion if the command succeeds.
    type Response: Response;

    /// Encodes the command.
    fn to_request(&self) -> AqRequest;

    /// Decodes a command that has this opcode.
    fn from_request(request: &AqRequest) -> Self;
}

/// Content of a completion.
pub trait Response: Sized {
    /// Encodes the entry, except for its [header](AcqHeader).
    fn to_entry(&self) -> AcqEntry;

    /// Decodes the completion of a command that succeeded.
    fn from_entry(entry: &AcqEntry) -> Self;
}

/// Implements [`Command`] for a layout, and [`Response`] for its response if not [`NoData`].
///
/// `with control` marks a command whose field `control` is in the entry's header.
///
/// The macro names this module as `admin`, so a file that calls it must import it by that name.
macro_rules! command {
    ($opcode:expr, $command:ident $(with $control:ident)? => NoData) => {
        command!(@command $opcode, $command $(with $control)?, NoData);
    };
    ($opcode:expr, $command:ident $(with $control:ident)? => $response:ident) => {
        command!(@command $opcode, $command $(with $control)?, $response);
        command!(@response $response);
    };
    (@command $opcode:expr, $command:ident $(with $control:ident)?, $response:ident) => {
        impl admin::Command for $command {
            const OPCODE: Opcode = $opcode;

            type Response = $response;

            #[inline]
            fn to_request(&self) -> admin::AqRequest {
                #[allow(unused_mut, reason = "not all commands have control data")]
                let mut request = admin::AqRequest {
                    opcode: u8::from($opcode),
                    control: admin::AqFlags::default(),
                    payload: self.encode(),
                };
                $(request.control = self.$control;)?
                request
            }

            #[inline]
            fn from_request(request: &admin::AqRequest) -> Self {
                #[allow(unused_mut, reason = "not all commands have control data")]
                let mut command = Self::decode(&request.payload);
                $(command.$control = request.control;)?
                command
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

layout! {
    /// Content of a completion that has only a status.
    pub struct NoData[64] {}
}

command!(@response NoData);
