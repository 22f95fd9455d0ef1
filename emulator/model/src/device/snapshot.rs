// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Snapshots of a device for debugging.

use std::{ops::Range, time::Duration};

use efa_hw::regs::Register;

use super::Device;
use crate::Snapshot;

impl Device {
    /// Returns whether the device may access memory in this range of bus addresses on its own: rings, pages of regions and of
    /// counters, lists of pages, and what registers name.
    pub fn knows(&self, range: &Range<u64>) -> bool {
        let registers = &self.registers;
        let bases = [
            registers.aq_base,
            registers.acq_base,
            registers.aenq_base,
            registers.mmio_resp,
        ];
        let objects = self.data.resources.places();
        bases.iter().any(|base| range.contains(&base.get()))
            || objects
                .chain(self.admin.page_lists())
                .any(|place| place.overlaps(range))
    }

    /// Current state of the device, without the contents of guest memory.
    pub fn snapshot(&self, now: Duration) -> Snapshot {
        let values = [
            ("VERSION", Register::Version),
            ("CONTROLLER_VERSION", Register::ControllerVersion),
            ("CAPS", Register::Caps),
            ("DEV_STS", Register::DevSts),
        ];
        let values =
            values.map(|(name, register)| (name, self.register_value(now, register).into()));
        let addresses = [
            ("AQ_BASE", self.registers.aq_base.get()),
            ("ACQ_BASE", self.registers.acq_base.get()),
            ("AENQ_BASE", self.registers.aenq_base.get()),
            ("MMIO_RESP", self.registers.mmio_resp.get()),
        ];
        let resources = &self.data.resources;
        Snapshot {
            config: self.config.clone(),
            overrides: self.overrides.clone(),
            attributes: self.data.attributes.clone(),
            registers: values.into_iter().chain(addresses).collect(),
            queue_pairs: resources.qps.snapshot(),
            completion_queues: resources.cqs.snapshot(),
            event_queues: resources.eqs.snapshot(),
            memory_regions: resources.mrs.snapshot(),
        }
    }
}
