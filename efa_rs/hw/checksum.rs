// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checksum of an admin completion, which devices of interface version 0.2 and later give.
//!
//! A CRC of 16 bits with polynomial 0x8005, bits reflected, that starts with all ones and is
//! inverted at the end, over the whole entry with the checksum's own bytes taken as zero.
//!
//! Every completion is checked, so it is done without a loop over bytes. With y for one bit later,
//! the polynomial is (1 + y)(1 + y^14 + y^15). The entry M divided by the second factor is, with
//! u = y^14 + y^15, the series M (1 + u)(1 + u^2)(1 + u^4)..., and u^2 = y^28 + y^30 and so on: a
//! few shifts each. The last 15 bits of it give the remainder for that factor; that for 1 + y is
//! the parity of the entry.

use super::{
    admin::{
        AcqEntry,
        ACQ_CHECKSUM_OFFSET, //
    },
    wire::At, //
};

/// The start value, which adds to the first bits of the entry.
const START: u64 = 0xffff;

/// Where the checksum is in the entry's first word.
const CHECKSUM: u64 = 0xffff << (8 * ACQ_CHECKSUM_OFFSET);

/// 1 + y^14 + y^15 as a remainder.
const FACTOR: u16 = 0xc001;

/// Returns the checksum that belongs into `entry`, whatever its checksum field holds now.
pub fn of_completion(entry: &AcqEntry) -> u16 {
    let w0 = (u64::from_le_bytes(At::<0>::load(entry)) & !CHECKSUM) ^ START;
    let w1 = u64::from_le_bytes(At::<8>::load(entry));
    let w2 = u64::from_le_bytes(At::<16>::load(entry));
    let w3 = u64::from_le_bytes(At::<24>::load(entry));
    let w4 = u64::from_le_bytes(At::<32>::load(entry));
    let w5 = u64::from_le_bytes(At::<40>::load(entry));
    let w6 = u64::from_le_bytes(At::<48>::load(entry));
    let w7 = u64::from_le_bytes(At::<56>::load(entry));
    let parity = (w0 ^ w1 ^ w2 ^ w3 ^ w4 ^ w5 ^ w6 ^ w7).count_ones();

    // Only what the last bits depend on is computed.
    // 1 + u^32: 448 and 480 bits later.
    let w7 = w7 ^ w0 ^ (w0 << 32);
    // 1 + u^16: 224 and 240 bits later.
    let w7 = w7 ^ later::<32>(w3, w4) ^ later::<48>(w3, w4);
    let w6 = w6 ^ later::<32>(w2, w3) ^ later::<48>(w2, w3);
    let w5 = w5 ^ later::<32>(w1, w2) ^ later::<48>(w1, w2);
    let w4 = w4 ^ later::<32>(w0, w1) ^ later::<48>(w0, w1);
    // 1 + u^8: 112 and 120 bits later.
    let w7 = w7 ^ later::<48>(w5, w6) ^ later::<56>(w5, w6);
    let w6 = w6 ^ later::<48>(w4, w5) ^ later::<56>(w4, w5);
    // 1 + u^4, 1 + u^2, 1 + u.
    let w7 = w7 ^ later::<56>(w6, w7) ^ later::<60>(w6, w7);
    let w7 = w7 ^ (w7 << 28) ^ (w7 << 30);
    let w7 = w7 ^ (w7 << 14) ^ (w7 << 15);

    // CAST: 15 bits are left.
    let remainder = ((w7 >> 49) ^ (w7 >> 50)) as u16;
    let is_odd = (parity ^ remainder.count_ones()) & 1 != 0;
    !(remainder ^ if is_odd { FACTOR } else { 0 })
}

/// Returns the second of two words with both moved by `BITS`, from 1 to 63, to later bits.
#[inline]
fn later<const BITS: u32>(first: u64, second: u64) -> u64 {
    (second << BITS) | (first >> (u64::BITS - BITS))
}
