// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Features: attributes of the device that a driver reads, and settings that it writes.

use super::{
    admin::{
        self,
        command,
        event_counter::QpEvents,
        AqFlags,
        CtrlBuffInfo,
        NoData,
        Opcode, //
    },
    wire::{
        self,
        bits,
        codes,
        layout, //
    }, //
};

codes! {
    /// Features.
    pub enum FeatureId: u8 {
        /// [`DeviceAttr`], read only. Every device has it.
        DeviceAttr = 1 => "DEVICE_ATTR",
        /// [`AenqConfig`], read and set.
        AenqConfig = 2 => "AENQ_CONFIG",
        /// [`NetworkAttr`], read only.
        NetworkAttr = 3 => "NETWORK_ATTR",
        /// [`QueueAttr1`], read only.
        QueueAttr1 = 4 => "QUEUE_ATTR_1",
        /// [`HwHints`], read only.
        HwHints = 5 => "HW_HINTS",
        /// [`HostInfo`](super::host_info::HostInfo), set only, in a control buffer.
        HostInfo = 6 => "HOST_INFO",
        /// [`EventQueueAttr`], read only.
        EventQueueAttr = 7 => "EVENT_QUEUE_ATTR",
        /// [`QueueAttr2`], read only.
        QueueAttr2 = 9 => "QUEUE_ATTR_2",
    }
}

impl FeatureId {
    /// Returns the bit of the feature in [`DeviceAttr::supported_features`].
    pub const fn mask(self) -> u64 {
        1 << self as u8
    }
}

layout! {
    /// Reads a feature.
    pub struct GetFeature[60] {
        /// Whether the control buffer is used.
        control: AqFlags,
        /// Control buffer for data that does not fit into the completion.
        control_buffer @ 0: CtrlBuffInfo,
        /// The [`FeatureId`].
        feature_id @ 13: u8 as FeatureId,
    }
}

layout! {
    /// The value of a feature.
    pub struct GetFeatureResponse[64] {
        /// Encoding of the requested attributes, padded with zeroes.
        data @ 8: [u8; 56],
    }
}

command!(Opcode::GetFeature, GetFeature with control => GetFeatureResponse);

layout! {
    /// Sets a feature.
    pub struct SetFeature[60] {
        /// Whether the control buffer is used.
        control: AqFlags,
        /// Control buffer with data that does not fit into the command.
        control_buffer @ 0: CtrlBuffInfo,
        /// The [`FeatureId`].
        feature_id @ 13: u8 as FeatureId,
        /// Encoding of the setting, padded with zeroes.
        data @ 16: [u8; 44],
    }
}

command!(Opcode::SetFeature, SetFeature with control => NoData);

/// A feature that a driver can read.
pub trait Feature: Sized {
    /// The feature's number.
    const ID: FeatureId;

    /// Decodes the attributes from a response to [`GetFeature`] for this feature.
    fn from_response(response: &GetFeatureResponse) -> Self;

    /// Encodes the response.
    fn into_response(self) -> GetFeatureResponse;
}

macro_rules! features {
    ($($name:ident = $id:expr;)*) => {$(
        impl Feature for $name {
            const ID: FeatureId = $id;

            #[inline]
            fn from_response(response: &GetFeatureResponse) -> Self {
                Self::decode(&wire::At::<0>::load(&response.data))
            }

            #[inline]
            fn into_response(self) -> GetFeatureResponse {
                let mut response = GetFeatureResponse::default();
                wire::At::<0>::store(&mut response.data, self.encode());
                response
            }
        }
    )*};
}

features! {
    DeviceAttr = FeatureId::DeviceAttr;
    AenqConfig = FeatureId::AenqConfig;
    NetworkAttr = FeatureId::NetworkAttr;
    QueueAttr1 = FeatureId::QueueAttr1;
    HwHints = FeatureId::HwHints;
    EventQueueAttr = FeatureId::EventQueueAttr;
    QueueAttr2 = FeatureId::QueueAttr2;
}

bits! {
    /// Capabilities of the device's data path.
    pub struct DeviceCaps(u32) {
        /// RDMA read.
        0:0 rdma_read => bool,
        /// The number of RNR retries can be set.
        1:1 rnr_retry => bool,
        /// Host memory may be polled for received data in units of 128 bytes.
        2:2 data_polling_128 => bool,
        /// RDMA write.
        3:3 rdma_write => bool,
        /// RDMA write with immediate that consumes no receive work request.
        4:4 unsolicited_write_recv => bool,
        /// Event counters.
        5:5 event_counters => bool,
        /// Request ids of 64 bits in send queues.
        10:10 sq_64_bit_req_id => bool,
        /// Relaxed ordering of memory regions. This bit and that of
        /// [`RegMrPermissions`](super::admin::mr::RegMrPermissions) are guesses, each the next one
        /// after the known bits. Linux's commit eb6aed55 (7.4) and Amazon's 3.4.0 have the true
        /// ones. So the driver uses them only if built with `cfg(relaxed_ordering)`, for tests.
        11:11 relaxed_ordering => bool,
    }
}

