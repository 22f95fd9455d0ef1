// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The MSI-X table, which the kernel writes, and what is pending.

use std::ops::Range;

use efa_vfio::MsixTable;

use crate::message::Interrupt;

/// Bytes of an entry: the address, the data, and the control word, whose lowest bit masks the vector.
const ENTRY: usize = 16;
const CONTROL: usize = 12;
const MASKED: u8 = 1;

/// A function's vectors.
#[derive(Debug)]
pub(crate) struct Table {
    place: MsixTable,
    bytes: Vec<u8>,
    pending: Vec<bool>,
}

impl Table {
    /// All vectors are masked.
    pub(crate) fn new(place: MsixTable) -> Self {
        let vectors = usize::from(place.vectors);
        let mut bytes = vec![0; ENTRY * vectors];
        bytes
            .chunks_mut(ENTRY)
            .for_each(|entry| entry[CONTROL] = MASKED);
        Self {
            place,
            bytes,
            pending: vec![false; vectors],
        }
    }

    /// Reads, if there is nothing but the table.
    pub(crate) fn read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        let range = self.range(bar, offset, data.len());
        range
            .map(|range| data.copy_from_slice(&self.bytes[range]))
            .is_some()
    }

    /// Writes, if there is nothing but the table.
    pub(crate) fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> bool {
        let range = self.range(bar, offset, data.len());
        range
            .map(|range| self.bytes[range].copy_from_slice(data))
            .is_some()
    }

    fn range(&self, bar: u8, offset: u64, length: usize) -> Option<Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.place.offset)?).ok()?;
        let end = start.checked_add(length)?;
        (bar == self.place.bar && end <= self.bytes.len()).then_some(start..end)
    }

    /// Takes note of an interrupt.
    pub(crate) fn raise(&mut self, vector: usize) {
        if let Some(pending) = self.pending.get_mut(vector) {
            *pending = true;
        }
    }

    /// A pending vector that is not masked, and its message.
    pub(crate) fn due(&self) -> Option<(usize, Interrupt)> {
        let entries = self.bytes.chunks_exact(ENTRY).enumerate();
        entries
            .zip(&self.pending)
            .find(|((_, entry), pending)| **pending && entry[CONTROL] & MASKED == 0)
            .map(|((vector, entry), _)| {
                let word =
                    |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| entry[at + byte]));
                let interrupt = Interrupt {
                    address: (u64::from(word(4)) << 32) | u64::from(word(0)),
                    data: word(8),
                };
                (vector, interrupt)
            })
    }

    /// Takes note that the message of a vector was sent.
    pub(crate) fn sent(&mut self, vector: usize) {
        if let Some(pending) = self.pending.get_mut(vector) {
            *pending = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(MsixTable {
            bar: 0,
            offset: 0x2000,
            vectors: 3,
        })
    }

    fn unmask(table: &mut Table, vector: u64, data: u32) {
        let at = 0x2000 + 16 * vector;
        assert!(table.write(0, at, &0xfee0_0000_u64.to_le_bytes()));
        assert!(table.write(0, at + 8, &data.to_le_bytes()));
        assert!(table.write(0, at + 12, &[0; 4]));
    }

    #[test]
    fn an_interrupt_of_a_masked_vector_waits() {
        let mut table = table();
        table.raise(1);
        assert_eq!(table.due(), None);
        unmask(&mut table, 1, 7);
        let interrupt = Interrupt {
            address: 0xfee0_0000,
            data: 7,
        };
        assert_eq!(table.due(), Some((1, interrupt)));
        table.sent(1);
        assert_eq!(table.due(), None);
    }

    #[test]
    fn others_are_not_due() {
        let mut table = table();
        unmask(&mut table, 0, 7);
        table.raise(1);
        table.raise(3);
        assert_eq!(table.due(), None);
    }

    #[test]
    fn the_rest_of_the_bar_is_none_of_it() {
        let mut table = table();
        assert!(table.read(0, 0x2000, &mut [0; 48]));
        for (bar, offset, length) in [
            (1, 0x2000, 4),
            (0, 0x1ffc, 8),
            (0, 0x2030, 4),
            (0, 0x2000, 49),
            (0, u64::MAX, 4),
        ] {
            assert!(!table.read(bar, offset, &mut vec![0; length]));
            assert!(!table.write(bar, offset, &vec![0; length]));
        }
    }
}
