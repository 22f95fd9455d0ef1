// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What is between EFA devices: a network, and the transport that makes something reliable of it.
//!
//! A [`Fabric`] has endpoints, each a device with its guest's memory under a lock of its own, and links to other programs with
//! devices of the same network. Between them, a network loses, delays and reorders packets. On top of it the work requests
//! of devices are carried out: unreliable datagrams as they are, and SRD as scalable reliable datagrams. Nothing is unbounded on
//! behalf of somebody else: packets in flight, packets that wait at a port, connections, and what is remembered of peers.
//!
//! As the model of the device, this has no threads and no clock. Time is what the caller says, so a test can run it
//! faster than any network.
//!
//! | file | what is there |
//! |---|---|
//! | `fabric` | endpoints and links at the ports of a network, and who works on them |
//! | `links` | other programs |
//! | `delivery` | payload on its way from one endpoint to another |
//! | `endpoint` | a device and its half of the transport |
//! | `srd` | the transport without the device: connections, what has arrived, reads |
//! | `wire`, `inbox`, `schedule` | ports, packets that wait there, and whose turn it is |
//! | `network`, `settings` | paths, delays, losses |
//! | `capture` | packets as records of a capture |
//! | `memory`, `quota`, `packet` | what the others share |
//!
//! Each uses those below it.

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
pub use fabric::Fabric;
pub use links::{JoinError, Link, LinkId};
pub use memory::{Access, CopyError, Guest, Memory, Pins};
pub use network::{Load, Network, NoPath, PathCounters, Sent};
pub use packet::{Address, Frame, PortId};
pub use quota::{Permit, Quota};
pub use settings::{Denied, PathSettings, Settings};
