// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbers that the device has assigned to objects, to detect one that it assigns twice.

use kernel::{
    bitmap::BitmapVec,
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

/// The numbers of all objects of a kind.
#[pin_data]
pub(super) struct Numbers {
    #[pin]
    taken: Mutex<BitmapVec>,
}

impl Numbers {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new() -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(|| {
            let taken = BitmapVec::new(1 << u16::BITS, GFP_KERNEL)?;
            Ok(try_pin_init!(Self {
                taken <- new_mutex!(taken),
            }? Error))
        })
    }

    /// Marks a number as used, and returns whether no other object has it.
    pub(super) fn take(&self, number: u16) -> bool {
        let number = number.into();
        let mut taken = self.taken.lock();

        let is_free = taken.next_zero_bit(number) == Some(number);
        taken.set_bit(number);
        is_free
    }

    /// Marks a number as unused.
    pub(super) fn release(&self, number: u16) {
        self.taken.lock().clear_bit(number.into());
    }
}
