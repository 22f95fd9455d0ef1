// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Replaces `sys/atomic.rs`: each access is a preemption point.

use kernel::{sim, sync::atomic::Atomic};

pub(crate) use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[allow(unused_imports, reason = "not all modules have barriers")]
pub(crate) use kernel::sync::barrier::{smp_mb, Full};

macro_rules! atomics {
    ($($name:ident $(<$parameter:ident>)?, $value:ty;)*) => {$(
        #[allow(dead_code, reason = "not all modules have each type")]
        pub(crate) struct $name $(<$parameter>)? (core::sync::atomic::$name $(<$parameter>)?);

        #[allow(dead_code, reason = "not all modules access each type in each way")]
        impl $(<$parameter>)? $name $(<$parameter>)? {
            pub(crate) const fn new(value: $value) -> Self {
                Self(core::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: core::sync::atomic::Ordering) -> $value {
                sim::point();
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: core::sync::atomic::Ordering) {
                sim::point();
                self.0.store(value, order);
            }
        }
    )*};
}

atomics! {
    AtomicBool, bool;
    AtomicI64, i64;
    AtomicPtr<T>, *mut T;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicU8, u8;
    AtomicUsize, usize;
}

std::thread_local! {
    static WORDS: &'static [Atomic<u32>; 64] = Box::leak(Box::new([const { Atomic::new(0) }; 64]));
}

/// As the module's function. A machine has a thread.
#[allow(dead_code, reason = "not all modules have several devices")]
pub(crate) fn shared_words() -> &'static [Atomic<u32>; 64] {
    WORDS.with(|words| *words)
}

/// As the module's function.
#[allow(dead_code, reason = "not all modules have counters")]
pub(crate) fn read(value: &Atomic<u64>) -> u64 {
    value.load(kernel::sync::atomic::Relaxed)
}

/// As the module's function.
#[allow(dead_code, reason = "not all modules have a device")]
pub(crate) fn dma_rmb() {
    kernel::sync::barrier::dma_mb(kernel::sync::barrier::Read);
}

/// As the module's function, with its contract.
#[allow(dead_code, reason = "not all modules have a device")]
pub(crate) unsafe fn read_once<T: Copy>(place: *const T) -> T {
    // SAFETY: The contract is the same.
    unsafe { sim::memory::read_once(place.cast_mut()) }
}

/// As the module's type.
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
