// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A provider in safe Rust that leaks what the types let it.

#![feature(arbitrary_self_types)]
#![allow(
    dead_code,
    clippy::needless_borrow,
    clippy::needless_update,
    reason = "the module is checked when it is built; types here are simpler"
)]

// Only the C ABI of it is used.
use helpers as _;

include!(concat!(env!("OUT_DIR"), "/module/root.rs"));
