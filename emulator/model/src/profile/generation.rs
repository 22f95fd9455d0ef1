// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Generations of devices.

use efa_hw::pci;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A generation of devices: a PCI device id and what such a device can do.
///
/// The capabilities of the real generations are not documented. The profiles are chosen such that each capability is present in
/// some and absent in others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Messages only: neither RDMA nor event queues, statistics of the network, or checksums.
    Efa0,
    /// RDMA read and event queues.
    Efa1,
    /// RDMA write, network statistics, checksums on completions, and features that only kernel verbs use: fast registration and
    /// regions of bus addresses.
    #[default]
    Efa2,
    /// Send work requests of 128 bytes, polling in units of 128 bytes, and a faster link.
    Efa3,
    /// Entries of 128 bytes in the admin queue, with checksums on commands; event counters; request ids of 64 bits; no second
    /// address handle for a peer; and a faster link.
    Efa4,
}

impl Profile {
    /// PCI device id.
    pub const fn pci_device(self) -> u16 {
        pci::DEVICES[self as usize]
    }
}
