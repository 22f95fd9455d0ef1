// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages as bytes. Numbers are as the host has them: both sides are programs of one machine.

/// Bytes of a header.
pub const HEADER: usize = 16;

/// Bytes of a region that one message reads or writes. The protocol's default is 1 MiB, which would be the memory that a
/// connection takes; VMMs access what a driver does, and the largest is a page of configuration space.
pub const MAX_DATA: usize = 64 << 10;

/// Bytes of a message: the largest is a region write.
pub const MAX_MESSAGE: usize = HEADER + RegionAccess::SIZE + MAX_DATA;

/// Descriptors of a message: QEMU takes no more for granted.
pub const MAX_FDS: usize = 16;

/// What a message asks for.
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

/// What each message begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender of a command; its reply has the same.
    pub id: u16,
    /// A [`Command`].
    pub command: u16,
    /// Bytes of the message, with the header.
    pub size: u32,
    /// What it is.
    pub flags: Flags,
    /// The errno of a reply with an error.
    pub error: u32,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Self {
        let [
            i0,
            i1,
            c0,
            c1,
            s0,
            s1,
            s2,
            s3,
            f0,
            f1,
            f2,
            f3,
            e0,
            e1,
            e2,
            e3,
        ] = *bytes;
        Self {
            id: u16::from_ne_bytes([i0, i1]),
            command: u16::from_ne_bytes([c0, c1]),
            size: u32::from_ne_bytes([s0, s1, s2, s3]),
            flags: Flags(u32::from_ne_bytes([f0, f1, f2, f3])),
            error: u32::from_ne_bytes([e0, e1, e2, e3]),
        }
    }

    /// Appends a message of this header and a payload; the header's size is that of both.
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

/// Takes numbers from the beginning of a payload.
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

    /// What is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing may be left.
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

/// What reads and writes of a region begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionAccess {
    pub(crate) offset: u64,
    pub(crate) region: u32,
    pub(crate) count: u32,
}

impl RegionAccess {
    pub(crate) const SIZE: usize = 16;

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            offset: fields.u64()?,
            region: fields.u32()?,
            count: fields.u32()?,
        })
    }

    pub(crate) fn encode(self) -> Payload {
        Payload::default()
            .u64(self.offset)
            .u32(self.region)
            .u32(self.count)
    }
}

/// What is in the payload of messages, but for data of any length.
pub(crate) mod size {
    pub(crate) const DEVICE_INFO: u32 = 16;
    pub(crate) const REGION_INFO: u32 = 32;
    /// The header of a list of areas that can be mapped, and each of its areas.
    pub(crate) const SPARSE: u32 = 16;
    pub(crate) const AREA: u32 = 16;
    pub(crate) const IRQ_INFO: u32 = 16;
    pub(crate) const IRQ_SET: u32 = 20;
    pub(crate) const DMA_MAP: u32 = 32;
    pub(crate) const DMA_UNMAP: u32 = 24;
    /// The data of one of several writes.
    pub(crate) const MULTI_DATA: usize = 8;
}