layout! {
    /// Attributes of the device.
    pub struct DeviceAttr[56] {
        /// Supported features: [`FeatureId::mask`] of each.
        supported_features @ 0: u64 as Hex,
        /// Supported page sizes of memory regions: each size, a power of two, is its own bit.
        page_size_cap @ 8: u64 as Hex,
        /// Version of the firmware.
        fw_version @ 16: u32 as Hex,
        /// Version of the admin interface.
        admin_api_version @ 20: u32 as Hex,
        /// Version of the device.
        device_version @ 24: u32 as Hex,
        /// BAR with the doorbells.
        db_bar @ 28: u16,
        /// Number of bits in a physical address.
        phys_addr_width @ 30: u8,
        /// Number of bits in a virtual address.
        virt_addr_width @ 31: u8,
        /// Capabilities of the data path.
        device_caps @ 32: DeviceCaps,
        /// Maximum number of bytes of one RDMA operation.
        max_rdma_size @ 36: u32,
        /// Globally unique id of the device.
        guid @ 40: u64 as Hex,
        /// Maximum speed of the link in Gbit/s; 0 if the device does not report it.
        max_link_speed_gbps @ 48: u16,
    }
}

layout! {
    /// Supported and enabled asynchronous events, as sets of
    /// [`AenqGroup`](super::aenq::AenqGroup).
    pub struct AenqConfig[8] {
        /// Groups that the device can report; ignored in a setting.
        supported_groups @ 0: u32 as Hex,
        /// Groups that the device reports.
        enabled_groups @ 4: u32 as Hex,
    }
}

impl AenqConfig {
    /// Encodes the configuration as data of [`SetFeature`].
    #[inline]
    pub fn into_setting(self) -> [u8; 44] {
        let mut data = [0; 44];
        wire::At::<0>::store(&mut data, self.encode());
        data
    }

    /// Decodes the configuration from data of [`SetFeature`].
    #[inline]
    pub fn from_setting(data: &[u8; 44]) -> Self {
        Self::decode(&wire::At::<0>::load(data))
    }
}

layout! {
    /// Attributes of the network.
    pub struct NetworkAttr[20] {
        /// Address of the device, a GID in network byte order.
        addr @ 0: [u8; 16] as Gid,
        /// Maximum number of payload bytes in one packet.
        mtu @ 16: u32,
    }
}

layout! {
    /// Limits on queues and other objects: maximum numbers, unless stated otherwise.
    pub struct QueueAttr1[56] {
        /// Queue pairs.
        max_qp @ 0: u32,
        /// Work requests in a send queue.
        max_sq_depth @ 4: u32,
        /// Bytes of inline data in a send work request; see also [`QueueAttr2`].
        inline_buf_size @ 8: u32,
        /// Descriptors in a receive queue.
        max_rq_depth @ 12: u32,
        /// Completion queues.
        max_cq @ 16: u32,
        /// Entries in a completion queue.
        max_cq_depth @ 20: u32,
        /// Number of sub-queues in each completion queue.
        sub_cqs_per_cq @ 24: u16,
        /// Minimum number of work requests in a send queue.
        min_sq_depth @ 26: u16,
        /// Buffers in one send work request.
        max_wr_send_sges @ 28: u16,
        /// Buffers in one receive work request.
        max_wr_recv_sges @ 30: u16,
        /// Memory regions.
        max_mr @ 32: u32,
        /// Pages in one memory region.
        max_mr_pages @ 36: u32,
        /// Protection domains.
        max_pd @ 40: u32,
        /// Address handles.
        max_ah @ 44: u32,
        /// Bytes of a low-latency send queue.
        max_llq_size @ 48: u32,
        /// Buffers in one RDMA work request.
        max_wr_rdma_sges @ 52: u16,
        /// Units of 64 bytes that may be written to a send queue between two doorbells; 0 means
        /// any number.
        max_tx_batch @ 54: u16,
    }
}

layout! {
    /// More limits on queues: maximum numbers.
    pub struct QueueAttr2[24] {
        /// Bytes of inline data in the largest send work request; one of 64 bytes has
        /// [`QueueAttr1::inline_buf_size`].
        inline_buf_size_ex @ 0: u16,
        /// Events of queue pairs that event counters can count.
        supported_event_counter_qp_events @ 8: QpEvents,
        /// Event counters.
        max_event_counters @ 12: u32,
        /// Largest value of an event counter, after which it wraps to 0.
        event_counter_max_val @ 16: u64 as Hex,
    }
}

bits! {
    /// Set of event types of an event queue.
    pub struct EqEvents(u32) {
        /// New completions in armed completion queues.
        0:0 completion => bool,
    }
}

layout! {
    /// Limits on event queues.
    pub struct EventQueueAttr[12] {
        /// Maximum number of event queues.
        max_eq @ 0: u32,
        /// Maximum number of entries in an event queue.
        max_eq_depth @ 4: u32,
        /// Events that can be reported.
        event_bitmask @ 8: EqEvents,
    }
}

layout! {
    /// Timeouts and intervals that the device recommends; 0 means no recommendation.
    pub struct HwHints[8] {
        /// Timeout of a register read, in ms.
        mmio_read_timeout @ 0: u16,
        /// Maximum time without a keep-alive event, in ms.
        driver_watchdog_timeout @ 2: u16,
        /// Timeout of an admin command, in ms.
        admin_completion_timeout @ 4: u16,
        /// Interval between polls for a completion, in ms.
        poll_interval @ 6: u16,
    }
}
