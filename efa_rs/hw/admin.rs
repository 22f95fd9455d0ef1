// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: commands, their completions, and what all of them have in common.
//!
//! A command is one entry of the submission queue (AQ), a completion one entry of the completion
//! queue (ACQ). What differs between commands is their payload. Where that is in an entry, and what
//! stands before it, depends on the [`Protocol`]; [`AqEntry`] puts entries together and takes them
//! apart. So the structure of a command describes its payload, with offsets from the payload's start,
//! while that of a response describes the whole entry, which begins with an [`AcqHeader`].

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

/// Position of the byte with the phase in a completion queue entry.
pub const ACQ_PHASE_OFFSET: usize = 3;

/// Bytes in the payload of a command. The entries of [`Protocol::V2`] have room for more, which no
/// command needs.
pub const PAYLOAD_SIZE: usize = 60;

/// Entries of the submission queue consist of blocks of this size.
pub const AQ_BLOCK_SIZE: usize = 64;

/// Bytes in the largest entry of the submission queue.
const MAX_AQ_ENTRY_SIZE: usize = 2 * AQ_BLOCK_SIZE;

/// The first version of the interface in which commands have the form of [`Protocol::V2`].
const V2_VERSION: Version = Version { major: 0, minor: 3 };

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
        /// Linux's interface has no more than its name.
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
    /// Start of every submission queue entry, and all that stands before the payload in
    /// [`Protocol::V1`].
    pub struct AqHeader[4] {
        /// Number of the command.
        command_id @ 0: CommandId,
        /// What to do, an [`Opcode`].
        opcode @ 2: u8,
        /// Phase, and where the command's data is.
        flags @ 3: AqFlags,
    }
}

layout! {
    /// All that stands before the payload in [`Protocol::V2`].
    pub struct AqHeaderV2[12] {
        /// What entries of each protocol begin with.
        common @ 0: AqHeader,
        /// [Checksum](super::checksum) of the entry.
        checksum @ 4: u16,
        /// Version of the payload's layout; 0 is the only one.
        payload_ver @ 6: u8,
    }
}

/// The form of the submission queue's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// 64 bytes: [`AqHeader`] and payload.
    V1,
    /// 128 bytes: [`AqHeaderV2`] and payload.
    V2,
}

impl Protocol {
    /// Returns the form that a device with this version of the interface wants.
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

/// An encoded command, but for what depends on the queue that it is submitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AqRequest {
    /// What to do, an [`Opcode`].
    pub opcode: u8,
    /// Where the command's data is; the phase is not used.
    pub control: AqFlags,
    /// The payload.
    pub payload: [u8; PAYLOAD_SIZE],
}

impl AqRequest {
    /// Returns what an entry with this number and phase begins with.
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
    /// The entry, with zeroes behind its end.
    bytes: [u8; MAX_AQ_ENTRY_SIZE],
}

impl AqEntry {
    /// Makes the entry for a command with the number and the phase that the queue gives it.
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

    /// Returns what the entry begins with.
    #[inline]
    pub fn header(&self) -> AqHeader {
        AqHeader::decode(&At::<0>::load(&self.bytes))
    }

    /// Takes the command out of the entry.
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

    /// Returns the form of the entry.
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

    /// Returns the bytes of the entry, to replace them.
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

    /// Returns whether the checksum is right, if the entry has one.
    pub fn is_intact(&self) -> bool {
        match self.protocol {
            Protocol::V1 => true,
            Protocol::V2 => {
                let header = AqHeaderV2::decode(&At::<0>::load(&self.bytes));
                header.checksum == checksum::of_entry(&self.bytes)
            }
        }
    }

    /// Makes the checksum right, if the entry has one.
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

    /// Encodes the command.
    fn to_request(&self) -> AqRequest;

    /// Decodes a command that has this opcode.
    fn from_request(request: &AqRequest) -> Self;
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
/// `with control` is said of a command whose field `control` is in the entry's header.
///
/// The macro names this module as `admin`, so a file that calls it has to import it by that name.
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
    /// Content of a completion that has a status only.
    pub struct NoData[64] {}
}

command!(@response NoData);
