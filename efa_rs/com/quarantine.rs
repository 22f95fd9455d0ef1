// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device may still use although its owner is gone.
//!
//! When the device does not confirm that it has let go of some memory, freeing it would let the
//! device overwrite its next user's data. Such memory is kept until the device has been reset.

use kernel::{
    device::Device,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

use super::{
    event_queue,
    host_info, //
};
use crate::sys::dma::Entries;

/// A block of memory whose owner is gone.
#[expect(
    dead_code,
    reason = "the memory is held, and nobody looks at it any more"
)]
pub(super) enum Block {
    /// Host information that the device may still read.
    HostInfo(Entries<{ host_info::BUFFER_SIZE }>),
    /// The ring of an event queue that could not be destroyed.
    EventQueue(Arc<event_queue::Ring>),
}

/// Memory that is kept until the device has been reset.
#[pin_data]
pub(crate) struct Quarantine {
    #[pin]
    blocks: Mutex<KVec<Block>>,
}

impl Quarantine {
    /// Returns an initializer for an empty quarantine.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            blocks <- new_mutex!(KVec::new()),
        })
    }

    /// Keeps `block`, and says so.
    pub(super) fn keep(&self, dev: &Device, what: &str, block: Block) {
        dev_warn!(
            dev,
            "The device may still use memory of {}; it is kept until the device is reset\n",
            what
        );
        let mut blocks = self.blocks.lock();
        match blocks.reserve(1, GFP_KERNEL) {
            Ok(()) => drop(blocks.push_within_capacity(block)),
            // With no memory to remember it by, it is kept for good.
            Err(_) => core::mem::forget(block),
        }
    }
}
