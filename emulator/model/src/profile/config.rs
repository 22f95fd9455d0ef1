// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Configuration of a device.

use schemars::JsonSchema;
use serde::Serialize;

use super::attributes::Attributes;
use crate::{Overrides, Profile};

/// Configuration of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Config {
    /// Generation of the device.
    pub profile: Profile,
    /// Number of entries in the MSI-X table: one for the admin queue, the others for event queues.
    pub vectors: u16,
    /// Number of the device. Addresses and GUIDs of devices with different numbers differ.
    pub number: u32,
    /// Attributes that differ from the generation, for the lifetime of the device.
    pub overrides: Overrides,
}

impl Config {
    /// Creates the configuration of a device of a generation, with a number that distinguishes the device.
    pub fn new(profile: Profile, number: u32) -> Self {
        Self {
            profile,
            vectors: 33,
            number,
            overrides: Overrides::default(),
        }
    }

    /// Checks that attributes that depend on each other are set together.
    ///
    /// # Errors
    ///
    /// One sentence about the first contradiction.
    pub fn check(&self) -> Result<(), String> {
        let attributes = self.attributes();
        let (reads, writes) = (attributes.rdma_read, attributes.rdma_write);
        let limits = [
            ("max_rdma_size", u64::from(attributes.max_rdma_size)),
            ("max_wr_rdma_sges", attributes.max_wr_rdma_sges.into()),
        ];
        let counters = [
            ("max_event_counters", attributes.max_event_counters.into()),
            ("event_counter_max_val", attributes.event_counter_max_val),
            (
                "event_counter_events",
                attributes.event_counter_events.into(),
            ),
        ];
        let rdma =
            limits.map(|(name, limit)| ("rdma_read and rdma_write", reads || writes, name, limit));
        let counting = counters
            .map(|(name, limit)| ("event_counters", attributes.event_counters, name, limit));
        let unsolicited = attributes.unsolicited_write_recv;
        let unsolicited = (
            "unsolicited_write_recv",
            unsolicited,
            "rdma_write",
            writes.into(),
        );
        let mut all = rdma.into_iter().chain(counting).chain([unsolicited]);
        match all.find(|(_, is_set, _, needed)| *is_set && *needed == 0) {
            Some((name, _, needed, _)) => Err(format!(
                "{name} needs {needed}, which is 0 or false: set both"
            )),
            None => Ok(()),
        }
    }

    /// Speed of the link in Gbit/s.
    pub fn link_gbps(&self) -> u16 {
        self.attributes().link_gbps
    }

    pub(crate) fn attributes(&self) -> Attributes {
        let mut attributes = self.profile.attributes();
        attributes.guid = self.guid();
        attributes.address = self.address();
        self.overrides.apply(&mut attributes);
        attributes
    }

    /// A locally administered EUI-64 with the device's number.
    fn guid(&self) -> u64 {
        0x02ef_a0ff_fe00_0000 | u64::from(self.number)
    }

    /// A link-local address derived from the GUID.
    fn address(&self) -> [u8; 16] {
        let mut address = [0; 16];
        address[..2].copy_from_slice(&[0xfe, 0x80]);
        address[8..].copy_from_slice(&self.guid().to_be_bytes());
        address
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new(Profile::default(), 0)
    }
}
