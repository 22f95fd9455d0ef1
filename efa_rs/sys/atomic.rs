// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Numbers that tasks share, which are read and written by instructions in place.
//!
//! To be replaced by [`kernel::sync::atomic`] once that is inlined: each access of it is a call of a C function
//! so far, which is too much where work requests are posted. Only loads and stores are for here, and only of
//! what no C code accesses: these mean the same in the kernel's memory model and in the language's.

#[allow(
    unused_imports,
    reason = "who has no data path needs none, see samples/"
)]
pub(crate) use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    AtomicU64,
    AtomicU8,
    Ordering::{
        Acquire,
        Relaxed,
        Release, //
    }, //
};
