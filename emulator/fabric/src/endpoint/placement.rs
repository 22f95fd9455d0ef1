// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Where payload is, where it belongs, and the result of copying it.

use efa_hw::io::CompStatus;
use efa_model::{Arrival, Delivery, DmaError, Payload as Gathered, Segment};

use crate::{
    memory::{Access, CopyError, Guest, Memory, Unpinned},
    packet::{Header, Packet, Reader},
    quota::Quota,
};

/// Bytes at the end of a packet that are written first, to memory with relaxed ordering.
const FIRST: u32 = 256;

/// Location of the payload of a part of a message.
#[derive(Debug)]
pub(crate) enum Payload<M> {
    /// There is no payload.
    Nothing,
    /// The bytes themselves, from the work request or from a packet of another program.
    Inline(Box<[u8]>),
    /// Memory of the sender, which has to be pinned.
    Memory(M, Unpinned),
}

impl<M: Memory> Payload<M> {
    /// Reads all of it, `length` bytes.
    pub(crate) fn read(&self, length: u32, bytes: &mut Vec<u8>) -> Result<(), Unplaced> {
        bytes.clear();
        match self {
            Self::Nothing => {}
            Self::Inline(inline) => bytes.extend(inline),
            Self::Memory(memory, unpinned) => {
                let _pinned = unpinned.pin().ok_or(Unplaced::Busy)?;
                // CAST: 32 bits fit.
                bytes.resize(length as usize, 0);
                memory.read(bytes).map_err(|_| Unplaced::Lost)?;
            }
        }
        Ok(())
    }

    /// Returns the location of payload that a device has found.
    ///
    /// # Errors
    ///
    /// Status of its work request if the memory is not accessible.
    pub(super) fn new<G: Guest<Memory = M>>(
        guest: &G,
        gathered: Gathered<'_>,
        segments: &[Segment],
    ) -> Result<Self, CompStatus> {
        match gathered {
            Gathered::Inline(bytes) => Ok(Self::Inline(bytes.into())),
            Gathered::Memory if segments.is_empty() => Ok(Self::Nothing),
            Gathered::Memory => match guest.memory(segments, Access::Read) {
                Ok(memory) => Ok(Self::Memory(memory, guest.pins().later())),
                Err(_) => Err(CompStatus::LocalInvalidLkey),
            },
        }
    }

    /// Copies it to its place, unless it is unavailable; returns whether it was written.
    pub(crate) fn copy(&self, target: &Target<M>) -> Written {
        Ok(match self {
            Self::Nothing => Ok(()),
            Self::Inline(bytes) => target.write(bytes),
            Self::Memory(memory, unpinned) => {
                let _pinned = unpinned.pin().ok_or(Unplaced::Busy)?;
                match target.copy(memory) {
                    Ok(()) => Ok(()),
                    Err(CopyError::Source(_)) => return Err(Unplaced::Lost),
                    Err(CopyError::Target(error)) => Err(error),
                }
            }
        })
    }
}

/// Memory for the payload of a packet.
#[derive(Debug)]
pub(crate) struct Target<M> {
    memory: M,
    /// The memory that is written first, if that is not all of it, and its offset in the payload.
    first: Option<(M, usize)>,
}

impl<M: Memory> Target<M> {
    /// Looks up the memory of segments.
    pub(super) fn new<G: Guest<Memory = M>>(guest: &G, segments: &[Segment]) -> Result<Self, DmaError> {
        let length: u32 = segments.iter().map(|segment| segment.length).sum();
        let relaxed = segments.iter().all(|segment| segment.relaxed);
        let offset = length.saturating_sub(FIRST);
        if !relaxed || offset == 0 {
            return Ok(Self { memory: guest.memory(segments, Access::Write)?, first: None });
        }
        let (mut start, mut end) = (segments.to_vec(), segments.to_vec());
        let mut rest = offset;
        for (start, end) in start.iter_mut().zip(&mut end) {
            start.length = rest.min(end.length);
            rest -= start.length;
            end.length -= start.length;
            end.address = end.address.wrapping_add(start.length.into());
        }
        // CAST: 32 bits fit.
        let first = (guest.memory(&end, Access::Write)?, offset as usize);
        Ok(Self { memory: guest.memory(&start, Access::Write)?, first: Some(first) })
    }

    /// Writes all of it.
    pub(crate) fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        let Some((memory, offset)) = &self.first else {
            return self.memory.write(data);
        };
        let (start, end) = data.split_at(*offset);
        memory.write(end)?;
        self.memory.write(start)
    }

    /// Copies all of `source` to it.
    pub(crate) fn copy(&self, source: &M) -> Result<(), CopyError> {
        let Some((_, offset)) = &self.first else {
            return source.copy_to(&self.memory);
        };
        // CAST: 32 bits fit.
        let mut data = vec![0; offset + FIRST as usize];
        source.read(&mut data).map_err(CopyError::Source)?;
        self.write(&data).map_err(CopyError::Target)
    }
}

/// Destination of the payload of a part of a message.
#[derive(Debug)]
pub(crate) struct Placement<M> {
    pub(crate) target: Target<M>,
    /// The byte in which the network flips a bit, and the number of that bit.
    pub(super) flipped: Option<(M, u8)>,
    pub(super) purpose: Purpose,
}

/// Reason why payload was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The sender has waited for copies since the payload was located, so its location may be stale.
    Busy,
    /// The sender has no such message.
    Gone,
    /// The sender's memory was revoked.
    Lost,
}

/// Result of writing payload, or the reason why it was not copied.
pub(crate) type Written = Result<Result<(), DmaError>, Unplaced>;

/// A part of a message whose payload was copied, or whose copy failed. The endpoint has to process it.
#[derive(Debug)]
pub(crate) struct Copied<M> {
    pub(crate) packet: Packet,
    pub(crate) header: Header,
    pub(crate) remembered: Quota,
    pub(crate) placement: Placement<M>,
    pub(crate) written: Written,
}

/// Purpose of received payload.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Data of a send or write, for the device to deliver; empty for the request of a read.
    Delivery(Arrival, Delivery),
    /// Part of the response to a read.
    Response(Reader),
}

impl<M: Memory> Placement<M> {
    /// Applies the bit error of the network to written payload, if there is one.
    pub(crate) fn flip_bit(&self) {
        flip_bit(self.flipped.as_ref());
    }
}

/// Flips a bit of a byte.
pub(super) fn flip_bit(flipped: Option<&(impl Memory, u8)>) {
    if let Some((memory, bit)) = flipped {
        let mut byte = [0];
        if memory.read(&mut byte).is_ok() {
            // The byte was just written successfully.
            let _ = memory.write(&[byte[0] ^ (1 << bit)]);
        }
    }
}
