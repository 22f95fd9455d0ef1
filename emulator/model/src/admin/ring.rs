// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rings in host memory: the submission ring, which the device reads, and completion and event rings, which it writes.

use efa_hw::{
    admin::{AqEntry, Protocol},
    regs::{AqCaps, EventRingCaps},
};

use crate::{
    DmaError, Host,
    queue::{Place, write_entry},
};

/// Bytes in an entry of a ring that the device writes.
const ENTRY_SIZE: usize = 64;

/// Limit on the entries of a ring. It bounds the work that one doorbell can cause.
const MAX_DEPTH: u16 = 256;

/// Whether the geometry of a ring is valid: alignment, depth, and no overflow of addresses.
fn is_valid(base: u64, entry_size: usize, depth: u16) -> bool {
    base != 0
        && base % entry_size as u64 == 0
        && (2..=MAX_DEPTH).contains(&depth)
        && depth.is_power_of_two()
        && base.checked_add(u64::from(depth) * entry_size as u64).is_some()
}

/// The ring of submitted commands.
#[derive(Debug)]
pub(crate) struct SubmissionRing {
    base: u64,
    depth: u16,
    protocol: Protocol,
    /// Total numbers of commands submitted and fetched, modulo 2^16, of which the depth is a divisor.
    submitted: u16,
    fetched: u16,
}

impl SubmissionRing {
    /// Creates a ring if its geometry is valid and its entries have the size of the protocol.
    pub(crate) fn new(base: u64, caps: AqCaps, protocol: Protocol) -> Option<Self> {
        let entry_size = usize::from(caps.entry_size);
        let valid = entry_size == protocol.entry_size() && is_valid(base, entry_size, caps.depth);
        valid.then_some(Self { base, depth: caps.depth, protocol, submitted: 0, fetched: 0 })
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Handles the doorbell. Fails with the number of commands to fetch if that exceeds `room` or the ring's entries.
    pub(crate) fn submit(&mut self, submitted: u16, room: usize) -> Result<(), u16> {
        let waiting = submitted.wrapping_sub(self.fetched);
        if usize::from(waiting) > room.min(self.depth.into()) {
            return Err(waiting);
        }
        self.submitted = submitted;
        Ok(())
    }

    /// Number of commands that are submitted and not fetched.
    pub(crate) fn waiting(&self) -> u16 {
        self.submitted.wrapping_sub(self.fetched)
    }

    /// Fetches the next command, and returns whether it has the right phase.
    pub(crate) fn fetch(&mut self, host: &mut dyn Host) -> Result<(AqEntry, bool), DmaError> {
        let phase = self.fetched / self.depth % 2 == 0;
        let index = u64::from(self.fetched % self.depth);
        let address = self.base + index * self.protocol.entry_size() as u64;
        self.fetched = self.fetched.wrapping_add(1);
        let mut entry = AqEntry::zeroed(self.protocol);
        host.dma_read(address, entry.bytes_mut())?;
        Ok((entry, entry.header().flags.phase == phase))
    }
}

/// A ring of completions or events, which the device writes.
#[derive(Debug)]
pub(crate) struct EventRing {
    base: u64,
    depth: u16,
    vector: u16,
    /// Number of entries ever written.
    pub(crate) written: u64,
}

impl EventRing {
    /// Creates a ring if its geometry is valid and the device has its interrupt vector.
    pub(crate) fn new(base: u64, caps: EventRingCaps, vectors: u16) -> Option<Self> {
        let vector = caps.msix_vector.into();
        let valid =
            usize::from(caps.entry_size) == ENTRY_SIZE && is_valid(base, ENTRY_SIZE, caps.depth) && vector < vectors;
        valid.then_some(Self { base, depth: caps.depth, vector, written: 0 })
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Memory of the ring.
    pub(crate) fn place(&self) -> Place {
        Place { base: self.base, size: u64::from(self.depth) * ENTRY_SIZE as u64 }
    }

    /// Interrupt vector that signals a new entry.
    pub(crate) fn vector(&self) -> u16 {
        self.vector
    }

    /// The phase of the next entry.
    pub(crate) fn phase(&self) -> bool {
        self.written / u64::from(self.depth) % 2 == 0
    }

    /// Writes the next entry.
    pub(crate) fn push(
        &mut self,
        host: &mut dyn Host,
        entry: &[u8; ENTRY_SIZE],
        phase_offset: usize,
    ) -> Result<(), DmaError> {
        let index = self.written % u64::from(self.depth);
        let address = self.base + index * ENTRY_SIZE as u64;
        self.written += 1;
        write_entry(host, address, entry, phase_offset)
    }
}
