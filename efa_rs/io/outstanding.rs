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

/// A slot without a work request.
const FREE: u8 = 0;
/// A slot whose work request the device was given.
const POSTED: u8 = 1;
/// A slot whose work request the driver completes.
const CLOSED: u8 = 2;

/// The work requests of a queue that have not completed.
///
/// The device gets the index of a work request, and its completions, which come in any order, have it.
/// One task at a time adds work requests, the one that posts. One at a time removes them, the one that polls.
/// Free indices pass from the latter to the former through a ring, of which each side writes one end only.
///
/// A queue that was [closed](Self::close) takes work requests, too, which the device is not given. They complete
/// in their order, and after all that the device was given.
pub(crate) struct Outstanding {
    slots: KVec<Slot>,
    /// Indices ever taken from the ring of free ones; written by the task that posts.
    taken: AtomicU32,
    /// Indices ever returned to the ring; written by the task that polls.
    returned: AtomicU32,
    /// What `taken` was when the queue was closed.
    closed_at: AtomicU32,
    is_closed: AtomicBool,
    /// The slot from which the task that polls looks for work requests of a device that was halted.
    cursor: AtomicU32,
    /// Most work requests at a time.
    count: u32,
    mask: u32,
}

/// A work request that may be there.
struct Slot {
    wr_id: AtomicU64,
    op_type: AtomicU8,
    /// [`FREE`], [`POSTED`] or [`CLOSED`].
    state: AtomicU8,
    /// Of the ring of free indices, the one at this place; those from `taken` to `returned` are free.
    free: AtomicU32,
}

/// What the driver keeps of a work request until it has completed, whatever the device says of it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The client's id.
    pub(crate) wr_id: u64,
    /// The operation, an [`OpType`](crate::hw::io::OpType); 0 for a receive.
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
                state: AtomicU8::new(FREE),
                free: AtomicU32::new(index),
            };
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            taken: AtomicU32::new(0),
            returned: AtomicU32::new(count),
            closed_at: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            cursor: AtomicU32::new(0),
            count,
            mask: places - 1,
        })
    }

    /// Adds a work request, and returns its index; nothing if there is no room. For the task that posts, which gives
    /// it to the device unless the queue is closed.
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
        let state = if self.is_closed() { CLOSED } else { POSTED };
        // The task that polls sees the rest if it sees this, also without a completion of the device.
        slot.state.store(state, Release);
        // CAST: There are as many as indices have bits for.
        Some(WrIndex(index as u16))
    }

    /// Closes the queue: the device is given nothing of what is added from now on. For the task that posts.
    pub(crate) fn close(&self) {
        if !self.is_closed() {
            self.closed_at.store(self.taken.load(Relaxed), Relaxed);
            self.is_closed.store(true, Release);
        }
    }

    /// Returns whether the queue is closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire)
    }

    /// Forgets all work requests, and opens the queue. For a caller that keeps both tasks out.
    pub(crate) fn reset(&self) {
        if self.taken.load(Relaxed) == 0 && !self.is_closed() {
            return;
        }
        for (index, slot) in self.slots.iter().enumerate() {
            slot.state.store(FREE, Relaxed);
            // CAST: There are as many as indices have bits for.
            slot.free.store(index as u32, Relaxed);
        }
        self.taken.store(0, Relaxed);
        self.returned.store(self.count, Relaxed);
        self.is_closed.store(false, Release);
    }

    /// Removes a work request that the device was given; nothing if there is none with this index. For the task that
    /// polls.
    #[inline]
    pub(crate) fn remove(&self, index: u16) -> Option<Request> {
        self.take(index.into(), POSTED)
    }

    #[inline]
    fn take(&self, index: usize, state: u8) -> Option<Request> {
        let slot = self.slots.get(index)?;
        // The rest was written before.
        if slot.state.load(Acquire) != state {
            return None;
        }
        slot.state.store(FREE, Relaxed);
        let request = Request {
            wr_id: slot.wr_id.load(Relaxed),
            op_type: slot.op_type.load(Relaxed),
        };

        let returned = self.returned.load(Relaxed);
        let place = self.slots.get(self.place(returned))?;
        // CAST: There are as many as indices have bits for.
        place.free.store(index as u32, Relaxed);
        self.returned.store(returned.wrapping_add(1), Release);
        Some(request)
    }

    /// Removes any work request that the device was given, and will not complete. For the task that polls.
    ///
    /// All calls together look at each slot a few times at most.
    pub(crate) fn remove_posted(&self) -> Option<Request> {
        if !self.has_posted() {
            return None;
        }
        let first = self.cursor.load(Relaxed);
        for ahead in 0..=self.mask {
            let index = first.wrapping_add(ahead) & self.mask;
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            if let Some(request) = self.take(index as usize, POSTED) {
                self.cursor.store(index.wrapping_add(1), Relaxed);
                return Some(request);
            }
        }
        None
    }

    /// Removes the next work request of a closed queue, once all that the device was given is removed. For the task
    /// that polls.
    pub(crate) fn remove_closed(&self) -> Option<Request> {
        if !self.has_closed() {
            return None;
        }
        // All that the device was given has been removed. From then on these are, in their order. So the ring still has
        // their indices.
        let next = self.returned.load(Relaxed).wrapping_sub(self.count);
        let index = self.slots.get(self.place(next))?.free.load(Relaxed);
        self.take(index as usize, CLOSED)
    }

    /// Returns whether the device has work requests that are not removed.
    pub(crate) fn has_posted(&self) -> bool {
        let given = if self.is_closed() {
            self.closed_at.load(Relaxed)
        } else {
            self.taken.load(Acquire)
        };
        // The number of those that were removed is `returned - count`. It may include some that the device was not given.
        let left = given
            .wrapping_add(self.count)
            .wrapping_sub(self.returned.load(Acquire));
        // CAST: A difference of at most `count`.
        (left as i32) > 0
    }

    /// Returns whether [`Self::remove_closed`] has something to remove.
    pub(crate) fn has_closed(&self) -> bool {
        self.is_closed() && !self.has_posted() && !self.is_empty()
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
