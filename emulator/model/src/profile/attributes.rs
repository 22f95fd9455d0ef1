// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes of a device, and their overrides.

use efa_hw::{
    admin::event_counter::QpEvents,
    aenq::AenqGroup,
    features::{
        AenqConfig, DeviceAttr, DeviceCaps, EqEvents, EventQueueAttr, FeatureId, HwHints, NetworkAttr, QueueAttr1,
        QueueAttr2,
    },
    regs::{Caps, ControllerVersion, Version},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::generation::Profile::{self, Efa1, Efa2, Efa3, Efa4};

/// Makes the attributes, with the values that devices of generation `$profile` have.
macro_rules! attributes {
    ($profile:ident: $($(#[$meta:meta])* $name:ident: $type:ty = $value:expr,)*) => {
        /// Attributes in which devices differ: values that they report, and behaviour.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        pub(crate) struct Attributes {
            $($(#[$meta])* pub(crate) $name: $type,)*
        }

        impl Attributes {
            /// Attributes of the devices of a generation.
            pub(crate) fn of($profile: Profile) -> Self {
                Self { $($name: $value,)* }
            }
        }

        /// Attributes that replace those of a device's profile, where given.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct Overrides {
            $(
                $(#[$meta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )*
        }

        impl From<Attributes> for Overrides {
            fn from(attributes: Attributes) -> Self {
                Self { $($name: Some(attributes.$name),)* }
            }
        }

        impl Overrides {
            /// Adds the overrides of `other`, which take precedence.
            pub fn merge(&mut self, other: Self) {
                $(if other.$name.is_some() {
                    self.$name = other.$name;
                })*
            }

            pub(crate) fn apply(&self, attributes: &mut Attributes) {
                $(if let Some(value) = &self.$name {
                    attributes.$name = value.clone();
                })*
            }
        }
    };
}

attributes! { profile:
    /// Whether the device reports that it is ready.
    ready: bool = true,
    /// The `VERSION` register.
    version: u32 = Version { major: 0, minor: [1, 1, 2, 2, 3][profile as usize] }.into_raw(),
    /// The `CONTROLLER_VERSION` register.
    controller_version: u32 = ControllerVersion { major: 0, minor: 0, subminor: 1, implementation: 0 }.into_raw(),
    /// Width of a bus address in bits.
    dma_addr_width: u8 = 48,
    /// Timeout of each half of a reset, in units of 100 ms.
    reset_timeout: u8 = 30,
    /// Timeout of an admin command, in units of 100 ms; 0 if the device does not report one.
    admin_timeout: u8 = 0,
    /// Actual duration of each half of a reset, in ms.
    reset_ms: u32 = 0,
    /// Mask of the supported features.
    supported_features: u64 = features(profile),
    /// Version of the admin interface that the device attributes report.
    api_version: u32 = 1,
    /// Version of the firmware.
    fw_version: u32 = 1,
    /// Version of the device.
    device_version: u32 = profile as u32,
    /// Globally unique identifier of the device, an EUI-64.
    guid: u64 = 0,
    /// Address of the device, a GID.
    address: [u8; 16] = [0; 16],
    /// Limit on the payload of one packet, in bytes.
    mtu: u32 = 8928,
    /// Speed of the link in Gbit/s.
    link_gbps: u16 = [100, 100, 200, 400, 800][profile as usize],
    /// Number of the BAR with the doorbells.
    db_bar: u16 = 4,
    /// Width of a physical address in bits.
    phys_addr_width: u8 = 48,
    /// Width of a virtual address in bits.
    virt_addr_width: u8 = 57,
    /// Mask of the page sizes that memory regions may have; each size is its own bit.
    // Every power of two from 4 KiB to 1 GiB.
    page_size_cap: u64 = (1 << 31) - (1 << 12),
    /// Whether the device supports RDMA read.
    rdma_read: bool = profile >= Efa1,
    /// Whether the number of RNR retries can be set.
    rnr_retry: bool = true,
    /// Whether the device reports that memory may be polled in units of 128 bytes. Unordered copies of payload violate this.
    // Payload is copied in no particular order. A program that polls its last bytes could find others missing.
    data_polling_128: bool = false,
    /// Whether the device supports RDMA write.
    rdma_write: bool = profile >= Efa2,
    /// Whether the device supports RDMA write with immediate without a receive work request.
    unsolicited_write_recv: bool = profile >= Efa2,
    /// Whether request ids of send queues can have 64 bits.
    sq_64_bit_req_id: bool = profile >= Efa4,
    /// Whether memory regions can permit relaxed ordering: the last 256 bytes of a packet are written to them first.
    relaxed_ordering: bool = false,
    /// Limit on the bytes of one RDMA operation.
    max_rdma_size: u32 = if profile >= Efa1 { 1 << 30 } else { 0 },
    /// Whether the device has network statistics.
    network_stats: bool = profile >= Efa2,
    /// Whether the device supports fast registration: memory regions that get their pages by work requests.
    fast_mr: bool = profile >= Efa2,
    /// Whether memory regions can consist of bus addresses.
    physical_mr: bool = profile >= Efa2,
    /// Limit on user access regions.
    max_uar: u32 = 256,
    /// Limit on protection domains.
    max_pd: u32 = 256,
    /// Limit on address handles.
    max_ah: u32 = 4096,
    /// Whether a protection domain may create an address handle again for a peer for which it already has one.
    shared_ah: bool = profile < Efa4,
    /// Whether SRD packets with the wrong Q_Key are dropped, as datagrams are.
    ///
    /// No source says whether hardware does that. Against it: no status of a work request reports it. According to libfabric
    /// (prov/efa/docs/efa_rdm_protocol_v4.md, section 4.4), a device identifies peers by GID and queue pair number only. So
    /// libfabric sends the Q_Key as "connid" in its own headers. For it: every client sends the Q_Key of its peer.
    check_srd_qkey: bool = false,
    /// Whether the remote key of an RDMA read or write of zero bytes has to be valid, as `strict=guesses` requires.
    ///
    /// No source says whether hardware does that. For it: libfabric PR 11890.
    check_empty_keys: bool = false,
    /// Whether RDMA reads between a device of version 0 and one of another version are refused, as `strict=guesses` requires.
    ///
    /// No source says whether hardware does that. For it: libfabric (prov/efa/src/rdm/efa_rdm_ep.h) never reads between a
    /// device with PCI id 0xefa0 and one with another id.
    check_read_version: bool = false,
    /// Whether `DESTROY_QP` flushes the work requests of the queue pair before its own completion.
    ///
    /// This was not measured on hardware. rdma-core's `efa_io_defs.h` describes status 1 as "Flushed during QP destroy".
    flush_on_destroy: bool = true,
    /// Whether the number of a destroyed object is given to the next one of its kind. Otherwise it is reused as late as possible.
    reuse_numbers: bool = false,
    /// Limit on the service level of a queue pair.
    max_sl: u8 = u8::MAX,
    /// Limit on memory regions.
    // All valid numbers.
    max_mr: u32 = 65534,
    /// Limit on the pages in one memory region.
    max_mr_pages: u32 = 1 << 20,
    /// Limit on the pages in all memory regions together.
    // Twice the default use of Lustre's efalnd for one interface, 33,280 regions of 256 pages.
    max_total_pages: u64 = 1 << 24,
    /// Limit on completion queues.
    max_cq: u32 = 512,
    /// Limit on the entries in a completion queue.
    max_cq_depth: u32 = 32768,
    /// Number of sub-queues of each completion queue.
    sub_cqs_per_cq: u16 = 1,
    /// Limit on queue pairs.
    max_qp: u32 = 256,
    /// Minimum number of work requests in a send queue.
    // Users of EC2 report that a send queue that is requested with a depth of 1 has a depth of 32.
    min_sq_depth: u16 = 32,
    /// Limit on the work requests in a send queue.
    max_sq_depth: u32 = 4096,
    /// Limit on the descriptors in a receive queue.
    max_rq_depth: u32 = 32768,
    /// Limit on the size of a low-latency send queue, in bytes.
    max_llq_size: u32 = 4096 * 64,
    /// Limit on the inline data in a send work request of 64 bytes, in bytes.
    inline_buf_size: u32 = 32,
    /// Limit on the inline data in a send work request of any size, in bytes.
    inline_buf_size_ex: u16 = if profile >= Efa3 { 80 } else { 32 },
    /// Limit on the buffers in a send work request.
    max_wr_send_sges: u16 = 2,
    /// Limit on the buffers in a receive work request.
    max_wr_recv_sges: u16 = 3,
    /// Limit on the buffers in an RDMA work request.
    max_wr_rdma_sges: u16 = (profile >= Efa1).into(),
    /// Limit on the data written to a send queue between two doorbells, in units of 64 bytes; 0 means unlimited.
    max_tx_batch: u16 = 64,
    /// Limit on event queues.
    max_eq: u32 = if profile >= Efa1 { 32 } else { 0 },
    /// Limit on the entries in an event queue.
    max_eq_depth: u32 = 1024,
    /// Whether the device has event counters.
    event_counters: bool = profile >= Efa4,
    /// Limit on event counters.
    max_event_counters: u32 = if profile >= Efa4 { 512 } else { 0 },
    /// Largest value of an event counter, after which it wraps to 0.
    event_counter_max_val: u64 = if profile >= Efa4 { (1 << 48) - 1 } else { 0 },
    /// Mask of the queue pair events that event counters can count.
    event_counter_events: u32 = if profile >= Efa4 { QpEvents::DEFINED } else { 0 },
    /// Mask of the supported groups of asynchronous events.
    aenq_groups: u32 = ALL_AENQ_GROUPS,
    /// Interval of keep-alive events in ms; 0 disables them.
    keep_alive_ms: u32 = 1000,
    /// Hint: timeout of a register read, in ms.
    mmio_read_timeout_ms: u16 = 0,
    /// Hint: timeout for the next keep-alive event, in ms.
    driver_watchdog_timeout_ms: u16 = 0,
    /// Hint: timeout of an admin command, in ms.
    admin_completion_timeout_ms: u16 = 0,
    /// Hint: interval of polls for a completion, in ms.
    poll_interval_ms: u16 = 0,
}

impl Overrides {
    /// Overrides that enable all checks that hardware is only guessed to make.
    pub fn guesses() -> Self {
        Self {
            check_srd_qkey: Some(true),
            check_empty_keys: Some(true),
            check_read_version: Some(true),
            ..Self::default()
        }
    }
}

/// Makes a structure of attributes with the same names, and of others.
macro_rules! reported {
    ($type:ident of $self:ident: $($same:ident)*; $($name:ident: $value:expr,)*) => {
        $type { $($same: $self.$same,)* $($name: $value,)* }
    };
}

impl Attributes {
    pub(crate) fn caps(&self) -> Caps {
        Caps {
            contiguous_queue_required: true,
            reset_timeout: self.reset_timeout,
            dma_addr_width: self.dma_addr_width,
            admin_cmd_timeout: self.admin_timeout,
        }
    }

    /// Whether the device has a feature.
    pub(crate) fn supports(&self, feature: FeatureId) -> bool {
        feature == FeatureId::DeviceAttr || self.supported_features & feature.mask() != 0
    }

    /// Whether send work requests of 128 bytes are possible, for more inline data.
    pub(crate) fn wide_wqe(&self) -> bool {
        self.supports(FeatureId::QueueAttr2) && u32::from(self.inline_buf_size_ex) > self.inline_buf_size
    }

    /// Whether the device can use the memory of `length` bytes at `address`.
    pub(crate) fn reaches(&self, address: u64, length: u64) -> bool {
        let Some(end) = length.checked_sub(1).and_then(|last| address.checked_add(last)) else {
            return false;
        };
        end.checked_shr(u32::from(self.dma_addr_width)).unwrap_or(0) == 0
    }

    pub(crate) fn device_attr(&self) -> DeviceAttr {
        reported!(DeviceAttr of self:
            supported_features page_size_cap fw_version device_version db_bar phys_addr_width virt_addr_width max_rdma_size;
            admin_api_version: self.api_version,
            device_caps: reported!(DeviceCaps of self:
                rdma_read rnr_retry data_polling_128 rdma_write unsolicited_write_recv event_counters sq_64_bit_req_id
                relaxed_ordering;
            ),
            // Drivers pass an EUI-64 on in the byte order of the device, which is big-endian.
            guid: self.guid.swap_bytes(),
            max_link_speed_gbps: self.link_gbps,
        )
    }

    pub(crate) fn network_attr(&self) -> NetworkAttr {
        reported!(NetworkAttr of self: mtu; addr: self.address,)
    }

    pub(crate) fn queue_attr_1(&self) -> QueueAttr1 {
        reported!(QueueAttr1 of self:
            max_qp max_sq_depth inline_buf_size max_rq_depth max_cq max_cq_depth sub_cqs_per_cq min_sq_depth max_wr_send_sges
            max_wr_recv_sges max_mr max_mr_pages max_pd max_ah max_llq_size max_wr_rdma_sges max_tx_batch;
        )
    }

    pub(crate) fn queue_attr_2(&self) -> QueueAttr2 {
        reported!(QueueAttr2 of self: inline_buf_size_ex max_event_counters event_counter_max_val;
            supported_event_counter_qp_events: QpEvents::from_raw(self.event_counter_events),
        )
    }

    pub(crate) fn event_queue_attr(&self) -> EventQueueAttr {
        let event_bitmask = EqEvents { completion: true };
        reported!(EventQueueAttr of self: max_eq max_eq_depth; event_bitmask: event_bitmask,)
    }

    pub(crate) fn aenq_config(&self, enabled_groups: u32) -> AenqConfig {
        let supported_groups = self.aenq_groups;
        AenqConfig { supported_groups, enabled_groups }
    }

    pub(crate) fn hw_hints(&self) -> HwHints {
        HwHints {
            mmio_read_timeout: self.mmio_read_timeout_ms,
            driver_watchdog_timeout: self.driver_watchdog_timeout_ms,
            admin_completion_timeout: self.admin_completion_timeout_ms,
            poll_interval: self.poll_interval_ms,
        }
    }
}

/// Mask of the features that a generation has.
fn features(profile: Profile) -> u64 {
    let has = |feature: &&FeatureId| match feature {
        FeatureId::EventQueueAttr => profile >= Efa1,
        FeatureId::QueueAttr2 => profile >= Efa3,
        _ => true,
    };
    let features = FeatureId::ALL.iter().filter(has);
    features.fold(0, |mask, feature| mask | feature.mask())
}

/// All groups of asynchronous events.
const ALL_AENQ_GROUPS: u32 = AenqGroup::FatalError.mask()
    | AenqGroup::Warning.mask()
    | AenqGroup::Notification.mask()
    | AenqGroup::KeepAlive.mask();
