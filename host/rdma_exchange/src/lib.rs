// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The unchanged sample `rdma_exchange`, compiled as a user-space program.

#![feature(arbitrary_self_types)]
#![allow(
    dead_code,
    clippy::needless_borrow,
    clippy::needless_update,
    reason = "the module is checked when it is built; types here are simpler"
)]

// Linked for its C symbols only.
use helpers as _;

include!(concat!(env!("OUT_DIR"), "/module/root.rs"));
