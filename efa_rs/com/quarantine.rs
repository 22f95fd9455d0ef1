// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device may still use although its owner is gone.
//!
//! When the device does not confirm that it has released some memory, freeing it would let the
//! device overwrite its next user's data. Such memory is kept until the device has been reset.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

use super::statistics::Statistics;
use crate::sys::log::Limited;

pub(super) type Block<'bound> = Arc<dyn Send + Sync + 'bound>;

/// Memory that is kept until the device has been reset, at the latest until unbind, which ends its
/// bus mastering.
///
/// Each piece of lent memory has a reserved place here, so that keeping it needs no allocation.
#[pin_data]
pub(crate) struct Quarantine<'bound> {
    #[pin]
    messages: Limited<'bound>,
    #[pin]
    blocks: Mutex<Blocks<'bound>>,
    /// Number of reserved places, including those of memory that may become a block.
    taken: Atomic<usize>,
    /// Number of allocated places.
    places: Atomic<usize>,
    statistics: Arc<Statistics>,
}

struct Blocks<'bound> {
    blocks: KVVec<Block<'bound>>,
    /// Whether the device's bus mastering has ended for good, so that nothing more is kept.
    is_over: bool,
}

impl<'bound> Quarantine<'bound> {
    pub(super) fn new(
        dev: &'bound Device<Bound>,
        statistics: &Arc<Statistics>,
    ) -> impl PinInit<Self> + use<'bound> {
        let statistics = statistics.clone();
        pin_init!(Self {
            messages <- Limited::new(dev),
            blocks <- new_mutex!(Blocks {
                blocks: KVVec::new(),
                is_over: false,
            }),
            taken: Atomic::new(0),
            places: Atomic::new(0),
            statistics,
        })
    }

    /// Reserves a place, which [`Self::keep`] uses and [`Self::cancel`] frees.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn reserve(&self) -> Result {
        let taken = self.taken.fetch_add(1, Relaxed) + 1;
        if taken > self.places.load(Relaxed) {
            self.grow(taken).inspect_err(|_| self.cancel())?;
        }
        Ok(())
    }

    /// Grows the quarantine to at least `places` places.
    #[cold]
    #[inline(never)]
    fn grow(&self, places: usize) -> Result {
        let mut kept = self.blocks.lock();
        let additional = places.saturating_sub(kept.blocks.len());
        kept.blocks.reserve(additional, GFP_KERNEL)?;
        self.places.store(kept.blocks.capacity(), Relaxed);
        Ok(())
    }

    pub(super) fn cancel(&self) {
        self.taken.fetch_sub(1, Relaxed);
    }

    /// Keeps `block`, memory of `what`, and logs a warning, unless `is_stopped` returns true.
    // One copy for all types of blocks.
    #[inline(never)]
    pub(super) fn keep(&self, what: &str, block: Block<'bound>, is_stopped: &dyn Fn() -> bool) {
        let mut kept = self.blocks.lock();
        // Checked under the lock, so that no block is added after the release that should free it.
        if is_stopped() || kept.is_over {
            drop(kept);
            return self.cancel();
        }
        // `reserve` has allocated the place.
        drop(kept.blocks.push_within_capacity(block));
        self.statistics.quarantined.increment();
        drop(kept);

        self.messages.warning(fmt!(
            "The device may still use memory of {}; it is kept until the device is reset",
            what
        ));
    }

    /// Frees all blocks. Called after the device was reset and `is_stopped` returns true. The
    /// caller must not hold locks that the drop of a block takes.
    pub(super) fn release(&self) {
        loop {
            // The block is dropped with no lock held.
            let block = self.blocks.lock().blocks.pop();
            if block.is_none() {
                return;
            }
            self.statistics.released.increment();
            self.cancel();
        }
    }

    /// Frees all blocks, and keeps no more. Called once bus mastering has ended for good.
    pub(super) fn end(&self) {
        self.blocks.lock().is_over = true;
        self.release();
    }
}
