// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Snapshots of a device for debugging.

use std::time::Duration;

use efa_hw::regs::Register;

use super::Device;
use crate::Snapshot;

impl Device {
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
            state: self.state(),
            counters: self.counters(),
            queue_pairs: resources.qps.snapshot(),
            completion_queues: resources.cqs.snapshot(),
            event_queues: resources.eqs.snapshot(),
            memory_regions: resources.mrs.snapshot(),
        }
    }
}
