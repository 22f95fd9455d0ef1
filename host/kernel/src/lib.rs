// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The `kernel` crate on a simulated machine, for drivers written for the kernel's crate.
//!
//! Types and functions have the names, signatures and contracts of the kernel's. Each does what the
//! kernel guarantees, on the machine of [`sim`]; its documentation states what it lacks. Everything
//! is in one OS thread, so that `Send` and `Sync` hold trivially.

#![feature(arbitrary_self_types, coerce_unsized, unsize)]

#[allow(unused_extern_crates, reason = "macros name this crate by its name")]
extern crate self as kernel;

#[macro_use]
mod macros;

pub mod alloc;
pub mod bindings;
pub mod bitmap;
pub mod debugfs;
pub mod device;
pub mod devlink;
pub mod dma;
pub mod driver;
pub mod error;
pub mod faux;
pub mod fmt;
pub mod init;
pub mod io;
pub mod irq;
pub mod module;
pub mod pci;
pub mod rbtree;
pub mod str;
pub mod sync;
pub mod time;
pub mod transmute;
pub mod types;
pub mod uaccess;
mod warning;

pub use kernel_macros::fmt;
pub use sim;

pub use self::{
    module::{InPlaceModule, Module, ModuleMetadata, ThisModule, THIS_MODULE},
    warning::{take_warnings, warn},
};

/// C types as in the kernel: `char` is unsigned, and `long` has the size of a pointer.
#[allow(non_camel_case_types, missing_docs, reason = "names of C")]
pub mod ffi {
    pub use core::ffi::c_void;

    pub type c_char = u8;
    pub type c_int = i32;
    pub type c_uint = u32;
    pub type c_long = isize;
    pub type c_ulong = usize;
    pub type c_ushort = u16;
    pub type c_uchar = u8;
}

/// Pages.
pub mod page {
    /// The size of a page as a power of two.
    pub const PAGE_SHIFT: usize = 12;
    /// Size of a page in bytes.
    pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
}

/// Items that nearly every file of a driver uses.
pub mod prelude {
    pub use core::{
        mem::{align_of, size_of},
        pin::Pin,
    };

    pub use kernel_macros::{module, vtable};
    pub use pin_init::{pin_data, pin_init, pinned_drop, try_pin_init, PinInit, PinnedDrop};

    pub use crate::{
        alloc::{flags::*, KBox, KVVec, KVec},
        dev_err, dev_info, dev_warn,
        error::{code::*, Error, Result},
        fmt,
        init::InPlaceInit,
        pr_err,
        str::{CStr, CStrExt},
        ThisModule,
    };
}
