// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which device to model.

use schemars::JsonSchema;
use serde::Serialize;

use super::attributes::Attributes;
use crate::{Overrides, Profile};

/// Which device to model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Config {
    /// The generation.
    pub profile: Profile,
    /// Number of entries in the MSI-X table: one for the admin queue, the others for event queues.
    pub vectors: u16,
    /// Which of the devices it is. Addresses and GUIDs of devices with different numbers differ.
    pub number: u32,
    /// What is different from the generation, for as long as the device exists.
    pub overrides: Overrides,
}

impl Config {
    /// A device of a generation, with a number that distinguishes it.
    pub fn new(profile: Profile, number: u32) -> Self {
        Self {
            profile,
            vectors: 33,
            number,
            overrides: Overrides::default(),
        }
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

    /// A link-local address made of the GUID.
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
