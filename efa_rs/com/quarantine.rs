// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device may still use although its owner is gone.
//!
//! When the device does not confirm that it has let go of some memory, freeing it would let the
//! device overwrite its next user's data. Such memory is kept until the device has been reset.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::statistics::Statistics;
use crate::sys::ratelimit::RateLimit;

/// A piece of memory.
type Block<'bound> = Arc<dyn Send + Sync + 'bound>;

/// Memory that is kept until the device has been reset, at the latest until it is unbound: then it is
/// no bus master any more.
#[pin_data]
pub(crate) struct Quarantine<'bound> {
    dev: &'bound Device<Bound>,
    #[pin]
    messages: RateLimit,
    #[pin]
    blocks: Mutex<KVec<Block<'bound>>>,
    statistics: Arc<Statistics>,
}

impl<'bound> Quarantine<'bound> {
    /// Makes an empty quarantine.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        dev: &'bound Device<Bound>,
        statistics: &Arc<Statistics>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dev,
                messages <- RateLimit::new(),
                blocks <- new_mutex!(KVec::new()),
                statistics: statistics.clone(),
            }),
            GFP_KERNEL,
        )
    }

    /// Keeps `block`, memory of `what`, and says so; unless the device `is_stopped` by now.
    // One copy for all types of blocks.
    #[inline(never)]
    pub(super) fn keep(&self, what: &str, block: Block<'bound>, is_stopped: &dyn Fn() -> bool) {
        let mut blocks = self.blocks.lock();
        // Under the lock, so that nothing comes in after the release that is for it.
        if is_stopped() {
            return;
        }
        match blocks.reserve(1, GFP_KERNEL) {
            // There is room for one more.
            Ok(()) => drop(blocks.push_within_capacity(block)),
            // With no memory to remember it by, it is kept for good.
            Err(_) => core::mem::forget(block),
        }
        self.statistics.quarantined.change(1);
        drop(blocks);

        if self.messages.allows() {
            dev_warn!(
                self.dev,
                "The device may still use memory of {}; it is kept until the device is reset\n",
                what
            );
        }
    }

    /// Gives all of it back. To be called once the device was reset, and whoever asks `is_stopped` knows.
    pub(super) fn release(&self) {
        let blocks = core::mem::take(&mut *self.blocks.lock());
        // CAST: They fit into memory.
        self.statistics.quarantined.change(-(blocks.len() as i64));
        drop(blocks);
    }
}
