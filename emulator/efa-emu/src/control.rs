// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control protocol: JSON lines that inspect the devices and inject faults.
//!
//! ```text
//!  client, server, scenario     sources of requests; scope: limits on the requests of a socket
//!     |
//!     v
//!  perform                      execution of each request
//!     |
//!     v
//!  protocol, emulator           requests with their replies; devices and network
//! ```
//!
//! A new command needs a variant of `Command`, a line of `COMMANDS`, an arm in `perform.rs`, and an example in the guide and in
//! the tests.

mod client;
mod emulator;
mod perform;
pub(crate) mod protocol;
mod scenario;
mod scope;
mod server;

pub(crate) use client::send;
pub(crate) use emulator::Device;
pub use emulator::Emulator;
pub(crate) use perform::changed;
pub(crate) use scenario::play;
pub(crate) use scope::Scope;
pub(crate) use server::{MAX_CONNECTIONS, serve};
