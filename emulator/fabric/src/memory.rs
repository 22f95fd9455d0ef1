// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of guests, and copies from and to it that are under way.
//!
//! Copies run without any lock. What a copy needs is pinned: under the lock of the endpoint whose memory it is, or later if
//! nobody has waited for copies since. Who takes memory away from a device holds its lock and waits until nothing is pinned,
//! which is soon, as nobody waits for anything while it has pinned memory.

use std::{fmt::Debug, sync::Arc};

use efa_model::{DmaError, Host, Segment};
use parking_lot::{Condvar, Mutex};

/// How a device uses memory of its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it.
    Write,
}

/// The host of a device, in whose memory payload is.
pub trait Guest: Host {
    /// A piece of its memory.
    type Memory: Memory;

    /// Finds memory that the device may use, to be used without the device's lock while it is pinned.
    ///
    /// # Errors
    ///
    /// Not all of it is mapped for the device.
    fn memory(&self, segments: &[Segment], access: Access) -> Result<Self::Memory, DmaError>;

    /// Copies that are under way. [`Host::quiesce`] waits for them, and so has to be done what takes memory away.
    fn pins(&self) -> &Arc<Pins>;
}

/// A piece of a guest's memory. The guest may change it at any time, or even take it away.
pub trait Memory: Debug {
    /// Reads all of it.
    ///
    /// # Errors
    ///
    /// It was taken away.
    ///
    /// # Panics
    ///
    /// The buffer has another length.
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError>;

    /// Writes all of it.
    ///
    /// # Errors
    ///
    /// It was taken away.
    ///
    /// # Panics
    ///
    /// The data has another length.
    fn write(&self, data: &[u8]) -> Result<(), DmaError>;

    /// Copies all of it to memory that is as long.
    ///
    /// # Errors
    ///
    /// One of them was taken away.
    ///
    /// # Panics
    ///
    /// The other one has another length.
    fn copy_to(&self, target: &Self) -> Result<(), CopyError>;
}

/// Memory can't be copied as it was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// That of the sender.
    Source(DmaError),
    /// That of the receiver.
    Target(DmaError),
}

/// Counts the copies that are under way from and to the memory of a guest.
#[derive(Debug, Default)]
pub struct Pins {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often somebody has waited for copies.
    generation: u64,
    pinned: usize,
}

/// Memory stays where it is while this is kept. Its owner may not wait for anything.
#[derive(Debug)]
pub(crate) struct Pinned(Arc<Pins>);

/// The right to pin memory later, for as long as nobody has waited for copies.
#[derive(Debug)]
pub(crate) struct Unpinned {
    pins: Arc<Pins>,
    generation: u64,
}

impl Pins {
    /// Waits until no copy is under way. The caller holds the lock of the endpoint, so that none begins.
    pub fn quiesce(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        self.idle.wait_while(&mut state, |state| state.pinned > 0);
    }

    /// Pins memory that was found under the same hold of the endpoint's lock, which is still held.
    pub(crate) fn pin(self: &Arc<Self>) -> Pinned {
        self.state.lock().pinned += 1;
        Pinned(Arc::clone(self))
    }

    /// Lets memory be pinned that was found under the same hold of the endpoint's lock.
    pub(crate) fn later(self: &Arc<Self>) -> Unpinned {
        Unpinned {
            generation: self.state.lock().generation,
            pins: Arc::clone(self),
        }
    }
}

impl Unpinned {
    /// Pins the memory, if it is sure that it still is what it was.
    pub(crate) fn pin(&self) -> Option<Pinned> {
        let mut state = self.pins.state.lock();
        if state.generation != self.generation {
            return None;
        }
        state.pinned += 1;
        Some(Pinned(Arc::clone(&self.pins)))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.pinned -= 1;
        if state.pinned == 0 {
            self.0.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use efa_testing::wait::wait_until;

    use super::*;

    #[test]
    fn who_takes_memory_away_waits_for_copies() {
        let pins = Arc::new(Pins::default());
        let later = pins.later();
        let copies = [pins.pin(), later.pin().unwrap()];
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let quiesced = scope.spawn(|| {
                pins.quiesce();
                assert!(done.load(Ordering::SeqCst));
            });
            wait_until("start of who waits", || pins.state.lock().generation != 0);
            assert!(later.pin().is_none());
            for copy in copies {
                done.store(pins.state.lock().pinned == 1, Ordering::SeqCst);
                drop(copy);
            }
            quiesced.join().unwrap();
        });
        assert!(later.pin().is_none());
        assert!(pins.later().pin().is_some());
    }
}
