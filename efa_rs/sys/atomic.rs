// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbers that tasks share, which are read and written by instructions in place.
//!
//! To be replaced by [`kernel::sync::atomic`] once that is inlined. So far each access of it calls a C function,
//! which costs too much where work requests are posted. Only loads and stores are for here, and only of
//! what no C code accesses: these mean the same in the kernel's memory model and in the language's.

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

/// A value that tasks share by an agreement of their own. Its interface is that of loom's, which takes its place in tests.
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Makes a cell of a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `access` with a pointer to the value.
    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
