// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Generations of devices.

use efa_hw::{
    admin::event_counter::QpEvents,
    features::FeatureId,
    pci,
    regs::{ControllerVersion, Version},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attributes::{ALL_AENQ_GROUPS, Attributes};

/// Number of event counters of a device that has them.
const EVENT_COUNTERS: u32 = 512;

/// Largest value of an event counter.
const EVENT_COUNTER_MAX: u64 = (1 << 48) - 1;

/// A generation of devices: a PCI device id and what such a device can do.
///
/// The capabilities of the real generations are not documented. The profiles are chosen such that each capability is present in
/// some and absent in others.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
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

    pub(crate) fn attributes(self) -> Attributes {
        let (rdma_read, rdma_write, wide_wqe) =
            (self >= Self::Efa1, self >= Self::Efa2, self >= Self::Efa3);
        let event_queues = self >= Self::Efa1;
        let kernel_verbs = self >= Self::Efa2;
        let newest = self >= Self::Efa4;
        let event_counters = newest;
        let features = [
            (FeatureId::DeviceAttr, true),
            (FeatureId::AenqConfig, true),
            (FeatureId::NetworkAttr, true),
            (FeatureId::QueueAttr1, true),
            (FeatureId::HwHints, true),
            (FeatureId::HostInfo, true),
            (FeatureId::EventQueueAttr, event_queues),
            (FeatureId::QueueAttr2, wide_wqe),
        ];
        Attributes {
            ready: true,
            version: Version {
                major: 0,
                minor: [1, 1, 2, 2, 3][self as usize],
            }
            .into_raw(),
            controller_version: ControllerVersion {
                major: 0,
                minor: 0,
                subminor: 1,
                implementation: 0,
            }
            .into_raw(),
            dma_addr_width: 48,
            reset_timeout: 30,
            admin_timeout: 0,
            reset_ms: 0,
            supported_features: features
                .into_iter()
                .filter(|(_, present)| *present)
                .fold(0, |mask, (feature, _)| mask | feature.mask()),
            api_version: 1,
            fw_version: 1,
            device_version: self as u32,
            guid: 0,
            address: [0; 16],
            mtu: 8928,
            link_gbps: [100, 100, 200, 400, 800][self as usize],
            db_bar: 4,
            phys_addr_width: 48,
            virt_addr_width: 57,
            // Every power of two from 4 KiB to 1 GiB.
            page_size_cap: (1 << 31) - (1 << 12),
            rdma_read,
            rnr_retry: true,
            // Payload is copied in no particular order. A program that polls its last bytes could find others missing.
            data_polling_128: false,
            rdma_write,
            unsolicited_write_recv: rdma_write,
            sq_64_bit_req_id: newest,
            relaxed_ordering: false,
            max_rdma_size: if rdma_read { 1 << 30 } else { 0 },
            network_stats: self >= Self::Efa2,
            fast_mr: kernel_verbs,
            physical_mr: kernel_verbs,
            max_uar: 256,
            max_pd: 256,
            max_ah: 4096,
            shared_ah: !newest,
            check_srd_qkey: false,
            check_empty_keys: false,
            check_read_version: false,
            flush_on_destroy: true,
            reuse_numbers: false,
            max_sl: u8::MAX,
            // All valid numbers.
            max_mr: 65534,
            max_mr_pages: 1 << 20,
            // Twice the default use of Lustre's efalnd for one interface, 33,280 regions of 256 pages.
            max_total_pages: 1 << 24,
            max_cq: 512,
            max_cq_depth: 32768,
            sub_cqs_per_cq: 1,
            max_qp: 256,
            // Users of EC2 report that a send queue that is requested with a depth of 1 has a depth of 32.
            min_sq_depth: 32,
            max_sq_depth: 4096,
            max_rq_depth: 32768,
            max_llq_size: 4096 * 64,
            inline_buf_size: 32,
            inline_buf_size_ex: if wide_wqe { 80 } else { 32 },
            max_wr_send_sges: 2,
            max_wr_recv_sges: 3,
            max_wr_rdma_sges: if rdma_read { 1 } else { 0 },
            max_tx_batch: 64,
            max_eq: if event_queues { 32 } else { 0 },
            max_eq_depth: 1024,
            event_counters,
            max_event_counters: if event_counters { EVENT_COUNTERS } else { 0 },
            event_counter_max_val: if event_counters { EVENT_COUNTER_MAX } else { 0 },
            event_counter_events: if event_counters { QpEvents::DEFINED } else { 0 },
            aenq_groups: ALL_AENQ_GROUPS,
            keep_alive_ms: 1000,
            mmio_read_timeout_ms: 0,
            driver_watchdog_timeout_ms: 0,
            admin_completion_timeout_ms: 0,
            poll_interval_ms: 0,
        }
    }
}
