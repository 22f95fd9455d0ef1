// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What is between EFA devices: a network, and the transport that makes something reliable of it.
//!
//! [`Network`] loses, delays and reorders packets. On top of it [`Cluster`] carries the work requests of devices: unreliable
//! datagrams as they are, and SRD as scalable reliable datagrams: a message is cut into packets that are sprayed over all
//! paths, each is acknowledged on its own and sent again on another path if it is not, and it is placed where it belongs as
//! soon as it arrives, in whatever order. Nothing is delivered twice.
//!
//! As the model of the device, this has no threads and no clock. Time is what the caller says, so a test can run it
//! faster than any network.

#![forbid(unsafe_code)]

mod cluster;
mod network;
mod packet;
mod receiver;
mod sender;
mod settings;
mod window;

pub use cluster::{Cluster, CopyError, Guest, LinkId, PortId};
pub use network::{Load, Network, NoPath, PathCounters};
pub use packet::Frame;
pub use settings::{PathSettings, Settings};
