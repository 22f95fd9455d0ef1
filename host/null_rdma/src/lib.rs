// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sample `null_rdma`, unchanged, as a program.

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
