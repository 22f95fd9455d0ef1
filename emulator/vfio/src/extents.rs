// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Pinned ranges of a guest's memory, which stay accessible while in use, even if the VMM unmaps them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

use efa_fabric::CopyError;
use efa_model::DmaError;
use smallvec::SmallVec;

use crate::memory::{Memory, Side};

/// Number of bytes that one atomic store writes.
const WORD: usize = size_of::<u64>();

/// Memory of a guest, in the order of the addresses that were requested.
///
/// It borrows nothing, so that it can be read, written and copied without the lock of the device.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    // Nearly always one piece, as contiguous pieces are joined.
    pub(crate) pieces: SmallVec<[Extent; 1]>,
    length: usize,
    // First bus address, for errors.
    address: u64,
}

/// A part of one mapping.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    memory: Arc<Memory>,
    offset: usize,
    length: usize,
}

impl Extents {
    /// Creates an empty list, for a range that begins at bus address `address`.
    pub(crate) fn new(address: u64) -> Self {
        Self { address, ..Self::default() }
    }

    /// Appends `length` bytes from `offset` of a mapping.
    pub(crate) fn push(&mut self, memory: &Arc<Memory>, offset: usize, length: usize) {
        self.length += length;
        if let Some(last) = self.pieces.last_mut() {
            if Arc::ptr_eq(&last.memory, memory) && last.offset + last.length == offset {
                last.length += length;
                return;
            }
        }
        self.pieces.push(Extent { memory: Arc::clone(memory), offset, length });
    }

    /// Returns the first eight bytes, if they are aligned, in one piece and can't be revoked.
    fn first_word(&self) -> Option<&AtomicU64> {
        let piece = self.pieces.first()?;
        (piece.length >= WORD).then(|| piece.memory.word(piece.offset)).flatten()
    }

    fn write_at(&self, at: usize, data: &[u8]) -> Result<(), DmaError> {
        let mut skip = at;
        let mut rest = data;
        for piece in &self.pieces {
            let skipped = skip.min(piece.length);
            skip -= skipped;
            let (now, later) = rest.split_at(rest.len().min(piece.length - skipped));
            let written = piece.memory.write(piece.offset + skipped, now);
            written.map_err(|_| self.error())?;
            rest = later;
        }
        Ok(())
    }

    fn error(&self) -> DmaError {
        DmaError { address: self.address, length: self.length }
    }
}

impl efa_fabric::Memory for Extents {
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError> {
        assert_eq!(buffer.len(), self.length);
        let mut rest = buffer;
        for piece in &self.pieces {
            let (now, later) = rest.split_at_mut(piece.length);
            let read = piece.memory.read(piece.offset, now);
            read.map_err(|_| self.error())?;
            rest = later;
        }
        Ok(())
    }

    /// Writes all of the memory.
    ///
    /// A driver that sees the new first eight bytes sees all of the data, if they are aligned and can't be revoked. On a bus,
    /// a descriptor is written as a whole. Here, a driver on another CPU could see its phase bit before the rest. All descriptors
    /// of the device have that bit in the first eight bytes, so one store writes these, after all others.
    fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        assert_eq!(data.len(), self.length);
        let (first, rest) = data.split_at(data.len().min(WORD));
        self.write_at(WORD, rest)?;
        if let (Some(word), Ok(first)) = (self.first_word(), first.try_into()) {
            word.store(u64::from_ne_bytes(first), Ordering::Release);
            return Ok(());
        }
        // The kernel copies to memory that can be revoked, in an unspecified order.
        fence(Ordering::Release);
        self.write_at(0, first)
    }

    fn copy_to(&self, to: &Self) -> Result<(), CopyError> {
        assert_eq!(self.length, to.length);
        let mut targets = to.pieces.iter();
        let mut target = None;
        for source in &self.pieces {
            let mut from = 0;
            while from < source.length {
                let Some((piece, at)) = target.or_else(|| Some((targets.next()?, 0))) else {
                    break;
                };
                let count = (source.length - from).min(piece.length - at);
                source.memory.copy(source.offset + from, &piece.memory, piece.offset + at, count).map_err(|side| {
                    match side {
                        Side::Source => CopyError::Source(self.error()),
                        Side::Target => CopyError::Target(to.error()),
                    }
                })?;
                from += count;
                target = (at + count < piece.length).then_some((piece, at + count));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use efa_fabric::Memory as _;
    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::memory::tests::{file, memory};

    fn extents(pieces: &[(&Arc<Memory>, usize, usize)]) -> Extents {
        let mut extents = Extents::new(0);
        for (memory, offset, length) in pieces {
            extents.push(memory, *offset, *length);
        }
        extents
    }

    #[test]
    fn the_first_word_is_one_store_where_it_can_be() {
        let kinds = [MemfdFlags::ALLOW_SEALING, MemfdFlags::empty()];
        let [mapped, file] = kinds.map(|flags| Arc::new(memory(&file(flags))));
        for (pieces, is_one) in [
            (vec![(&mapped, 0, 32)], true),
            (vec![(&mapped, 8, 8)], true),
            (vec![(&mapped, 4 * 4096 - 32, 32)], true),
            (vec![(&mapped, 64, 8), (&mapped, 0, 24)], true),
            (vec![(&mapped, 4, 32)], false),
            (vec![(&mapped, 0, 7)], false),
            (vec![(&mapped, 0, 4), (&mapped, 8, 28)], false),
            (vec![(&file, 0, 32)], false),
        ] {
            let extents = extents(&pieces);
            assert_eq!(extents.first_word().is_some(), is_one, "{pieces:?}");
            let data: Vec<u8> = (0..extents.length).map(|n| n as u8).collect();
            extents.write(&data).unwrap();
            let mut found = vec![0xff; data.len()];
            extents.read(&mut found).unwrap();
            assert_eq!(found, data, "{pieces:?}");
        }
    }

    #[test]
    fn no_reader_sees_a_part_of_the_first_word() {
        const ROUNDS: usize = 200_000;
        let memory = Arc::new(memory(&file(MemfdFlags::ALLOW_SEALING)));
        let written = extents(&[(&memory, 0, 32)]);
        let read = extents(&[(&memory, 0, 32)]);
        // The result must not depend on the alignment of the source.
        let sources = [0_u8, 0xff].map(|byte| [byte; 40]);
        thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for round in 0..ROUNDS {
                    let at = 1 + round % 8;
                    written.write(&sources[round % 2][at..at + 32]).unwrap();
                }
            });
            let word = read.first_word().unwrap();
            while !writer.is_finished() {
                let seen = word.load(Ordering::Acquire);
                assert!(seen == 0 || seen == u64::MAX, "{seen:#x}");
            }
        });
    }
}
