// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Slots that pass values from one task to another one, in any order and without a lock.
//!
//! The kernel crate has no such structure. Each side is a value of its own, so that the borrow
//! checker ensures one task on each side.

use core::mem::MaybeUninit;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::atomic::{
    Acquire,
    AtomicU32,
    AtomicU8,
    Relaxed,
    Release,
    UnsafeCell, //
};

/// The label of a slot without a value.
const EMPTY: u8 = 0;

/// The producer's label of a value. The consumer takes only values with a given label.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Label {
    /// A work request that was posted to the device.
    Posted = 1,
    /// A work request that the driver itself completes as flushed.
    Closed = 2,
}

/// A slot.
struct Slot<T> {
    /// [`EMPTY`] or a [`Label`].
    label: AtomicU8,
    word: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The slots of a producer and a consumer.
///
/// # Invariants
///
/// The value of a slot is initialized if its label is not [`EMPTY`]. Then only the consumer
/// accesses it and changes the label. Otherwise only the producer does.
struct Slots<T, S> {
    slots: KVec<Slot<T>>,
    shared: S,
}

// SAFETY: By the type invariant, producer and consumer never access a value at the same time. The
// label passes it between them. They may be different tasks, as `T` is `Send`.
unsafe impl<T: Send, S: Sync> Sync for Slots<T, S> {}

impl<T, S> Drop for Slots<T, S> {
    fn drop(&mut self) {
        for slot in &self.slots {
            if slot.label.load(Relaxed) != EMPTY {
                slot.value.with_mut(|value| {
                    // SAFETY: By the type invariant the value is initialized. It has no other user.
                    unsafe { value.cast::<T>().drop_in_place() }
                });
            }
        }
    }
}

/// The side that puts values.
pub(crate) struct Producer<T, S>(Arc<Slots<T, S>>);

/// The side that takes values.
pub(crate) struct Consumer<T, S>(Arc<Slots<T, S>>);

/// Creates `count` empty slots. Both sides also share `shared`, and a word for each slot, its index
/// at first.
///
/// # Errors
///
/// - [`ENOMEM`] if there is no memory.
pub(crate) fn slots<T: Send, S: Send + Sync>(
    count: u32,
    shared: S,
) -> Result<(Producer<T, S>, Consumer<T, S>)> {
    // CAST: `usize` has 64 bits on every architecture that has EFA.
    let mut slots = KVec::with_capacity(count as usize, GFP_KERNEL)?;
    for index in 0..count {
        // INVARIANT: The slot is empty.
        let slot = Slot {
            label: AtomicU8::new(EMPTY),
            word: AtomicU32::new(index),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        slots.push(slot, GFP_KERNEL)?;
    }
    let slots = Arc::new(Slots { slots, shared }, GFP_KERNEL)?;
    Ok((Producer(slots.clone()), Consumer(slots)))
}

impl<T: Send, S> Producer<T, S> {
    /// Returns what both sides share.
    #[inline]
    pub(crate) fn shared(&self) -> &S {
        &self.0.shared
    }

    /// Returns the word of a slot, if there is such a slot.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU32> {
        Some(&self.0.slots.get(index)?.word)
    }

    /// Puts a value into a slot. The consumer that takes it sees all earlier writes of this task.
    ///
    /// # Errors
    ///
    /// - The value, if the slot has one, or there is no such slot.
    #[inline]
    pub(crate) fn put(&mut self, index: usize, label: Label, value: T) -> Result<(), T> {
        let slot = match self.0.slots.get(index) {
            Some(slot) if slot.label.load(Acquire) == EMPTY => slot,
            _ => return Err(value),
        };
        slot.value.with_mut(|place| {
            // SAFETY: By the invariant of `Slots` only the borrowed producer accesses the value.
            unsafe { place.write(MaybeUninit::new(value)) }
        });
        // INVARIANT: The value was just initialized.
        slot.label.store(label as u8, Release);
        Ok(())
    }
}

impl<T: Send, S> Consumer<T, S> {
    /// Returns what both sides share.
    #[inline]
    pub(crate) fn shared(&self) -> &S {
        &self.0.shared
    }

    /// Returns the word of a slot, if there is such a slot.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU32> {
        Some(&self.0.slots.get(index)?.word)
    }

    /// Takes the value of a slot, if it has this label.
    #[inline]
    pub(crate) fn take(&mut self, index: usize, label: Label) -> Option<T> {
        let slot = self.0.slots.get(index)?;
        if slot.label.load(Acquire) != label as u8 {
            return None;
        }
        let value = slot.value.with_mut(|place| {
            // SAFETY: By the invariant of `Slots` the value is initialized, and only the consumer,
            // which is borrowed, accesses it. The slot is empty below.
            unsafe { place.cast::<T>().read() }
        });
        // INVARIANT: The value was moved.
        slot.label.store(EMPTY, Release);
        Some(value)
    }
}
