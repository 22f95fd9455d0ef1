// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a device says of itself, and how it can be made to say something else.

use efa_hw::{
    admin::event_counter::QpEvents,
    aenq::AenqGroup,
    features::{
        AenqConfig, DeviceAttr, DeviceCaps, EqEvents, EventQueueAttr, FeatureId, HwHints,
        NetworkAttr, QueueAttr1, QueueAttr2,
    },
    regs::Caps,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! attributes {
    ($($(#[$meta:meta])* $name:ident: $type:ty,)*) => {
        /// Everything that a device says of itself and that differs between devices.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
        pub(crate) struct Attributes {
            $($(#[$meta])* pub(crate) $name: $type,)*
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

        impl Overrides {
            /// Takes over what `other` has.
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

attributes! {
    /// Whether the device says that it is ready.
    ready: bool,
    /// The `VERSION` register.
    version: u32,
    /// The `CONTROLLER_VERSION` register.
    controller_version: u32,
    /// Bits of a bus address.
    dma_addr_width: u8,
    /// How long each half of a reset may take, in units of 100 ms.
    reset_timeout: u8,
    /// How long an admin command may take, in units of 100 ms; 0 if the device does not say.
    admin_timeout: u8,
    /// How long each half of a reset does take, in ms.
    reset_ms: u32,
    /// Which features there are.
    supported_features: u64,
    /// Version of the admin interface, as the device's attributes give it.
    api_version: u32,
    /// Version of the firmware.
    fw_version: u32,
    /// Version of the device.
    device_version: u32,
    /// Identifies the device among all, an EUI-64.
    guid: u64,
    /// Address of the device, a GID.
    address: [u8; 16],
    /// Most bytes of payload in one packet.
    mtu: u32,
    /// Speed of the link in Gbit/s.
    link_gbps: u16,
    /// BAR with the doorbells.
    db_bar: u16,
    /// Bits of a physical address.
    phys_addr_width: u8,
    /// Bits of a virtual address.
    virt_addr_width: u8,
    /// Page sizes that memory regions may have; each is its own bit.
    page_size_cap: u64,
    /// Whether it does RDMA read.
    rdma_read: bool,
    /// Whether the number of RNR retries can be set.
    rnr_retry: bool,
    /// Whether it claims that memory may be polled in units of 128 bytes. Hosts that copy payload in any order do not keep to it.
    data_polling_128: bool,
    /// Whether it does RDMA write.
    rdma_write: bool,
    /// Whether it does RDMA write with immediate without a receive work request.
    unsolicited_write_recv: bool,
    /// Whether request ids of send queues can have 64 bits.
    sq_64_bit_req_id: bool,
    /// Most bytes of one RDMA operation.
    max_rdma_size: u32,
    /// Whether it has the statistics of the network.
    network_stats: bool,
    /// Whether memory regions can get their pages by work requests.
    fast_mr: bool,
    /// Whether memory regions can be bus addresses.
    physical_mr: bool,
    /// Most user access regions.
    max_uar: u32,
    /// Most protection domains.
    max_pd: u32,
    /// Most address handles.
    max_ah: u32,
    /// Whether a protection domain may create an address handle for a peer again that it has one for.
    shared_ah: bool,
    /// Whether packets of SRD with the wrong Q_Key are dropped, too, and not only datagrams.
    ///
    /// No source says whether hardware does that. Against it: no status of a work request is for it. According to libfabric
    /// (prov/efa/docs/efa_rdm_protocol_v4.md, section 4.4), a device knows peers by GID and queue pair number only. So
    /// libfabric sends the Q_Key as "connid" in its own headers. For it: every client sends the one of its peer.
    check_srd_qkey: bool,
    /// Whether the remote key of an RDMA read or write of no bytes has to be good, as `strict=guesses` sets it.
    ///
    /// No source says whether hardware does that. For it: libfabric PR 11890.
    check_empty_keys: bool,
    /// Whether RDMA reads between a device of version 0 and one of another version are refused, as `strict=guesses` sets it.
    ///
    /// No source says whether hardware does that. For it: libfabric (prov/efa/src/rdm/efa_rdm_ep.h) never reads between a device with
    /// PCI id 0xefa0 and one with another id.
    check_read_version: bool,
    /// Whether `DESTROY_QP` completes what the queue pair has as flushed, before it completes itself.
    ///
    /// Nobody has measured it. rdma-core's `efa_io_defs.h` has status 1 as "Flushed during QP destroy".
    flush_on_destroy: bool,
    /// Most memory regions.
    max_mr: u32,
    /// Most pages in one memory region.
    max_mr_pages: u32,
    /// Most pages in all memory regions together.
    max_total_pages: u64,
    /// Most completion queues.
    max_cq: u32,
    /// Most entries in a completion queue.
    max_cq_depth: u32,
    /// Sub-queues of each completion queue.
    sub_cqs_per_cq: u16,
    /// Most queue pairs.
    max_qp: u32,
    /// Least work requests in a send queue.
    min_sq_depth: u16,
    /// Most work requests in a send queue.
    max_sq_depth: u32,
    /// Most descriptors in a receive queue.
    max_rq_depth: u32,
    /// Most bytes of a low-latency send queue.
    max_llq_size: u32,
    /// Most bytes of inline data in a send work request of 64 bytes.
    inline_buf_size: u32,
    /// Most bytes of inline data in a send work request of any size.
    inline_buf_size_ex: u16,
    /// Most buffers in a send work request.
    max_wr_send_sges: u16,
    /// Most buffers in a receive work request.
    max_wr_recv_sges: u16,
    /// Most buffers in an RDMA work request.
    max_wr_rdma_sges: u16,
    /// Units of 64 bytes that may be written to a send queue between two doorbells; 0 means any
    /// number.
    max_tx_batch: u16,
    /// Most event queues.
    max_eq: u32,
    /// Most entries in an event queue.
    max_eq_depth: u32,
    /// Whether it has event counters.
    event_counters: bool,
    /// Most event counters.
    max_event_counters: u32,
    /// Largest value of an event counter; the next one after it is 0.
    event_counter_max_val: u64,
    /// What event counters can count of queue pairs; each is its own bit.
    event_counter_events: u32,
    /// Which groups of asynchronous events there are.
    aenq_groups: u32,
    /// Time between two keep-alive events in ms; 0 means never.
    keep_alive_ms: u32,
    /// Hint: how long to wait for a register, in ms.
    mmio_read_timeout_ms: u16,
    /// Hint: how long a keep-alive event may stay away, in ms.
    driver_watchdog_timeout_ms: u16,
    /// Hint: how long to wait for a command, in ms.
    admin_completion_timeout_ms: u16,
    /// Hint: how often to poll for a completion, in ms.
    poll_interval_ms: u16,
}

impl Overrides {
    /// A device that refuses what devices are guessed to refuse.
    pub fn guesses() -> Self {
        Self {
            check_srd_qkey: Some(true),
            check_empty_keys: Some(true),
            check_read_version: Some(true),
            ..Self::default()
        }
    }
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
        self.supports(FeatureId::QueueAttr2)
            && u32::from(self.inline_buf_size_ex) > self.inline_buf_size
    }

    /// Whether the device can use the memory of `length` bytes at `address`.
    pub(crate) fn reaches(&self, address: u64, length: u64) -> bool {
        let Some(end) = length
            .checked_sub(1)
            .and_then(|last| address.checked_add(last))
        else {
            return false;
        };
        end.checked_shr(u32::from(self.dma_addr_width)).unwrap_or(0) == 0
    }

    pub(crate) fn device_attr(&self) -> DeviceAttr {
        DeviceAttr {
            supported_features: self.supported_features,
            page_size_cap: self.page_size_cap,
            fw_version: self.fw_version,
            admin_api_version: self.api_version,
            device_version: self.device_version,
            db_bar: self.db_bar,
            phys_addr_width: self.phys_addr_width,
            virt_addr_width: self.virt_addr_width,
            device_caps: DeviceCaps {
                rdma_read: self.rdma_read,
                rnr_retry: self.rnr_retry,
                data_polling_128: self.data_polling_128,
                rdma_write: self.rdma_write,
                unsolicited_write_recv: self.unsolicited_write_recv,
                event_counters: self.event_counters,
                sq_64_bit_req_id: self.sq_64_bit_req_id,
            },
            max_rdma_size: self.max_rdma_size,
            // An EUI-64 is written with its first byte first, as drivers hand it on.
            guid: self.guid.swap_bytes(),
            max_link_speed_gbps: self.link_gbps,
        }
    }

    pub(crate) fn network_attr(&self) -> NetworkAttr {
        NetworkAttr {
            addr: self.address,
            mtu: self.mtu,
        }
    }

    pub(crate) fn queue_attr_1(&self) -> QueueAttr1 {
        QueueAttr1 {
            max_qp: self.max_qp,
            max_sq_depth: self.max_sq_depth,
            inline_buf_size: self.inline_buf_size,
            max_rq_depth: self.max_rq_depth,
            max_cq: self.max_cq,
            max_cq_depth: self.max_cq_depth,
            sub_cqs_per_cq: self.sub_cqs_per_cq,
            min_sq_depth: self.min_sq_depth,
            max_wr_send_sges: self.max_wr_send_sges,
            max_wr_recv_sges: self.max_wr_recv_sges,
            max_mr: self.max_mr,
            max_mr_pages: self.max_mr_pages,
            max_pd: self.max_pd,
            max_ah: self.max_ah,
            max_llq_size: self.max_llq_size,
            max_wr_rdma_sges: self.max_wr_rdma_sges,
            max_tx_batch: self.max_tx_batch,
        }
    }

    pub(crate) fn queue_attr_2(&self) -> QueueAttr2 {
        QueueAttr2 {
            inline_buf_size_ex: self.inline_buf_size_ex,
            supported_event_counter_qp_events: QpEvents::from_raw(self.event_counter_events),
            max_event_counters: self.max_event_counters,
            event_counter_max_val: self.event_counter_max_val,
        }
    }

    pub(crate) fn event_queue_attr(&self) -> EventQueueAttr {
        EventQueueAttr {
            max_eq: self.max_eq,
            max_eq_depth: self.max_eq_depth,
            event_bitmask: EqEvents { completion: true },
        }
    }

    pub(crate) fn aenq_config(&self, enabled_groups: u32) -> AenqConfig {
        AenqConfig {
            supported_groups: self.aenq_groups,
            enabled_groups,
        }
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

/// All groups of asynchronous events.
pub(crate) const ALL_AENQ_GROUPS: u32 = AenqGroup::FatalError.mask()
    | AenqGroup::Warning.mask()
    | AenqGroup::Notification.mask()
    | AenqGroup::KeepAlive.mask();
