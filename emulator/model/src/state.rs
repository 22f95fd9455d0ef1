// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State of a device, as reported to its operator.

use std::collections::BTreeMap;

use efa_hw::host_info::HostInfo;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{program_error::ProgramErrors, statistics::QpCounters};

/// The state of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct State {
    /// Whether the device reports that it is ready.
    pub ready: bool,
    /// The reasons of the last resets, oldest first.
    pub resets: Vec<String>,
    /// Total number of resets of the PCI function: function level resets, bus resets, and returns from D3hot.
    pub function_resets: u64,
    /// Whether the device has reported a fatal error since the last reset.
    pub fatal_error: bool,
    /// Whether the device is plugged into its slot.
    pub plugged: bool,
    /// Whether the device is [dead](crate::Death).
    pub dead: bool,
    /// Total number of writes to memory while the device was dead.
    pub stray_writes: u64,
    /// Total number of such writes that failed. They are not counted above.
    pub stray_writes_refused: u64,
    /// Total number of successful stray writes after a reset that failed.
    pub dma_after_reset: u64,
    /// Number of answers that are withheld for the session after the next reset or until later in this one, and of delayed
    /// completions of work requests.
    pub late: usize,
    /// Number of held completions by name.
    pub held: BTreeMap<String, usize>,
    /// Number of events of [storms](crate::Device::storm) that are still to be posted.
    pub storm: u64,
    /// Numbers of allocated objects.
    pub resources: ResourceCounts,
    /// The admin queue.
    pub admin: AdminState,
    /// Description of the host that the driver has written since the last reset.
    pub host_info: Option<HostInfoState>,
    /// Mask of the groups of asynchronous events that the driver has enabled.
    pub aenq_groups: u32,
    /// Number of asynchronous events posted since the last reset or configuration of their queue.
    pub events: u64,
    /// Number of armed event queues.
    pub armed_eqs: usize,
    /// Total number of register reads.
    pub register_reads: u64,
    /// Number of writes to doorbells since the last reset.
    pub doorbells: u64,
    /// Total number of writes to doorbells of queues that a reset had destroyed, before the driver's first command after it.
    /// Programs that have not noticed the reset make them.
    pub stale_doorbells: u64,
    /// Total number of admin doorbells while the device reported a fatal error.
    pub commands_when_fatal: u64,
    /// Total number of protocol errors of the driver.
    pub protocol_errors: u64,
    /// Numbers of program errors since the device was created.
    pub program_errors: ProgramErrors,
    /// Number of successful fast registrations since the device was created.
    pub fast_regs: u64,
    /// Number of successful fast invalidations since the device was created.
    pub fast_invs: u64,
    /// Counters of the first queue pairs.
    pub queue_pairs: Vec<QpCounters>,
    /// Number of fault rules, including exhausted ones.
    pub faults: usize,
    /// Total number of hits of fault rules.
    pub faults_hit: u64,
}

/// Numbers of objects of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResourceCounts {
    /// Protection domains.
    pub pd: usize,
    /// Privileged protection domains.
    pub privileged_pd: usize,
    /// User access regions.
    pub uar: usize,
    /// Event queues.
    pub eq: usize,
    /// Address handles.
    pub ah: usize,
    /// Memory regions.
    pub mr: usize,
    /// Memory regions that get their pages by work requests.
    pub fast_mr: usize,
    /// Memory regions that have got pages by work requests.
    pub registered_fast_mr: usize,
    /// Memory regions that consist of bus addresses.
    pub physical_mr: usize,
    /// Pages of memory regions.
    pub mr_pages: usize,
    /// Completion queues.
    pub cq: usize,
    /// Queue pairs.
    pub qp: usize,
    /// Event counters.
    pub event_counter: usize,
}

/// State of the admin queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AdminState {
    /// Total number of submitted commands, counted when they are executed.
    pub submitted: u64,
    /// Total number of completed commands.
    pub completed: u64,
    /// Total number of submissions while no command was in flight. This is how often the driver waited, regardless of the
    /// number of commands that it waited for.
    pub round_trips: u64,
    /// Number of commands that are submitted and not completed.
    pub in_flight: usize,
    /// Largest number of commands that were in flight at the same time.
    pub max_in_flight: usize,
}

/// Description of its host that a driver writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HostInfoState {
    /// Release of the operating system.
    pub os_dist: String,
    /// The operating system; 0 is Linux.
    pub os_type: u32,
    /// Version of the kernel as text.
    pub kernel_version_text: String,
    /// Version of the kernel as Linux encodes it.
    pub kernel_version: u32,
    /// Version of the driver.
    pub driver_version: String,
    /// PCI address of the device in the host: bus, device and function.
    pub bdf: String,
    /// Version of the interface that the driver was written to.
    pub spec_version: String,
    /// Whether the driver comes with the kernel.
    pub intree: bool,
    /// Whether the driver supports GPUDirect RDMA.
    pub gdr: bool,
}

impl From<&HostInfo> for HostInfoState {
    fn from(info: &HostInfo) -> Self {
        let driver = info.driver_version;
        let module_type = match driver.module_type {
            0 => String::new(),
            letter => char::from(letter).to_string(),
        };
        Self {
            os_dist: text(&info.os_dist),
            os_type: info.os_type,
            kernel_version_text: text(&info.kernel_version_text),
            kernel_version: info.kernel_version,
            driver_version: format!(
                "{}.{}.{}{module_type}",
                driver.major, driver.minor, driver.sub_minor
            ),
            bdf: format!(
                "{:02x}:{:02x}.{}",
                info.bdf.bus, info.bdf.device, info.bdf.function
            ),
            spec_version: format!("{}.{}", info.spec_version.major, info.spec_version.minor),
            intree: info.flags.intree,
            gdr: info.flags.gdr,
        }
    }
}

/// The text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
