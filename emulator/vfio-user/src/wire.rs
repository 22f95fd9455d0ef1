// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The encoding of messages. Numbers are in host byte order, as both sides run on one machine.

/// Size of a header in bytes.
pub const HEADER: usize = 16;

/// Limit on the bytes that one message reads or writes. The protocol's default is 1 MiB, which each connection would allocate.
/// VMMs forward the accesses of a driver, the largest of which is a page of configuration space.
pub const MAX_DATA: usize = 64 << 10;

/// Limit on the size of a message in bytes. The largest message is a region write.
pub const MAX_MESSAGE: usize = HEADER + RegionAccess::SIZE + MAX_DATA;

/// Limit on the descriptors of a message. QEMU refuses a server with a higher limit.
pub const MAX_FDS: usize = 16;

/// The command of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceGetInfo = 4,
    DeviceGetRegionInfo = 5,
    DeviceGetIrqInfo = 7,
    DeviceSetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    DeviceReset = 13,
    RegionWriteMulti = 15,
}

impl Command {
    pub(crate) fn from_raw(raw: u16) -> Option<Self> {
        [
            Self::Version,
            Self::DmaMap,
            Self::DmaUnmap,
            Self::DeviceGetInfo,
            Self::DeviceGetRegionInfo,
            Self::DeviceGetIrqInfo,
            Self::DeviceSetIrqs,
            Self::RegionRead,
            Self::RegionWrite,
            Self::DeviceReset,
            Self::RegionWriteMulti,
        ]
        .into_iter()
        .find(|command| *command as u16 == raw)
    }
}

/// The flags of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// A command that needs a reply.
    pub const COMMAND: Self = Self(0);
    /// A reply.
    pub const REPLY: Self = Self(1);
    /// A command that needs no reply.
    pub const NO_REPLY: Self = Self(1 << 4);
    /// A reply to a command that has failed.
    pub const ERROR: Self = Self((1 << 5) | 1);

    const TYPE: u32 = 0xf;

    pub(crate) fn is_command(self) -> bool {
        self.0 & Self::TYPE == Self::COMMAND.0
    }

    pub(crate) fn no_reply(self) -> bool {
        self.0 & Self::NO_REPLY.0 != 0
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender of a command. The reply has the same id.
    pub id: u16,
    /// The number of a [`Command`].
    pub command: u16,
    /// Size of the message with its header, in bytes.
    pub size: u32,
    /// The type of the message, and whether it needs no reply.
    pub flags: Flags,
    /// The errno in a reply to a failed command.
    pub error: u32,
}

impl Header {
    /// Decodes the header at the beginning of `bytes`, if they contain all of it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        Some(Self {
            id: fields.u16()?,
            command: fields.u16()?,
            size: fields.u32()?,
            flags: Flags(fields.u32()?),
            error: fields.u32()?,
        })
    }

    /// Appends a message with this header and payload to `to`. Sets the size in the header to that of both.
    pub fn encode(mut self, payload: &[&[u8]], to: &mut Vec<u8>) {
        let size = HEADER + payload.iter().map(|part| part.len()).sum::<usize>();
        self.size = u32::try_from(size).unwrap_or(u32::MAX);
        to.extend(self.id.to_ne_bytes());
        to.extend(self.command.to_ne_bytes());
        for word in [self.size, self.flags.0, self.error] {
            to.extend(word.to_ne_bytes());
        }
        payload.iter().for_each(|part| to.extend_from_slice(part));
    }
}

/// A decoder, which takes numbers from the beginning of a payload.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Returns the remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Returns `None` if bytes remain.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// A payload of numbers.
#[derive(Debug, Default)]
pub(crate) struct Payload(pub(crate) Vec<u8>);

impl Payload {
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
}

/// The beginning of the payload of a region read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionAccess {
    pub(crate) offset: u64,
    pub(crate) region: u32,
    pub(crate) count: u32,
}

impl RegionAccess {
    pub(crate) const SIZE: usize = 16;

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self { offset: fields.u64()?, region: fields.u32()?, count: fields.u32()? })
    }

    pub(crate) fn encode(self) -> Payload {
        Payload::default().u64(self.offset).u32(self.region).u32(self.count)
    }
}

/// Sizes of payloads in bytes, without data of variable length.
pub(crate) mod size {
    pub(crate) const DEVICE_INFO: u32 = 16;
    pub(crate) const REGION_INFO: u32 = 32;
    /// The header of the list of mappable areas, and each of its entries.
    pub(crate) const SPARSE: u32 = 16;
    pub(crate) const AREA: u32 = 16;
    pub(crate) const IRQ_INFO: u32 = 16;
    pub(crate) const IRQ_SET: u32 = 20;
    pub(crate) const DMA_MAP: u32 = 32;
    pub(crate) const DMA_UNMAP: u32 = 24;
    /// The data field of each write in a message with several.
    pub(crate) const MULTI_DATA: usize = 8;
}
