// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checksum of the admin queue's entries: of completions from interface version 0.2 on, of commands
//! in [`Protocol::V2`](super::admin::Protocol::V2).
//!
//! A CRC of 16 bits with polynomial 0x8005, bits reflected, initial value all ones, inverted at the
//! end. It covers the whole entry, with the checksum's own bytes taken as zero.

/// Offset of the checksum in an entry.
pub const OFFSET: usize = 4;

/// Bytes of the checksum.
const SIZE: usize = size_of::<u16>();

/// The polynomial, reflected.
const POLYNOMIAL: u16 = 0xa001;

/// Remainder after each byte value and, in the second table, a byte of zero after it. The initial
/// remainder is zero.
static TABLES: [[u16; 256]; 2] = {
    let mut tables = [[0; 256]; 2];
    let mut byte = 0;
    while byte < 256 {
        // CAST: Less than 256.
        let once = shift(byte as u16);
        tables[0][byte] = once;
        tables[1][byte] = shift(once);
        byte += 1;
    }
    tables
};

/// Returns the remainder after eight bits of zero.
const fn shift(mut remainder: u16) -> u16 {
    let mut bit = 0;
    while bit < u8::BITS {
        let carry = remainder & 1 != 0;
        remainder >>= 1;
        if carry {
            remainder ^= POLYNOMIAL;
        }
        bit += 1;
    }
    remainder
}

/// Returns the remainder after these bytes, an even number.
#[inline]
fn update(remainder: u16, bytes: &[u8]) -> u16 {
    let [last, before] = &TABLES;
    bytes.chunks_exact(2).fold(remainder, |remainder, pair| {
        // Never out of bounds: each chunk has two bytes.
        let [low, high] = (remainder ^ u16::from_le_bytes([pair[0], pair[1]])).to_le_bytes();
        // Never out of bounds: the tables have an element for each byte.
        before[usize::from(low)] ^ last[usize::from(high)]
    })
}

/// Returns the checksum of `entry`, of an even number of bytes. The current value of its checksum
/// field has no effect.
// Never inlined: one copy, whose cost `make bench` shows.
#[inline(never)]
pub fn of_entry(entry: &[u8]) -> u16 {
    let before = entry.get(..OFFSET).unwrap_or(entry);
    let after = entry.get(OFFSET + SIZE..).unwrap_or_default();

    !update(update(update(u16::MAX, before), &[0; SIZE]), after)
}
