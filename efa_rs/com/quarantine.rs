// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device may still use although its owner is gone.
//!
//! When the device does not confirm that it has let go of some memory, freeing it would let the
//! device overwrite its next user's data. Such memory is kept until the device has been reset.

use kernel::{
    device::Device,
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

use crate::sys::ratelimit::RateLimit;

/// Memory that is kept until the device has been reset.
#[pin_data]
pub(crate) struct Quarantine {
    #[pin]
    blocks: Mutex<KVec<KBox<dyn Send>>>,
    #[pin]
    messages: RateLimit,
}

impl Quarantine {
    /// Returns an initializer for an empty quarantine.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            blocks <- new_mutex!(KVec::new()),
            messages <- RateLimit::new(),
        })
    }

    /// Keeps `block`, memory of `what`, and says so.
    pub(crate) fn keep<T: Send + 'static>(&self, dev: &Device, what: &str, block: T) {
        let block = match KBox::<T>::new_uninit(GFP_KERNEL) {
            Ok(place) => {
                let block = KBox::write(place, block);
                Some(block as KBox<dyn Send>)
            }
            // With no memory to remember it by, it is kept for good.
            Err(_) => {
                core::mem::forget(block);
                None
            }
        };
        self.add(dev, what, block);
    }

    // One copy for all types of blocks.
    #[inline(never)]
    fn add(&self, dev: &Device, what: &str, block: Option<KBox<dyn Send>>) {
        if self.messages.allows() {
            dev_warn!(
                dev,
                "The device may still use memory of {}; it is kept until the device is reset\n",
                what
            );
        }

        let mut blocks = self.blocks.lock();
        match blocks.reserve(1, GFP_KERNEL) {
            // There is room for one more.
            Ok(()) => drop(block.map(|block| blocks.push_within_capacity(block))),
            // As above.
            Err(_) => core::mem::forget(block),
        }
    }
}
