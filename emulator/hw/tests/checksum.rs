// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checksum of entries.

use efa_hw::checksum::of_entry;
use proptest::{collection::vec, prelude::*};

/// Reference implementation of the CRC, bit by bit.
fn bitwise(bytes: &[u8]) -> u16 {
    let mut crc = 0xffff_u16;
    for byte in bytes {
        crc ^= u16::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xa001 } else { crc >> 1 };
        }
    }
    crc ^ 0xffff
}

/// The check value that catalogues of CRCs give for this one (CRC-16/USB).
#[test]
fn check_value() {
    assert_eq!(bitwise(b"123456789"), 0xb4c8);
    assert_eq!(bitwise(b""), 0);
}

proptest! {
    #[test]
    fn table_and_bits_agree(words in vec(any::<[u8; 4]>(), 2..64)) {
        let mut entry = words.concat();
        let checksum = of_entry(&entry);
        entry[4..6].fill(0);
        prop_assert_eq!(checksum, bitwise(&entry));
    }

    #[test]
    fn a_changed_bit_is_found(mut entry in vec(any::<u8>(), 128), bit in 0_usize..1024) {
        let checksum = of_entry(&entry);
        entry[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(of_entry(&entry) == checksum, matches!(bit / 8, 4 | 5));
    }
}
