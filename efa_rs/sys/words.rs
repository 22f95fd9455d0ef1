// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Words, the unit in which the driver accesses memory that a device uses.

/// Number of bytes of a word.
pub(super) const WORD: usize = size_of::<u64>();

/// Calls a function with the number of each word of `bytes`, and the word. Unrolled for up to four
/// words: a compiler that optimizes for size keeps loops.
#[inline(always)]
pub(super) fn each_word<const N: usize>(
    bytes: &mut [u8; N],
    mut function: impl FnMut(usize, &mut [u8; WORD]),
) {
    let mut words = bytes.chunks_exact_mut(WORD);
    let mut next = move |number| {
        let word = words.next().and_then(|word| word.try_into().ok());
        word.map(|word| function(number, word)).is_some()
    };
    if N <= 4 * WORD {
        let _ = next(0) && next(1) && next(2) && next(3);
    } else {
        let mut number = 0;
        while next(number) {
            number += 1;
        }
    }
}
