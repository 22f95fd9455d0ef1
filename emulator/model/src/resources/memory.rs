// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory as work requests refer to it, and where it is.

/// Kind of access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Sent from by the queue pair.
    LocalRead,
    /// Received into by the queue pair.
    LocalWrite,
    /// Read by the peer.
    RemoteRead,
    /// Written by the peer.
    RemoteWrite,
}

impl Access {
    pub(super) fn is_remote(self) -> bool {
        matches!(self, Self::RemoteRead | Self::RemoteWrite)
    }
}

/// Contiguous memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bus address.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Whether its memory region permits relaxed ordering.
    pub relaxed: bool,
}

/// No region of the protection domain allows the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

/// Memory as a work request refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keyed {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u32,
}

/// Adds contiguous memory. Extends the last segment if it is adjacent.
pub(super) fn add(segments: &mut Vec<Segment>, address: u64, length: u32, relaxed: bool) {
    if let Some(last) = segments.last_mut().filter(|last| last.relaxed == relaxed) {
        let joined = last.length.checked_add(length);
        if let Some(joined) = joined.filter(|_| last.address.checked_add(last.length.into()) == Some(address)) {
            last.length = joined;
            return;
        }
    }
    segments.push(Segment { address, length, relaxed });
}

/// The part of buffers that starts at `offset` and has `length` bytes, or less if they end before.
pub(crate) fn part(buffers: impl Iterator<Item = Keyed>, offset: u32, length: u32) -> impl Iterator<Item = Keyed> {
    let (mut skip, mut rest) = (offset, length);
    buffers.filter_map(move |buffer| {
        let skipped = skip.min(buffer.length);
        skip -= skipped;
        let length = rest.min(buffer.length - skipped);
        rest -= length;
        (length > 0).then(|| Keyed { key: buffer.key, address: buffer.address.wrapping_add(skipped.into()), length })
    })
}
