// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests that have not completed.

use kernel::{
    prelude::*,
    sync::Arc, //
};

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

/// A work request that the device was given.
const POSTED: Label = Label::A;
/// A work request that the driver completes.
const CLOSED: Label = Label::B;

/// What the task that posts to a queue has of the work requests that have not completed.
///
/// The device gets the index of a work request, and its completions, which come in any order, have it.
/// Free indices pass from the task that polls to the one that posts through a ring, of which each side writes one end only.
///
/// A queue that was [closed](Self::close) takes work requests, too, which the device is not given. They complete
/// in their order, and after all that the device was given.
pub(crate) struct PostSide<T> {
    slots: Producer<T>,
    shared: Arc<Shared>,
}

/// What the task that polls has of them.
pub(crate) struct PollSide<T> {
    slots: Consumer<T>,
    shared: Arc<Shared>,
    /// The slot from which to look for work requests of a device that was halted.
    cursor: u32,
}

/// What both have.
struct Shared {
    /// The ring of free indices: those from `taken` to `returned` are free.
    free: KVec<AtomicU32>,
    /// Indices ever taken from the ring; written by the task that posts.
    taken: AtomicU32,
    /// Indices ever returned to it; written by the task that polls.
    returned: AtomicU32,
    /// What `taken` was when the queue was closed.
    closed_at: AtomicU32,
    is_closed: AtomicBool,
    /// Most work requests at a time.
    count: u32,
    mask: u32,
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

/// Makes room for `count` work requests of a queue.
///
/// # Errors
///
/// - [`EINVAL`] if that is none, or more than indices have bits for.
/// - [`ENOMEM`] if there is no memory.
pub(crate) fn new<T: Send>(count: u32) -> Result<(PostSide<T>, PollSide<T>)> {
    if count == 0 || count > u32::from(u16::MAX) + 1 {
        return Err(EINVAL);
    }
    // Places in the ring of free indices, which wraps: those above `count` are used for indices below.
    let places = count.next_power_of_two();
    // CAST: `usize` has 64 bits on every architecture that has EFA.
    let (producer, consumer) = spsc::slots(places as usize)?;
    let mut free = KVec::with_capacity(places as usize, GFP_KERNEL)?;
    for index in 0..places {
        free.push(AtomicU32::new(index), GFP_KERNEL)?;
    }
    let shared = Arc::new(
        Shared {
            free,
            taken: AtomicU32::new(0),
            returned: AtomicU32::new(count),
            closed_at: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            count,
            mask: places - 1,
        },
        GFP_KERNEL,
    )?;
    let posts = PostSide {
        slots: producer,
        shared: shared.clone(),
    };
    let polls = PollSide {
        slots: consumer,
        shared,
        cursor: 0,
    };
    Ok((posts, polls))
}

impl Shared {
    /// Returns the place of the ring at a counter.
    #[inline]
    fn place(&self, counter: u32) -> Option<&AtomicU32> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        self.free.get((counter & self.mask) as usize)
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
        // CAST: There are as many as indices have bits for.
        WrIndex(self.index as u16)
    }

    /// Adds the work request, which the caller gives to the device unless the queue is closed.
    #[inline]
    pub(crate) fn put(self, request: T) {
        let Self {
            queue,
            taken,
            index,
        } = self;
        queue.shared.taken.store(taken.wrapping_add(1), Relaxed);
        let label = if queue.is_closed() { CLOSED } else { POSTED };
        // The index was free, so the slot is.
        let _ = queue.slots.put(index as usize, label, request);
    }
}

impl<T: Send> PostSide<T> {
    /// Returns room for a work request, if there is any.
    #[inline]
    pub(crate) fn room(&mut self) -> Option<Room<'_, T>> {
        let taken = self.shared.taken.load(Relaxed);
        // The index was written before `returned` was.
        if taken == self.shared.returned.load(Acquire) {
            return None;
        }
        let index = self.shared.place(taken)?.load(Relaxed);
        Some(Room {
            queue: self,
            taken,
            index,
        })
    }

    /// Closes the queue: the device is given nothing of what is added from now on.
    pub(crate) fn close(&mut self) {
        let Shared {
            taken,
            closed_at,
            is_closed,
            ..
        } = &*self.shared;
        if !self.is_closed() {
            closed_at.store(taken.load(Relaxed), Relaxed);
            is_closed.store(true, Release);
        }
    }

    /// Returns whether the queue is closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}

impl<T: Send> PollSide<T> {
    /// Forgets all work requests, and opens the queue, of which `_posts` is the other side.
    pub(crate) fn reset(&mut self, _posts: &mut PostSide<T>) {
        let shared = self.shared.clone();
        if shared.taken.load(Relaxed) == 0 && !shared.is_closed() {
            return;
        }
        for (index, free) in shared.free.iter().enumerate() {
            drop(self.slots.take(index, POSTED));
            drop(self.slots.take(index, CLOSED));
            // CAST: There are as many as indices have bits for.
            free.store(index as u32, Relaxed);
        }
        shared.taken.store(0, Relaxed);
        shared.returned.store(shared.count, Relaxed);
        shared.is_closed.store(false, Release);
    }

    /// Removes a work request that the device was given; nothing if there is none with this index.
    #[inline]
    pub(crate) fn remove(&mut self, index: u16) -> Option<T> {
        self.take(index.into(), POSTED)
    }

    #[inline]
    fn take(&mut self, index: u32, label: Label) -> Option<T> {
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let request = self.slots.take(index as usize, label)?;

        let returned = self.shared.returned.load(Relaxed);
        self.shared.place(returned)?.store(index, Relaxed);
        self.shared
            .returned
            .store(returned.wrapping_add(1), Release);
        Some(request)
    }

    /// Removes any work request that the device was given, and will not complete.
    ///
    /// All calls together look at each slot a few times at most.
    pub(crate) fn remove_posted(&mut self) -> Option<T> {
        if !self.has_posted() {
            return None;
        }
        let (first, mask) = (self.cursor, self.shared.mask);
        for ahead in 0..=mask {
            let index = first.wrapping_add(ahead) & mask;
            if let Some(request) = self.take(index, POSTED) {
                self.cursor = index.wrapping_add(1);
                return Some(request);
            }
        }
        None
    }

    /// Removes the next work request of a closed queue, once all that the device was given is removed.
    pub(crate) fn remove_closed(&mut self) -> Option<T> {
        if !self.has_closed() {
            return None;
        }
        // All that the device was given has been removed. From then on these are, in their order. So the ring still has
        // their indices.
        let next = self
            .shared
            .returned
            .load(Relaxed)
            .wrapping_sub(self.shared.count);
        let index = self.shared.place(next)?.load(Relaxed);
        self.take(index, CLOSED)
    }

    /// Returns whether the device has work requests that are not removed.
    pub(crate) fn has_posted(&self) -> bool {
        let shared = &self.shared;
        let given = if shared.is_closed() {
            shared.closed_at.load(Relaxed)
        } else {
            shared.taken.load(Acquire)
        };
        // The number of those that were removed is `returned - count`. It may include some that the device was not given.
        let left = given
            .wrapping_add(shared.count)
            .wrapping_sub(shared.returned.load(Acquire));
        // CAST: A difference of at most `count`.
        (left as i32) > 0
    }

    /// Returns whether [`Self::remove_closed`] has something to remove.
    pub(crate) fn has_closed(&self) -> bool {
        self.shared.is_closed() && !self.has_posted() && !self.is_empty()
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        let shared = &self.shared;
        shared
            .returned
            .load(Acquire)
            .wrapping_sub(shared.taken.load(Acquire))
            == shared.count
    }
}
