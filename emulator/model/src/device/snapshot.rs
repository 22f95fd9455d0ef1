// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Snapshots of a device for debugging: settings, registers and queues, but no contents of guest memory.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use efa_hw::regs::Register;
use schemars::JsonSchema;
use serde::Serialize;

use super::Device;
use crate::{
    Config,
    profile::attributes::{Attributes, Overrides},
    resources::{cq::CompletionQueue, eq::EventQueue, mr::MemoryRegion, qp::QueuePair},
};

/// State of a device at one time.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Configuration with which the device was created.
    pub config: Config,
    /// Attributes that were overridden since.
    pub overrides: Overrides,
    /// Current attributes of the device.
    pub(crate) attributes: Attributes,
    /// Values of its registers, and addresses that the driver wrote to them.
    pub registers: BTreeMap<&'static str, u64>,
    /// The first of its queue pairs. Its state has the number of objects of each kind.
    pub queue_pairs: Vec<QueuePair>,
    /// The first of its completion queues.
    pub completion_queues: Vec<CompletionQueue>,
    /// The first of its event queues.
    pub event_queues: Vec<EventQueue>,
    /// The first of its memory regions.
    pub memory_regions: Vec<MemoryRegion>,
}

impl Device {
    /// Returns whether the device may access memory in this range of bus addresses on its own: rings, pages of regions and of
    /// counters, lists of pages, and what registers name.
    pub fn knows(&self, range: &Range<u64>) -> bool {
        let objects = self.data.resources.places();
        self.bases().iter().any(|base| range.contains(&base.1))
            || objects.chain(self.admin.page_lists()).any(|place| place.overlaps(range))
    }

    /// Addresses that the driver has written to registers.
    fn bases(&self) -> [(&'static str, u64); 4] {
        let registers = &self.registers;
        [
            ("AQ_BASE", registers.aq_base),
            ("ACQ_BASE", registers.acq_base),
            ("AENQ_BASE", registers.aenq_base),
            ("MMIO_RESP", registers.mmio_resp),
        ]
    }

    /// Current state of the device, without the contents of guest memory.
    pub fn snapshot(&self, now: Duration) -> Snapshot {
        let values = [
            ("VERSION", Register::Version),
            ("CONTROLLER_VERSION", Register::ControllerVersion),
            ("CAPS", Register::Caps),
            ("DEV_STS", Register::DevSts),
        ];
        let values = values.map(|(name, register)| (name, self.register_value(now, register).into()));
        let resources = &self.data.resources;
        Snapshot {
            config: self.config.clone(),
            overrides: self.overrides.clone(),
            attributes: self.data.attributes.clone(),
            registers: values.into_iter().chain(self.bases()).collect(),
            queue_pairs: resources.qps.table.first(From::from),
            completion_queues: resources.cqs.first(From::from),
            event_queues: resources.eqs.first(From::from),
            memory_regions: resources.mrs.table.first(From::from),
        }
    }
}
