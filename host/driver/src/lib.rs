// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The unchanged EFA driver, compiled as a user-space program, and the framework of its tests.
//!
//! A [`rig`] connects the device model of the emulator, [`hardware`]. A [`program`] uses the device
//! like rdma-core's EFA provider, and a [`client`] like an in-kernel client.

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

pub mod choices;
pub mod client;
pub mod fault;
pub mod hardware;
pub mod inputs;
pub mod life;
pub mod operator;
pub mod program;
pub mod rig;
pub mod rings;
pub mod sequence;
mod transport;
pub mod user;
