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
    AtomicU64,
    AtomicU8,
    AtomicUsize,
    Ordering::{
        Acquire,
        Relaxed,
        Release, //
    }, //
};
pub(crate) use kernel::sync::barrier::{
    smp_mb,
    Full, //
};

/// Returns words that all devices of the module share, 0 at first. In tests, each machine has its own.
pub(crate) fn shared_words() -> &'static [Atomic<u32>; 64] {
    static WORDS: [Atomic<u32>; 64] = [const { Atomic::new(0) }; 64];
    &WORDS
}

/// Loads a counter of type [`Atomic`], which has read-modify-write operations, without a C call.
#[inline]
pub(crate) fn read(value: &Atomic<u64>) -> u64 {
    // SAFETY: The pointer is valid. `atomic64_read` is such a load on the architectures that have
    // EFA.
    unsafe { value.as_ptr().read_volatile() }
}

/// Reads memory that a device may change at the same time.
///
/// # Safety
///
/// `place` must be valid for reads and aligned, and each value of its bytes be one of `T`.
#[inline(always)]
pub(crate) unsafe fn read_once<T: Copy>(place: *const T) -> T {
    // SAFETY: The caller guarantees it. A volatile read that races with the device is what the
    // kernel does for `READ_ONCE`.
    unsafe { place.read_volatile() }
}

/// Orders earlier reads of memory that a device writes before later ones.
#[inline(always)]
pub(crate) fn dma_rmb() {
    // This architecture reads in order, so that only the compiler must not reorder.
    #[cfg(CONFIG_X86_64)]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(not(CONFIG_X86_64))]
    kernel::sync::barrier::dma_mb(kernel::sync::barrier::Read);
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
