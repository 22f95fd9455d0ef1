// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of guests, and copies in progress from and to it.
//!
//! Copies run without any lock, but their memory is pinned. It is pinned under the lock of its endpoint, or later if nothing has
//! waited for copies since. Code that revokes memory holds this lock and waits until nothing is pinned. It waits only for the
//! memory of its own guest, as no other guest's is accessed meanwhile, but for long packets on an ideal network.

use std::{fmt::Debug, sync::Arc};

use efa_model::{DmaError, Host, Segment};
use parking_lot::{Condvar, Mutex};

/// Maximum bytes of payload that are copied by way of this program, so that no guest waits for the memory of another one that is
/// pinned. Only an ideal network has longer packets.
pub(crate) const BOUNCED: u32 = 8928;

/// Kind of access by a device to memory of its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads the memory.
    Read,
    /// The device writes the memory.
    Write,
}

/// Host of a device, with memory for payload.
pub trait Guest: Host {
    /// Reference to some of its memory.
    type Memory: Memory;

    /// Looks up memory that the device may access. While the memory is pinned, it can be used without the device's lock.
    ///
    /// # Errors
    ///
    /// Some of it is not mapped for the device.
    fn memory(&self, segments: &[Segment], access: Access) -> Result<Self::Memory, DmaError>;

    /// Returns the counter of copies in progress. [`Host::quiesce`] waits for them, as all code that revokes memory must.
    fn pins(&self) -> &Arc<Pins>;
}

/// Reference to some of a guest's memory. The guest may change or revoke this memory at any time.
pub trait Memory: Debug {
    /// Reads all of it.
    ///
    /// # Errors
    ///
    /// The memory was revoked.
    ///
    /// # Panics
    ///
    /// The buffer has another length.
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError>;

    /// Writes all of it.
    ///
    /// # Errors
    ///
    /// The memory was revoked.
    ///
    /// # Panics
    ///
    /// The data has another length.
    fn write(&self, data: &[u8]) -> Result<(), DmaError>;

    /// Copies all of it to memory of the same length.
    ///
    /// # Errors
    ///
    /// The source or the target was revoked.
    ///
    /// # Panics
    ///
    /// The target has another length.
    fn copy_to(&self, target: &Self) -> Result<(), CopyError>;
}

/// Failure of a copy because memory was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The sender's memory was revoked.
    Source(DmaError),
    /// The receiver's memory was revoked.
    Target(DmaError),
}

/// Counter of the copies in progress from and to the memory of a guest.
#[derive(Debug, Default)]
pub struct Pins {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of times that [`Pins::quiesce`] was called.
    generation: u64,
    pinned: usize,
}

/// Pin that keeps memory in place. Its holder must not block, except in accesses to this memory.
#[derive(Debug)]
pub struct Pinned(Arc<Pins>);

/// Right to pin memory later, which ends with the next [`Pins::quiesce`].
#[derive(Debug)]
pub struct Unpinned {
    pins: Arc<Pins>,
    generation: u64,
}

impl Pins {
    /// Waits until no copy is in progress. The caller holds the endpoint's lock, so that no copy begins.
    pub fn quiesce(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        self.idle.wait_while(&mut state, |state| state.pinned > 0);
    }

    /// Pins memory. The caller must have held the endpoint's lock since it looked up the memory.
    pub(crate) fn pin(self: &Arc<Self>) -> Pinned {
        self.state.lock().pinned += 1;
        Pinned(Arc::clone(self))
    }

    /// Returns the right to pin memory later. The caller must have held the endpoint's lock since it looked up the memory.
    pub fn later(self: &Arc<Self>) -> Unpinned {
        Unpinned { generation: self.state.lock().generation, pins: Arc::clone(self) }
    }
}

impl Unpinned {
    /// Pins the memory, unless it may have been revoked.
    pub fn pin(&self) -> Option<Pinned> {
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
    fn quiesce_waits_for_copies() {
        let pins = Arc::new(Pins::default());
        let later = pins.later();
        let copies = [pins.pin(), later.pin().unwrap()];
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let quiesced = scope.spawn(|| {
                pins.quiesce();
                assert!(done.load(Ordering::SeqCst));
            });
            wait_until("start of the waiting thread", || pins.state.lock().generation != 0);
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
