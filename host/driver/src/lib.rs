// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The EFA driver, unchanged, as a program, and what its tests do with it.
//!
//! [`hardware`] is the emulator's device model in a [`rig`]; a [`program`] uses the device as rdma-core's
//! library does, and a [`client`] as one in the kernel does.

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

pub mod choices;
pub mod client;
pub mod fault;
pub mod hardware;
pub mod known;
pub mod life;
pub mod program;
pub mod rig;
pub mod rings;
pub mod sequence;
mod transport;
pub mod user;
