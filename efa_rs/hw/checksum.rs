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

/// Remainder after each byte value, from an initial remainder of zero.
static TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        // CAST: Less than 256.
        let mut remainder = byte as u16;
        let mut bit = 0;
        while bit < u8::BITS {
            let carry = remainder & 1 != 0;
            remainder >>= 1;
            if carry {
                remainder ^= POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// Returns the remainder after these bytes.
#[inline]
fn update(remainder: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(remainder, |remainder, byte| {
        let [low, high] = remainder.to_le_bytes();
        // Never out of bounds: the table has an element for each byte.
        TABLE[usize::from(low ^ byte)] ^ u16::from(high)
    })
}

/// Returns the checksum of `entry`. The current value of its checksum field has no effect.
// Never inlined: one copy, whose cost `make bench` shows.
#[inline(never)]
pub fn of_entry(entry: &[u8]) -> u16 {
    let before = entry.get(..OFFSET).unwrap_or(entry);
    let after = entry.get(OFFSET + SIZE..).unwrap_or_default();

    !update(update(update(u16::MAX, before), &[0; SIZE]), after)
}
