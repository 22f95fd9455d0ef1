// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checksum of the admin queue's entries: of completions from interface version 0.2 on, of commands
//! in [`Protocol::V2`](super::admin::Protocol::V2).
//!
//! A CRC of 16 bits with polynomial 0x8005, bits reflected, initial value all ones, inverted at the
//! end. It covers the whole entry, with the checksum's own bytes taken as zero.

/// Offset of the checksum in an entry.
pub const OFFSET: usize = 4;

/// Number of bytes per step.
const STEP: usize = size_of::<u32>();

/// The polynomial, reflected.
const POLYNOMIAL: u16 = 0xa001;

/// Remainders after each byte value, in the table `n` with `n` bytes of zero after it. The initial
/// remainder is zero.
static TABLES: [[u16; 256]; STEP] = {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        // CAST: Less than 256.
        let mut remainder = byte as u16;
        let mut zeroes = 0;
        while zeroes < STEP {
            remainder = shift(remainder);
            tables[zeroes][byte] = remainder;
            zeroes += 1;
        }
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

/// Returns the checksum of `entry`, whose length is a multiple of 4 bytes. The current value of its
/// checksum field has no effect.
// Never inlined: one copy, whose cost `make bench` shows.
#[inline(never)]
pub fn of_entry(entry: &[u8]) -> u16 {
    let mut remainder = u16::MAX;
    for (number, bytes) in entry.chunks_exact(STEP).enumerate() {
        // Never out of bounds: each chunk has as many bytes.
        let mut word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if number == OFFSET / STEP {
            word &= !u32::from(u16::MAX);
        }
        let [first, second, third, fourth] = (word ^ u32::from(remainder)).to_le_bytes();
        // Never out of bounds: the tables have an element for each byte.
        remainder = TABLES[3][usize::from(first)]
            ^ TABLES[2][usize::from(second)]
            ^ TABLES[1][usize::from(third)]
            ^ TABLES[0][usize::from(fourth)];
    }
    !remainder
}
