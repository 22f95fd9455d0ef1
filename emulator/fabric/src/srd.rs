// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Scalable reliable datagrams: the transport's state of one device, without the device.
//!
//! A message is cut into packets that are sprayed over all paths. Each is acknowledged individually, and retransmitted on another
//! path after a timeout. Payload is placed as soon as it arrives, in any order. No packet is delivered twice.

mod connection;
mod connections;
mod in_flight;
mod message;
mod parked;
mod paths;
mod reads;
mod receiver;
mod receivers;
mod window;

pub use connection::ConnectionState;
pub(crate) use connections::{Connections, Ended, Limits};
pub(crate) use message::Content;
pub(crate) use reads::{Reads, reader};
pub(crate) use receiver::PsnClass;
pub(crate) use receivers::{REMEMBERED, Receivers};

/// Exclusive limit on the distance between packet numbers in flight on a connection.
pub(crate) const PSN_RANGE: u64 = 4096;
