// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbers that the device has given to objects, to know one that it gives twice.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

/// Words of a bit for each number of 16 bits.
const WORDS: usize = 1 << (u16::BITS - u64::BITS.trailing_zeros());

/// The numbers of objects of a kind.
#[pin_data]
pub(super) struct Numbers {
    // No `BitmapVec`, which takes twice the code.
    #[pin]
    taken: Mutex<KBox<[u64; WORDS]>>,
}

impl Numbers {
    /// Makes an empty set.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new() -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(|| {
            let taken = KBox::init(pin_init::init_zeroed(), GFP_KERNEL)?;
            Ok(try_pin_init!(Self {
                taken <- new_mutex!(taken),
            }? Error))
        })
    }

    /// Takes a number, and returns whether no other object has it.
    pub(super) fn take(&self, number: u16) -> bool {
        !self.replace(number, true)
    }

    /// Lets a number be given to another object.
    pub(super) fn give_back(&self, number: u16) {
        self.replace(number, false);
    }

    /// Says whether a number is taken, and returns whether it was.
    fn replace(&self, number: u16, is_taken: bool) -> bool {
        let index = usize::from(number) / u64::BITS as usize;
        let bit = 1 << (u32::from(number) % u64::BITS);
        let mut taken = self.taken.lock();

        // There is a word for each number.
        let Some(word) = taken.get_mut(index) else {
            return true;
        };
        let before = *word & bit != 0;
        *word = *word & !bit | if is_taken { bit } else { 0 };
        before
    }
}
