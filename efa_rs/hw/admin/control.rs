// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Control buffers: host memory with data that does not fit into a queue entry.
//!
//! A direct buffer is contiguous. An indirect one is a list of pages in a chain of chunks, to whose
//! first chunk a command refers. A chunk has the bus addresses of up to [`CHUNK_ENTRIES`] pages of
//! [`CHUNK_SIZE`] bytes, and then a [`CtrlBuffInfo`] that refers to the next chunk. The length of a
//! chunk includes its addresses and this reference, which the last chunk does not use.

use super::*;

layout! {
    /// Reference to a control buffer, or to a chunk of an indirect one.
    pub struct CtrlBuffInfo[12] {
        /// Length in bytes.
        length @ 0: u32,
        /// Bus address.
        address @ 4: u64 as Hex,
    }
}

impl CtrlBuffInfo {
    /// Returns the reference as two words of a little-endian host, for [`CHUNK_NEXT_OFFSET`]. It
    /// takes one and a half of them.
    #[inline]
    pub fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.length) | (self.address << 32),
            self.address >> 32,
        ]
    }
}

/// Bytes in a chunk, and in each page that it refers to.
pub const CHUNK_SIZE: usize = 4096;

/// Bytes of an address in a chunk.
pub const CHUNK_ENTRY_SIZE: usize = 8;

/// Number of addresses in a full chunk.
pub const CHUNK_ENTRIES: usize = (CHUNK_SIZE - CtrlBuffInfo::SIZE) / CHUNK_ENTRY_SIZE;

/// Offset of the reference to the next chunk in a full chunk.
pub const CHUNK_NEXT_OFFSET: usize = CHUNK_ENTRIES * CHUNK_ENTRY_SIZE;

/// Length of a full chunk in bytes.
pub const CHUNK_USED_SIZE: usize = CHUNK_NEXT_OFFSET + CtrlBuffInfo::SIZE;
