// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device tells about itself to whoever operates it.

use std::collections::BTreeMap;

use efa_hw::host_info::HostInfo;
use schemars::JsonSchema;
use serde::Serialize;

use crate::program_error::ProgramErrors;

/// The state of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct State {
    /// Whether the device says that it is ready.
    pub ready: bool,
    /// The reasons of the last resets, oldest first.
    pub resets: Vec<String>,
    /// Resets of the PCI function, ever: function level resets, those of the bus, and returns from D3hot.
    pub function_resets: u64,
    /// Whether it has reported a fatal error since the last reset.
    pub fatal_error: bool,
    /// Whether it is in its slot.
    pub plugged: bool,
    /// Whether it is [dead](crate::Death).
    pub dead: bool,
    /// What dead devices wrote to memory, ever.
    pub stray_writes: u64,
    /// How many of these writes were not possible, ever.
    pub stray_writes_refused: u64,
    /// How many of these writes came after a reset that failed, ever.
    pub dma_after_reset: u64,
    /// Answers that come in the session after the next reset, or later in this one, and completions of work requests that come
    /// later.
    pub late: usize,
    /// How many completions are held, by the names under which they are.
    pub held: BTreeMap<String, usize>,
    /// Events that are still to come of [storms](crate::Device::storm).
    pub storm: u64,
    /// What is allocated.
    pub resources: ResourceCounts,
    /// The admin queue.
    pub admin: AdminState,
    /// What the driver told of the host since the last reset.
    pub host_info: Option<HostInfoState>,
    /// The groups of asynchronous events that the driver wants, each its own bit.
    pub aenq_groups: u32,
    /// Asynchronous events that were posted since the last reset.
    pub events: u64,
    /// Event queues that are armed.
    pub armed_eqs: usize,
    /// Reads of registers, ever.
    pub register_reads: u64,
    /// Writes to doorbells since the last reset.
    pub doorbells: u64,
    /// Writes to doorbells of queues that a reset had ended, before the driver's first command after it: programs that do not
    /// know yet what has happened, ever.
    pub stale_doorbells: u64,
    /// How often the driver had commands for a device that had told it of a fatal error, ever.
    pub commands_when_fatal: u64,
    /// How often the driver did what a correct driver never does.
    pub protocol_errors: u64,
    /// What programs did wrong, ever.
    pub program_errors: ProgramErrors,
    /// Fast registrations that were done, since power on.
    pub fast_regs: u64,
    /// Fast invalidations that were done, since power on.
    pub fast_invs: u64,
    /// Rules that there are.
    pub faults: usize,
    /// How often a rule hit.
    pub faults_hit: u64,
}

/// How many there are of each kind of object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResourceCounts {
    /// Protection domains.
    pub pd: usize,
    /// Those of them that are privileged.
    pub privileged_pd: usize,
    /// User access regions.
    pub uar: usize,
    /// Event queues.
    pub eq: usize,
    /// Address handles.
    pub ah: usize,
    /// Memory regions.
    pub mr: usize,
    /// Those of them that get their pages by work requests.
    pub fast_mr: usize,
    /// Those of the latter that have pages.
    pub registered_fast_mr: usize,
    /// Memory regions that are bus addresses.
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

/// The admin queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AdminState {
    /// Commands that the driver submitted, ever.
    pub submitted: u64,
    /// Commands that were completed, ever.
    pub completed: u64,
    /// How often a command was submitted while no other was being executed, ever: how often the
    /// driver waited, however many commands it waited for.
    pub round_trips: u64,
    /// Commands that are being executed.
    pub in_flight: usize,
    /// Most commands that ever were executed at the same time.
    pub max_in_flight: usize,
}

/// What a driver tells of its host.
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
    /// Where the device is on the PCI bus.
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
