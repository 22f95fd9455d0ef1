// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Access to registers and to memory that a device shares.

pub use crate::io_project;

/// Target of an access.
#[derive(Clone, Copy)]
pub enum Place {
    /// A BAR, and its length in bytes.
    Bar(u32, usize),
    /// Memory, and its length in bytes.
    Memory(*mut u8, usize),
}

/// Memory or registers that a device shares with the CPU.
pub trait Io {
    /// Returns the target of accesses. The kernel's trait has no such method.
    fn place(&self) -> Place;

    /// Returns the length in bytes.
    fn len(&self) -> usize {
        let (Place::Bar(_, length) | Place::Memory(_, length)) = self.place();
        length
    }

    /// Returns whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes 32 bits. Panics for an offset that is out of bounds or not aligned.
    fn write32(&self, value: u32, offset: usize) {
        let Place::Bar(bar, length) = self.place() else {
            panic!("memory has no registers");
        };
        assert!(offset % 4 == 0 && offset + 4 <= length);
        crate::bindings::write_bar(bar, offset as u64, value);
    }

    /// Copies all of the memory to a slice of its length.
    fn copy_to_slice(&self, bytes: &mut [u8]) {
        let memory = memory(self.place(), bytes.len());
        // SAFETY: The memory has this length, and the device accesses it by raw pointers only.
        unsafe { core::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies a slice of its length to all of the memory.
    fn copy_from_slice(&self, bytes: &[u8]) {
        let memory = memory(self.place(), bytes.len());
        // SAFETY: As above.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
    }
}

fn memory(place: Place, expected: usize) -> *mut u8 {
    match place {
        Place::Memory(memory, length) if length == expected => memory,
        _ => panic!("a copy of another length, or of registers"),
    }
}

/// A part of shared memory.
pub struct View(Place);

impl View {
    /// Returns a part of memory, if the range is within it.
    pub fn new(place: Place, range: core::ops::Range<usize>) -> Option<Self> {
        let Place::Memory(memory, length) = place else {
            return None;
        };
        let is_in = range.start <= range.end && range.end <= length;
        is_in.then(|| Self(Place::Memory(memory.wrapping_add(range.start), range.len())))
    }
}

impl Io for View {
    fn place(&self) -> Place {
        self.0
    }
}

/// Polling.
pub mod poll {
    use crate::{
        error::{code::ETIMEDOUT, Result},
        time::Delta,
    };

    /// Number of calls of `op` with the requested sleep.
    const PROMPT: u32 = 8;

    /// Limit on the calls after that.
    const MOST: u64 = 64;

    /// Calls `op` until `cond` holds for its result, with sleeps in between.
    ///
    /// As in the kernel, there is no call after the timeout. A sleep may be longer than requested. It is after a few calls, as
    /// many sleeps would dominate a test of a dead device.
    ///
    /// # Errors
    ///
    /// - [`ETIMEDOUT`] if the condition does not hold in time.
    /// - Errors of `op`.
    pub fn read_poll_timeout<T>(
        mut op: impl FnMut() -> Result<T>,
        mut cond: impl FnMut(&T) -> bool,
        sleep: Delta,
        timeout: Delta,
    ) -> Result<T> {
        let end = sim::now() + timeout.nanos();
        sim::might_sleep("polling");
        let mut calls = 0;
        loop {
            let value = op()?;
            if cond(&value) {
                return Ok(value);
            }
            if sim::now() > end {
                return Err(ETIMEDOUT);
            }
            calls += 1;
            let least = if calls > PROMPT {
                timeout.nanos() / MOST
            } else {
                0
            };
            sim::sleep(sleep.nanos().max(least));
        }
    }
}
