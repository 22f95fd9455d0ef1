// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Control buffers: host memory with data that does not fit into a queue entry.
//!
//! A direct buffer is contiguous. An indirect one is a list of pages: the command refers to a chunk
//! of memory. A chunk has the bus addresses of [`CHUNK_ENTRIES`] pages, followed by a [`CtrlBuffInfo`]
//! of the next chunk. Each address is that of [`CHUNK_SIZE`] bytes of data. The length of a chunk counts
//! its addresses and the reference at its end; the last chunk's reference is unused.

use super::super::wire::{
    self,
    layout, //
};

layout! {
    /// Reference to a control buffer, or to a chunk of an indirect one.
    pub struct CtrlBuffInfo[12] {
        /// Length in bytes.
        length @ 0: u32,
        /// Bus address.
        address @ 4: u64,
    }
}

impl CtrlBuffInfo {
    /// Returns the words of a little-endian host at [`CHUNK_NEXT_OFFSET`], of which the reference takes
    /// one and a half.
    #[inline]
    pub fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.length) | (self.address << 32),
            self.address >> 32,
        ]
    }
}

/// Bytes in a chunk, and in a page that it refers to.
pub const CHUNK_SIZE: usize = 4096;

/// Bytes in an address within a chunk.
pub const CHUNK_ENTRY_SIZE: usize = 8;

/// Addresses in a chunk that is full.
pub const CHUNK_ENTRIES: usize = (CHUNK_SIZE - CtrlBuffInfo::SIZE) / CHUNK_ENTRY_SIZE;

/// Position of the reference to the next chunk in a chunk that is full.
pub const CHUNK_NEXT_OFFSET: usize = CHUNK_ENTRIES * CHUNK_ENTRY_SIZE;

/// Length of a chunk that is full.
pub const CHUNK_USED_SIZE: usize = CHUNK_NEXT_OFFSET + CtrlBuffInfo::SIZE;
