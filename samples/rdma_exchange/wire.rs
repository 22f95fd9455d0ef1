// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The format of messages: headers, and payload whose pattern identifies the message.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*, //
};

use crate::rdma::client::Buffer;

/// Bytes of a header.
pub(crate) const HEADER_SIZE: usize = 32;

/// Kinds of messages.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Data, which follows the header.
    Data = 0,
    /// Requests that the peer read a region, and then write it.
    Call = 1,
    /// Reports that the region was read and written.
    Answer = 2,
}

/// Header of a message; all fields are little endian.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// The caller's slot.
    pub(crate) slot: u32,
    /// Number of the message or call, which determines the pattern of its data.
    pub(crate) seed: u64,
    /// Address of the caller's region.
    pub(crate) addr: u64,
    /// Key of the caller's region.
    pub(crate) rkey: u32,
    /// Bytes of the region, or of data after the header.
    pub(crate) length: u32,
}

impl Header {
    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seed.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.addr.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[28..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    ///
    /// - [`EBADMSG`] if the kind is undefined.
    pub(crate) fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Self> {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Ok(Self {
            kind: match word(0) {
                0 => Kind::Data,
                1 => Kind::Call,
                2 => Kind::Answer,
                _ => return Err(EBADMSG),
            },
            slot: word(4),
            seed: long(8),
            addr: long(16),
            rkey: word(24),
            length: word(28),
        })
    }
}

/// Bytes in a block of a pattern, within which each byte is the previous one plus 1.
const BLOCK: usize = 256;

/// Two blocks; each block of a pattern is a slice of them.
static RAMP: [u8; 2 * BLOCK] = {
    let mut ramp = [0; 2 * BLOCK];
    let mut i = 0;
    while i < ramp.len() {
        // CAST: Wraps after each block.
        ramp[i] = i as u8;
        i += 1;
    }
    ramp
};

/// Returns the blocks of a pattern of `length` bytes, with their offsets.
fn blocks(seed: u64, length: usize) -> impl Iterator<Item = (usize, &'static [u8])> {
    // CAST: The low bits.
    let first = seed.wrapping_mul(31).wrapping_add(seed >> 8) as u8;
    (0..length).step_by(BLOCK).map(move |at| {
        let start = usize::from(first.wrapping_add((at / BLOCK) as u8));
        (at, &RAMP[start..][..BLOCK.min(length - at)])
    })
}

/// Fills part of a buffer with a pattern.
///
/// # Errors
///
/// - [`ERANGE`] if the part exceeds the buffer.
pub(crate) fn fill(buffer: &Buffer<'_>, offset: usize, length: usize, seed: u64) -> Result {
    blocks(seed, length).try_for_each(|(at, block)| buffer.write(offset + at, block))
}

/// Checks that part of a buffer has a pattern.
///
/// # Errors
///
/// - [`EBADMSG`] if it does not.
/// - [`ERANGE`] if the part exceeds the buffer.
pub(crate) fn expect(buffer: &Buffer<'_>, offset: usize, length: usize, seed: u64) -> Result {
    let mut bytes = [0; BLOCK];
    for (at, block) in blocks(seed, length) {
        let bytes = &mut bytes[..block.len()];
        buffer.read(offset + at, bytes)?;
        if let Some(i) = bytes
            .iter()
            .zip(block)
            .position(|(byte, expected)| byte != expected)
        {
            pr_err!(
                "Data that has arrived: byte {} of {length} of number {seed} is {:#x}, not {:#x}\n",
                at + i,
                bytes[i],
                block[i]
            );
            return Err(EBADMSG);
        }
    }
    Ok(())
}

/// Set of the peer's messages or calls that have arrived.
pub(crate) struct Arrived {
    count: u64,
    bits: KVVec<u64>,
}

impl Arrived {
    /// Creates an empty set for numbers less than `count`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn none(count: u64) -> Result<Self> {
        let words = usize::try_from(count.div_ceil(64)).map_err(|_| EINVAL)?;
        Ok(Self {
            count,
            // Too large a number must not cause a warning.
            bits: KVVec::from_elem(0, words, GFP_KERNEL | __GFP_NOWARN)?,
        })
    }

    /// Adds a number.
    ///
    /// # Errors
    ///
    /// - [`EBADMSG`] if the number is too large, or was added before.
    pub(crate) fn insert(&mut self, number: u64) -> Result {
        let bit = 1 << (number % 64);
        // CAST: `usize` has 64 bits on every architecture that has RDMA.
        match self.bits.get_mut((number / 64) as usize) {
            Some(word) if number < self.count && *word & bit == 0 => {
                *word |= bit;
                Ok(())
            }
            _ => {
                pr_err!("Number {number} is invalid, or has arrived twice\n");
                Err(EBADMSG)
            }
        }
    }
}
