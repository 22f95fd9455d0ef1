// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State of a device, as reported to its operator.

use std::collections::BTreeMap;

use efa_hw::host_info::HostInfo;
use schemars::JsonSchema;
use serde::Serialize;

use super::Device;
use crate::{
    admin::queue::AdminState, program_error::ProgramErrors, resources::ResourceCounts, statistics::QpCounters, view,
};

view! {
    /// The state of a device.
    State from device: &Device {
        /// Whether the device reports that it is ready.
        ready: bool = device.data.attributes.ready,
        /// The reasons of the last resets, oldest first.
        resets: Vec<String> = device.resets.reasons.iter().cloned().collect(),
        /// Total number of resets of the PCI function: function level resets, bus resets, and returns from D3hot.
        function_resets: u64 = device.resets.of_function,
        /// Whether the device has reported a fatal error since the last reset.
        fatal_error: bool = device.fatal_error,
        /// Whether the device is plugged into its slot.
        plugged: bool = device.plugged,
        /// Whether the device is [dead](crate::Death).
        dead: bool = device.dead.is_some(),
        /// Total number of writes to memory while the device was dead.
        stray_writes: u64 = device.stray_writes.done,
        /// Total number of such writes that failed. They are not counted above.
        stray_writes_refused: u64 = device.stray_writes.refused,
        /// Total number of successful stray writes after a reset that failed.
        dma_after_reset: u64 = device.stray_writes.after_reset,
        /// Number of answers that are withheld for the session after the next reset or until later in this one, and of delayed
        /// completions of work requests.
        late: usize = device.late.len() + device.data.late.late(),
        /// Number of held completions by name.
        held: BTreeMap<String, usize> = device.held().fold(BTreeMap::new(), |mut counts, (_, name)| {
            *counts.entry(name.to_owned()).or_default() += 1;
            counts
        }),
        /// Number of events of [storms](crate::Device::storm) that are still to be posted.
        storm: u64 = device.storms.left(),
        /// Numbers of allocated objects.
        resources: ResourceCounts = ResourceCounts::from(&device.data.resources),
        /// The admin queue.
        admin: AdminState = AdminState::from(&device.admin),
        /// Description of the host that the driver has written since the last reset.
        host_info: Option<HostInfoState> = device.features.host_info.as_ref().map(HostInfoState::from),
        /// Mask of the groups of asynchronous events that the driver has enabled.
        aenq_groups: u32 = device.features.aenq_groups,
        /// Number of asynchronous events posted since the last reset or configuration of their queue.
        events: u64 = device.aenq.posted(),
        /// Number of armed event queues.
        armed_eqs: usize = device.data.resources.eqs.iter().filter(|eq| eq.armed).count(),
        /// Total number of register reads.
        register_reads: u64 = device.register_reads,
        /// Number of writes to doorbells since the last reset.
        doorbells: u64 = device.doorbells,
        /// Total number of writes to doorbells of queues that a reset had destroyed, before the driver's first command after it.
        /// Programs that have not noticed the reset make them.
        stale_doorbells: u64 = device.stale_doorbells,
        /// Total number of admin doorbells while the device reported a fatal error.
        commands_when_fatal: u64 = device.commands_when_fatal,
        /// Total number of protocol errors of the driver.
        protocol_errors: u64 = device.data.errors.count,
        /// Numbers of program errors since the device was created.
        program_errors: ProgramErrors = device.data.errors.of_programs,
        /// Number of successful fast registrations since the device was created.
        fast_regs: u64 = device.data.statistics.registrations,
        /// Number of successful fast invalidations since the device was created.
        fast_invs: u64 = device.data.statistics.invalidations,
        /// Counters of the first queue pairs.
        queue_pairs: Vec<QpCounters> = device.data.resources.qps.table.first(|(qp, of)| QpCounters { qp, ..of.counted }),
        /// Number of fault rules, including exhausted ones.
        faults: usize = device.faults.len() + device.data.faults.len(),
        /// Total number of hits of fault rules.
        faults_hit: u64 = device.faults.hits() + device.data.faults.hits(),
    }
}

view! {
    /// Description of its host that a driver writes.
    HostInfoState from info: &HostInfo {
        /// Release of the operating system.
        os_dist: String = text(&info.os_dist),
        /// The operating system; 0 is Linux.
        os_type: u32 = info.os_type,
        /// Version of the kernel as text.
        kernel_version_text: String = text(&info.kernel_version_text),
        /// Version of the kernel as Linux encodes it.
        kernel_version: u32 = info.kernel_version,
        /// Version of the driver.
        driver_version: String = driver_version(info),
        /// PCI address of the device in the host: bus, device and function.
        bdf: String = format!("{:02x}:{:02x}.{}", info.bdf.bus, info.bdf.device, info.bdf.function),
        /// Version of the interface that the driver was written to.
        spec_version: String = format!("{}.{}", info.spec_version.major, info.spec_version.minor),
        /// Whether the driver comes with the kernel.
        intree: bool = info.flags.intree,
        /// Whether the driver supports GPUDirect RDMA.
        gdr: bool = info.flags.gdr,
    }
}

fn driver_version(info: &HostInfo) -> String {
    let driver = info.driver_version;
    let module_type = match driver.module_type {
        0 => String::new(),
        letter => char::from(letter).to_string(),
    };
    let (major, minor, sub_minor) = (driver.major, driver.minor, driver.sub_minor);
    format!("{major}.{minor}.{sub_minor}{module_type}")
}

/// The text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    let mut parts = bytes.split(|byte| *byte == 0);
    String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned()
}
