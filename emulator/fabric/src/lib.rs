// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The network between EFA devices, and the reliable transport on top of it.
//!
//! A [`Fabric`] has endpoints and links. Each endpoint is a device with its guest's memory, under its own lock. Links lead to
//! other programs with devices on the same network. That network loses, delays and reorders packets. On top of it, the transport
//! executes the devices' work requests: unreliable datagrams, and scalable reliable datagrams (SRD). All state kept on behalf of
//! others is bounded: packets in flight and in queues, connections, and what is remembered of peers.
//!
//! Like the device model, this crate has no threads and no clock. The caller passes the time, so a test can run faster than any
//! real network.
//!
//! | file | contents |
//! |---|---|
//! | `fabric` | endpoints and links at the ports of a network, and the order of work on them |
//! | `links` | links to other programs |
//! | `delivery` | transfer of payload between endpoints |
//! | `endpoint` | a device and its half of the transport |
//! | `srd` | the transport without the device: connections, received packets, reads |
//! | `wire`, `inbox`, `schedule` | ports, their packet queues, and their turns |
//! | `network`, `settings` | paths, delays, losses |
//! | `capture` | packets as records of a capture |
//! | `memory`, `quota`, `packet` | types shared by the others |
//!
//! Each file uses those below it.

#![forbid(unsafe_code)]

mod capture;
mod delivery;
mod endpoint;
mod fabric;
mod inbox;
mod links;
mod memory;
mod network;
mod packet;
mod quota;
mod schedule;
mod settings;
mod srd;
mod wire;

pub use capture::{Record, RecordKind, Tap};
pub use fabric::{Fabric, Runs};
pub use links::{JoinError, Link, LinkId, Newcomer, Session};
pub use memory::{Access, CopyError, Guest, Memory, Pinned, Pins, Unpinned};
pub use network::PathCounters;
pub use packet::{Address, Frame, LINK_VERSION, PortId};
pub use quota::{Permit, Quota};
pub use settings::{Denied, PathSettings, Settings};
pub use srd::ConnectionState;
