// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Features: the attributes that a driver reads from a device and the settings that it makes.

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
    /// The bit that stands for the feature in [`DeviceAttr::supported_features`].
    pub const fn mask(self) -> u64 {
        1 << self as u8
    }
}

layout! {
    /// Reads a feature.
    pub struct GetFeature[60] {
        /// Whether the control buffer is used.
        control: AqFlags,
        /// Where to put data that does not fit into the completion.
        control_buffer @ 0: CtrlBuffInfo,
        /// The [`FeatureId`].
        feature_id @ 13: u8,
    }
}

layout! {
    /// The value of a feature.
    pub struct GetFeatureResponse[64] {
        /// Encoding of the attributes that were asked for, with zeroes to its end.
        data @ 8: [u8; 56],
    }
}

command!(Opcode::GetFeature, GetFeature with control => GetFeatureResponse);

layout! {
    /// Sets a feature.
    pub struct SetFeature[60] {
        /// Whether the control buffer is used.
        control: AqFlags,
        /// Where data is that does not fit into the command.
        control_buffer @ 0: CtrlBuffInfo,
        /// The [`FeatureId`].
        feature_id @ 13: u8,
        /// Encoding of the setting, with zeroes to its end.
        data @ 16: [u8; 44],
    }
}

command!(Opcode::SetFeature, SetFeature with control => NoData);

/// A feature that a driver can read.
pub trait Feature: Sized {
    /// The feature's number.
    const ID: FeatureId;

    /// Takes the attributes from a response to the command for this feature.
    fn from_response(response: &GetFeatureResponse) -> Self;

    /// Makes the response.
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
    /// What the device's data path can do.
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
    }
}

layout! {
    /// Attributes of the device.
    pub struct DeviceAttr[56] {
        /// Which features there are: [`FeatureId::mask`] of each.
        supported_features @ 0: u64,
        /// Which page sizes a memory region may have: each is its own bit.
        page_size_cap @ 8: u64,
        /// Version of the firmware.
        fw_version @ 16: u32,
        /// Version of the admin interface.
        admin_api_version @ 20: u32,
        /// Version of the device.
        device_version @ 24: u32,
        /// BAR with the doorbells.
        db_bar @ 28: u16,
        /// Bits of a physical address.
        phys_addr_width @ 30: u8,
        /// Bits of a virtual address.
        virt_addr_width @ 31: u8,
        /// What the data path can do.
        device_caps @ 32: DeviceCaps,
        /// Most bytes of one RDMA operation.
        max_rdma_size @ 36: u32,
        /// Identifies the device among all.
        guid @ 40: u64,
        /// Highest speed of the link in Gbit/s; 0 if the device does not report it.
        max_link_speed_gbps @ 48: u16,
    }
}

layout! {
    /// Which asynchronous events the device can and shall report, as sets of
    /// [`AenqGroup`](super::aenq::AenqGroup).
    pub struct AenqConfig[8] {
        /// The groups that the device can report. No effect when set.
        supported_groups @ 0: u32,
        /// The groups that the device reports.
        enabled_groups @ 4: u32,
    }
}

impl AenqConfig {
    /// Makes the data of the command that sets this configuration.
    #[inline]
    pub fn into_setting(self) -> [u8; 44] {
        let mut data = [0; 44];
        wire::At::<0>::store(&mut data, self.encode());
        data
    }

    /// Takes the configuration from the data of the command that sets it.
    #[inline]
    pub fn from_setting(data: &[u8; 44]) -> Self {
        Self::decode(&wire::At::<0>::load(data))
    }
}

layout! {
    /// Attributes of the network.
    pub struct NetworkAttr[20] {
        /// Address of the device, a GID in network byte order.
        addr @ 0: [u8; 16],
        /// Most bytes of payload in one packet.
        mtu @ 16: u32,
    }
}

layout! {
    /// Limits of queues and of what they refer to.
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
        /// How many sub-queues each completion queue has.
        sub_cqs_per_cq @ 24: u16,
        /// Least work requests in a send queue.
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
    /// More limits of queues.
    pub struct QueueAttr2[24] {
        /// Bytes of inline data in a send work request, instead of
        /// [`QueueAttr1::inline_buf_size`].
        inline_buf_size_ex @ 0: u16,
        /// What event counters can count of queue pairs.
        supported_event_counter_qp_events @ 8: QpEvents,
        /// Event counters.
        max_event_counters @ 12: u32,
        /// Largest value of an event counter; the next one after it is 0.
        event_counter_max_val @ 16: u64,
    }
}

bits! {
    /// Sets of events for an event queue.
    pub struct EqEvents(u32) {
        /// New completions in armed completion queues.
        0:0 completion => bool,
    }
}

layout! {
    /// Limits of event queues.
    pub struct EventQueueAttr[12] {
        /// Event queues.
        max_eq @ 0: u32,
        /// Entries in an event queue.
        max_eq_depth @ 4: u32,
        /// Events that can be reported.
        event_bitmask @ 8: EqEvents,
    }
}

layout! {
    /// What the device advises the driver to do; in each, 0 means that it has no opinion.
    pub struct HwHints[8] {
        /// How long to wait for a register, in ms.
        mmio_read_timeout @ 0: u16,
        /// How long a keep-alive event may stay away, in ms.
        driver_watchdog_timeout @ 2: u16,
        /// How long to wait for a command, in ms.
        admin_completion_timeout @ 4: u16,
        /// How often to poll for a completion, in ms.
        poll_interval @ 6: u16,
    }
}
