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
//! A new kind of request needs a struct and a line of `requests!` in `protocol.rs`. It also needs an
//! implementation of [`Perform`](protocol::Perform), in `perform.rs` or another module that fits, and an
//! example in the guide and in the tests.

mod client;
mod emulator;
mod event_group;
mod perform;
pub(crate) mod protocol;
mod scenario;
mod scope;
mod server;

pub(crate) use client::send;
pub use emulator::Emulator;
pub(crate) use scenario::play;
pub(crate) use scope::Scope;
pub(crate) use server::{MAX_CONNECTIONS, serve};
