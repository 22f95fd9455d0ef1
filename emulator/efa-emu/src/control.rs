// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control protocol: JSON lines that look at the devices and make them misbehave.
//!
//! ```text
//!  client, server, scenario     who sends requests, and over what; scope: what they may ask for
//!     |
//!     v
//!  perform                      what each request does
//!     |
//!     v
//!  protocol, emulator           requests with their replies; what they are about
//! ```
//!
//! A new kind of request is a struct and a line of `requests!` in `protocol.rs`, and an implementation of
//! [`Perform`](protocol::Perform), in `perform.rs` or wherever else it belongs. A line of the guide and of the tests says what it
//! is for.

mod client;
mod emulator;
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
