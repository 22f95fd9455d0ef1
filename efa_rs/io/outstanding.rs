// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests that have not completed.

use kernel::prelude::*;

use crate::sys::{
    atomic::{
        Acquire,
        AtomicBool,
        AtomicU32,
        Relaxed,
        Release, //
    },
    spsc::{
        self,
        Consumer,
        Label,
        Producer, //
    },
};

/// The posting side of a queue's outstanding work requests.
///
/// The device is given the index of a work request and returns it in the completion, in any order.
/// The polling side returns free indices through a ring, of which each side writes only one end.
///
/// A queue that was [closed](Self::close) still accepts work requests, but they are not posted to
/// the device. They complete in order, after all posted ones.
pub(crate) struct PostSide<T> {
    slots: Producer<T, Shared>,
    state: PostState,
}

/// Whether work requests can be posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PostState {
    /// Not in the state of the queue pair.
    Unready,
    /// They are posted to the device.
    Open,
    /// They complete without the device.
    Closed,
}

/// The polling side of a queue's outstanding work requests.
pub(crate) struct PollSide<T> {
    slots: Consumer<T, Shared>,
    /// The slot where the search for work requests of a halted device continues.
    cursor: u32,
}

/// State shared by both sides. The words of the slots are the ring of free indices, of which those
/// from `taken` to `returned` are free.
struct Shared {
    /// Number of indices taken from the ring; written by the posting side.
    taken: AtomicU32,
    /// Number of indices returned to the ring; written by the polling side.
    returned: AtomicU32,
    /// Value of `taken` when the queue was closed.
    closed_at: AtomicU32,
    is_closed: AtomicBool,
    /// Limit on outstanding work requests.
    count: u32,
    mask: u32,
}

/// The index of an outstanding work request.
#[derive(Clone, Copy)]
pub(crate) struct WrIndex(u16);

impl WrIndex {
    /// Returns the request id for the device.
    pub(crate) fn as_raw(self) -> u16 {
        self.0
    }
}

/// Creates both sides of a queue with at most `count` outstanding work requests.
///
/// # Errors
///
/// - [`EINVAL`] if `count` is 0, or exceeds the number of 16-bit indices.
/// - [`ENOMEM`] if there is no memory.
pub(crate) fn new<T: Send>(count: u32) -> Result<(PostSide<T>, PollSide<T>)> {
    if count == 0 || count > u32::from(u16::MAX) + 1 {
        return Err(EINVAL);
    }
    // Number of entries in the ring of free indices. Those from `count` on get returned indices.
    let places = count.next_power_of_two();
    let shared = Shared {
        taken: AtomicU32::new(0),
        returned: AtomicU32::new(count),
        closed_at: AtomicU32::new(0),
        is_closed: AtomicBool::new(false),
        count,
        mask: places - 1,
    };
    let (producer, consumer) = spsc::slots(places, shared)?;
    let posts = PostSide {
        slots: producer,
        state: PostState::Unready,
    };
    let polls = PollSide {
        slots: consumer,
        cursor: 0,
    };
    Ok((posts, polls))
}

impl Shared {
    /// Returns the place in the ring of free indices at a counter.
    #[inline]
    fn place(&self, counter: u32) -> usize {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        (counter & self.mask) as usize
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire)
    }
}

/// Room for a work request.
pub(crate) struct Room<'q, T> {
    queue: &'q mut PostSide<T>,
    taken: u32,
    index: u32,
}

impl<T: Send> Room<'_, T> {
    /// Returns the index that the work request will have.
    #[inline]
    pub(crate) fn index(&self) -> WrIndex {
        // CAST: Indices have 16 bits.
        WrIndex(self.index as u16)
    }

    /// Adds the work request, which the caller posts to the device.
    #[inline]
    pub(crate) fn put(self, request: T) {
        self.put_as(Label::Posted, request);
    }

    /// Adds the work request to a closed queue.
    pub(crate) fn put_closed(self, request: T) {
        self.put_as(Label::Closed, request);
    }

    #[inline]
    fn put_as(self, label: Label, request: T) {
        let Self {
            queue,
            taken,
            index,
        } = self;
        queue
            .slots
            .shared()
            .taken
            .store(taken.wrapping_add(1), Relaxed);
        // The index was free, so the slot is empty.
        let _ = queue.slots.put(index as usize, label, request);
    }
}

