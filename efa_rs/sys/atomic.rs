// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Atomic values whose accesses are inlined.
//!
//! To be replaced by [`kernel::sync::atomic`] once that is inlined. Until then each access calls a
//! C function, which is too slow for the data path. Only loads and stores are allowed, of values
//! that no C code accesses: the memory models of the kernel and of Rust agree on them.

use kernel::sync::atomic::Atomic;

pub(crate) use core::sync::atomic::{
    AtomicBool,
    AtomicPtr,
    AtomicU32,
    AtomicU8,
    Ordering::{
        Acquire,
        Relaxed,
        Release, //
    }, //
};

/// Returns words that all devices of the module share, 0 at first. In tests, each machine has its own.
pub(crate) fn shared_words() -> &'static [Atomic<u32>; 64] {
    static WORDS: [Atomic<u32>; 64] = [const { Atomic::new(0) }; 64];
    &WORDS
}

/// A value whose users synchronize accesses. In tests, loom's type of this interface replaces it.
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Creates a cell with a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `access` with a pointer to the value.
    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
