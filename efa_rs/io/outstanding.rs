// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests that have not completed.

use kernel::prelude::*;

use crate::sys::atomic::{
    Acquire,
    AtomicBool,
    AtomicU32,
    AtomicU64,
    AtomicU8,
    Relaxed,
    Release, //
};

/// The work requests of a queue that have not completed.
///
/// The device gets the index of a work request, and its completions, which come in any order, have it.
/// One task at a time adds work requests, the one that posts; one at a time removes them, the one that
/// polls. Free indices go from the latter to the former through a ring, in which each side writes its own
/// end only.
pub(crate) struct Outstanding {
    slots: KVec<Slot>,
    /// Indices ever taken from the ring of free ones; written by who posts.
    taken: AtomicU32,
    /// Indices ever returned to the ring; written by who polls.
    returned: AtomicU32,
    /// Most work requests at a time.
    count: u32,
    mask: u32,
}

/// A work request that may be there.
struct Slot {
    wr_id: AtomicU64,
    op_type: AtomicU8,
    is_outstanding: AtomicBool,
    /// Of the ring of free indices, the one at this place; those from `taken` to `returned` are free.
    free: AtomicU32,
}

/// What is to be known of a work request when it has completed, whatever the device says of it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// By what the client knows it.
    pub(crate) wr_id: u64,
    /// What the device was asked for, an [`OpType`](crate::hw::io::OpType); of a receive nothing.
    pub(crate) op_type: u8,
}

/// The index of an outstanding work request.
#[derive(Clone, Copy)]
pub(crate) struct WrIndex(u16);

impl WrIndex {
    /// Returns what the device gets.
    pub(crate) fn as_raw(self) -> u16 {
        self.0
    }
}

impl Outstanding {
    /// Makes room for `count` work requests.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if that is none, or more than indices have bits for.
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(count: u32) -> Result<Self> {
        if count == 0 || count > u32::from(u16::MAX) + 1 {
            return Err(EINVAL);
        }
        // Places in the ring of free indices, which wraps: those above `count` are used for indices below.
        let places = count.next_power_of_two();
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let mut slots = KVec::with_capacity(places as usize, GFP_KERNEL)?;
        for index in 0..places {
            let slot = Slot {
                wr_id: AtomicU64::new(0),
                op_type: AtomicU8::new(0),
                is_outstanding: AtomicBool::new(false),
                free: AtomicU32::new(index),
            };
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            taken: AtomicU32::new(0),
            returned: AtomicU32::new(count),
            count,
            mask: places - 1,
        })
    }

    /// Adds a work request, and returns its index; nothing if there is no room. To be called by who posts.
    #[inline]
    pub(crate) fn add(&self, request: Request) -> Option<WrIndex> {
        let taken = self.taken.load(Relaxed);
        // The index was written before `returned` was.
        if taken == self.returned.load(Acquire) {
            return None;
        }
        let index = self.slots.get(self.place(taken))?.free.load(Relaxed);
        let slot = self.slots.get(index as usize)?;
        self.taken.store(taken.wrapping_add(1), Relaxed);

        slot.wr_id.store(request.wr_id, Relaxed);
        slot.op_type.store(request.op_type, Relaxed);
        // Who polls without the device's having completed it sees the rest.
        slot.is_outstanding.store(true, Release);
        // CAST: There are as many as indices have bits for.
        Some(WrIndex(index as u16))
    }

    /// Removes a work request, and returns what is known of it; nothing if there is none with this
    /// index. To be called by who polls.
    #[inline]
    pub(crate) fn remove(&self, index: u16) -> Option<Request> {
        let slot = self.slots.get(usize::from(index))?;
        // The rest was written before.
        if !slot.is_outstanding.load(Acquire) {
            return None;
        }
        slot.is_outstanding.store(false, Relaxed);
        let request = Request {
            wr_id: slot.wr_id.load(Relaxed),
            op_type: slot.op_type.load(Relaxed),
        };

        let returned = self.returned.load(Relaxed);
        let place = self.slots.get(self.place(returned))?;
        place.free.store(index.into(), Relaxed);
        self.returned.store(returned.wrapping_add(1), Release);
        Some(request)
    }

    /// Removes any work request, as [`Self::remove`] does. To be called by who polls.
    pub(crate) fn remove_any(&self) -> Option<Request> {
        let is_outstanding = |slot: &Slot| slot.is_outstanding.load(Relaxed);
        let index = self.slots.iter().position(is_outstanding)?;
        // CAST: There are as many as indices have bits for.
        self.remove(index as u16)
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.returned
            .load(Acquire)
            .wrapping_sub(self.taken.load(Acquire))
            == self.count
    }

    /// Returns where in the ring a counter is.
    fn place(&self, counter: u32) -> usize {
        (counter & self.mask) as usize
    }
}