impl<T: Send> PostSide<T> {
    /// Returns room for a work request, if there is any.
    #[inline]
    pub(crate) fn room(&mut self) -> Option<Room<'_, T>> {
        let shared = self.slots.shared();
        let taken = shared.taken.load(Relaxed);
        // The polling side writes the index before `returned`.
        if taken == shared.returned.load(Acquire) {
            return None;
        }
        let index = self.slots.word(shared.place(taken))?.load(Relaxed);
        Some(Room {
            queue: self,
            taken,
            index,
        })
    }

    /// Closes the queue: work requests that are added later are not posted to the device.
    pub(crate) fn close(&mut self) {
        let Shared {
            taken,
            closed_at,
            is_closed,
            ..
        } = self.slots.shared();
        if self.state != PostState::Closed {
            closed_at.store(taken.load(Relaxed), Relaxed);
            is_closed.store(true, Release);
            self.state = PostState::Closed;
        }
    }

    /// Opens the queue, or refuses work requests, unless it is closed. Then only a reset opens it.
    pub(crate) fn set_ready(&mut self, is_ready: bool) {
        if self.state != PostState::Closed {
            self.state = if is_ready {
                PostState::Open
            } else {
                PostState::Unready
            };
        }
    }

    /// Returns whether work requests can be posted.
    #[inline]
    pub(crate) fn state(&self) -> PostState {
        self.state
    }
}

impl<T: Send> PollSide<T> {
    /// Discards all work requests and reopens the queue, of which `posts` is the other side.
    pub(crate) fn reset(&mut self, posts: &mut PostSide<T>) {
        let shared = self.slots.shared();
        let places = shared.mask as usize + 1;
        if shared.taken.load(Relaxed) == 0 && !shared.is_closed() {
            return;
        }
        for index in 0..places {
            drop(self.slots.take(index, Label::Posted));
            drop(self.slots.take(index, Label::Closed));
            if let Some(free) = self.slots.word(index) {
                // CAST: Indices have 16 bits.
                free.store(index as u32, Relaxed);
            }
        }
        let shared = self.slots.shared();
        shared.taken.store(0, Relaxed);
        shared.returned.store(shared.count, Relaxed);
        shared.is_closed.store(false, Release);
        posts.state = PostState::Unready;
    }

    /// Removes the posted work request with this index, if there is one.
    #[inline]
    pub(crate) fn remove(&mut self, index: u16) -> Option<T> {
        self.take(index.into(), Label::Posted)
    }

    #[inline]
    fn take(&mut self, index: u32, label: Label) -> Option<T> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let request = self.slots.take(index as usize, label)?;

        let shared = self.slots.shared();
        let returned = shared.returned.load(Relaxed);
        self.slots
            .word(shared.place(returned))?
            .store(index, Relaxed);
        shared.returned.store(returned.wrapping_add(1), Release);
        Some(request)
    }

    /// Removes one posted work request that the device will not complete.
    ///
    /// All calls together visit each slot at most a few times.
    pub(crate) fn remove_posted(&mut self) -> Option<T> {
        if !self.has_posted() {
            return None;
        }
        let (first, mask) = (self.cursor, self.slots.shared().mask);
        for ahead in 0..=mask {
            let index = first.wrapping_add(ahead) & mask;
            if let Some(request) = self.take(index, Label::Posted) {
                self.cursor = index.wrapping_add(1);
                return Some(request);
            }
        }
        None
    }

    /// Removes the next unposted work request of a closed queue, once all posted ones are removed.
    pub(crate) fn remove_closed(&mut self) -> Option<T> {
        if !self.has_closed() {
            return None;
        }
        // All posted work requests were removed. Since then, unposted ones are removed in order, so
        // that the ring still contains their indices.
        let shared = self.slots.shared();
        let next = shared.returned.load(Relaxed).wrapping_sub(shared.count);
        let index = self.slots.word(shared.place(next))?.load(Relaxed);
        self.take(index, Label::Closed)
    }

    /// Returns whether there are posted work requests that were not removed.
    pub(crate) fn has_posted(&self) -> bool {
        let shared = self.slots.shared();
        let given = if shared.is_closed() {
            shared.closed_at.load(Relaxed)
        } else {
            shared.taken.load(Acquire)
        };
        // The number of removed work requests is `returned - count`. It may include unposted ones.
        let left = given
            .wrapping_add(shared.count)
            .wrapping_sub(shared.returned.load(Acquire));
        // CAST: A difference of at most `count`.
        (left as i32) > 0
    }

    /// Returns whether [`Self::remove_closed`] has a work request to remove.
    pub(crate) fn has_closed(&self) -> bool {
        self.slots.shared().is_closed() && !self.has_posted() && !self.is_empty()
    }

    /// Returns whether there are no outstanding work requests.
    pub(crate) fn is_empty(&self) -> bool {
        let shared = self.slots.shared();
        shared
            .returned
            .load(Acquire)
            .wrapping_sub(shared.taken.load(Acquire))
            == shared.count
    }
}
