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
        Self { profile, vectors: 33, number, overrides: Overrides::default() }
    }

    /// Checks that attributes that depend on each other are set together.
    ///
    /// # Errors
    ///
    /// One sentence about the first contradiction.
    pub fn check(&self) -> Result<(), String> {
        let attributes = self.attributes();
        let writes = attributes.rdma_write;
        let rdma = needs("rdma_read and rdma_write", attributes.rdma_read || writes);
        rdma("max_rdma_size", attributes.max_rdma_size.into())?;
        rdma("max_wr_rdma_sges", attributes.max_wr_rdma_sges.into())?;
        let counters = needs("event_counters", attributes.event_counters);
        counters("max_event_counters", attributes.max_event_counters.into())?;
        counters("event_counter_max_val", attributes.event_counter_max_val)?;
        counters("event_counter_events", attributes.event_counter_events.into())?;
        let unsolicited = attributes.unsolicited_write_recv;
        needs("unsolicited_write_recv", unsolicited)("rdma_write", writes.into())
    }

    /// Speed of the link in Gbit/s.
    pub fn link_gbps(&self) -> u16 {
        self.attributes().link_gbps
    }

    /// Returns all attributes of the device.
    pub fn all(&self) -> Overrides {
        self.attributes().into()
    }

    pub(crate) fn attributes(&self) -> Attributes {
        let mut attributes = Attributes::of(self.profile);
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

/// Returns a check that another attribute is not zero if this one is set.
fn needs(name: &str, is_set: bool) -> impl Fn(&str, u64) -> Result<(), String> {
    move |needed, value| match is_set && value == 0 {
        true => Err(format!("{name} needs {needed}, which is 0 or false: set both")),
        false => Ok(()),
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new(Profile::default(), 0)
    }
}
