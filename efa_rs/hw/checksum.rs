// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checksum of an admin completion, which devices of interface version 0.2 and later give.
//!
//! A CRC of 16 bits with polynomial 0x8005, bits reflected, that starts with all ones and is
//! inverted at the end, over the whole entry with the checksum's own bytes taken as zero.

use super::{
    admin::{
        AcqEntry,
        ACQ_CHECKSUM_OFFSET, //
    },
    wire::At, //
};

/// The remainder of each byte.
static TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    /// 0x8005 with its bits reflected.
    const POLYNOMIAL: u16 = 0xa001;

    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut remainder = byte;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 1;
            remainder >>= 1;
            if carry != 0 {
                remainder ^= POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte as usize] = remainder;
        byte += 1;
    }
    table
}

/// Returns the CRC of `bytes`.
pub fn crc16(bytes: &[u8]) -> u16 {
    !bytes.iter().fold(!0, |crc: u16, &byte| {
        let [low, high] = crc.to_le_bytes();
        u16::from(high) ^ TABLE[usize::from(low ^ byte)]
    })
}

/// Returns the checksum that belongs into `entry`, whatever its checksum field holds now.
pub fn of_completion(entry: &AcqEntry) -> u16 {
    let mut entry = *entry;
    At::<ACQ_CHECKSUM_OFFSET>::store(&mut entry, [0; 2]);
    crc16(&entry)
}
