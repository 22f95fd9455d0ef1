// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Driver-specific input and output of verbs, exchanged with the userspace library.
//!
//! Names and layouts are those of [`include/uapi/rdma/efa-abi.h`]. The compiler checks the layouts
//! against it.
//!
//! [`include/uapi/rdma/efa-abi.h`]: srctree/include/uapi/rdma/efa-abi.h

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the macros make both directions of each conversion, for any reader"
)]

use core::mem::offset_of;

use crate::{
    ffi,
    hw::wire::{
        self,
        bits,
        layout, //
    },
    rdma::{
        DriverId,
        QpType, //
    },
};

/// Version of the interface.
pub(super) const VERSION: u32 = ffi::EFA_UVERBS_ABI_VERSION;

/// The id by which userspace selects its provider library.
pub(super) const DRIVER_ID: DriverId = DriverId::new(ffi::rdma_driver_id_RDMA_DRIVER_EFA);

/// EFA's own uverbs methods and attributes.
pub(super) const METHODS: ffi::UapiDefinitions<[u16; 4]> = ffi::EFA_UAPI_DEFINITIONS;

/// The driver-defined transport that userspace may request: SRD.
pub(super) const DRIVER_QP_TYPE_SRD: u32 = ffi::EFA_QP_DRIVER_TYPE_SRD;

/// The same transport for clients in the kernel, `EFA_QPT_SRD`.
pub(super) const KERNEL_QP_TYPE_SRD: QpType = QpType::RESERVED1;

/// Bits of a region's keys that a client in the kernel changes before each registration.
pub(super) const KEY_GENERATION: u32 = ffi::EFA_MR_GEN_MASK;

/// Minimum bytes of input of `create_cq`: the input of the interface's first release.
pub(super) const CREATE_CQ_MIN_INPUT: usize =
    offset_of!(ffi::efa_ibv_create_cq, num_sub_cqs) + size_of::<u16>();

/// Minimum bytes of input of `create_qp`: the input of the interface's first release.
pub(super) const CREATE_QP_MIN_INPUT: usize =
    offset_of!(ffi::efa_ibv_create_qp, driver_qp_type) + size_of::<u32>();

/// Attribute of the method that creates a completion counter: memory for the successes.
pub(super) const CREATE_COMP_CNTR_COMP_BUFFER: u16 =
    ffi::efa_comp_cntr_create_attrs_EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER as u16;

/// Attribute of the method that creates a completion counter: memory for the failures.
pub(super) const CREATE_COMP_CNTR_ERR_BUFFER: u16 =
    ffi::efa_comp_cntr_create_attrs_EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER as u16;

bits! {
    /// Limits that the userspace library supports.
    pub struct SupportedCaps(u32) {
        /// Limits on the units written between two doorbells.
        0:0 tx_batch => bool,
        /// Minimum depths of send queues.
        1:1 min_sq_wr => bool,
    }
}

layout! {
    /// Input of `alloc_ucontext`.
    pub struct AllocUcontextCmd[8] {
        /// Limits that the library supports.
        supported_caps @ 0: SupportedCaps,
    }
}

bits! {
    /// Verbs for which the library may expect output.
    pub struct UdataCmds(u32) {
        /// `query_device`.
        0:0 query_device => bool,
        /// `create_ah`.
        1:1 create_ah => bool,
    }
}

layout! {
    /// Output of `alloc_ucontext`.
    pub struct AllocUcontextResp[24] {
        /// No bit is defined.
        comp_mask @ 0: u32,
        /// Verbs for which the library may expect output.
        cmds_supp_udata_mask @ 4: UdataCmds,
        /// Sub-queues of a completion queue.
        sub_cqs_per_cq @ 8: u16,
        /// Bytes of inline data in a send work request of 64 bytes.
        inline_buf_size @ 10: u16,
        /// Bytes of a low-latency send queue.
        max_llq_size @ 12: u32,
        /// Units of 64 bytes that may be written between two doorbells; 0 means any number.
        max_tx_batch @ 16: u16,
        /// Minimum number of work requests in a send queue.
        min_sq_wr @ 18: u16,
        /// Bytes of inline data in the largest send work request.
        inline_buf_size_ex @ 20: u16,
    }
}

layout! {
    /// Output of `alloc_pd`.
    pub struct AllocPdResp[8] {
        /// No bit is defined.
        comp_mask @ 0: u32,
        /// Number of the protection domain.
        pdn @ 4: u16,
    }
}

layout! {
    /// Output of `create_ah`.
    pub struct CreateAhResp[8] {
        /// No bit is defined.
        comp_mask @ 0: u32,
        /// Number of the address handle.
        efa_address_handle @ 4: u16,
    }
}

bits! {
    /// Properties of a new completion queue. Other bits have no effect.
    pub struct CreateCqFlags(u8) {
        /// Completions can raise events.
        0:0 with_completion_channel => bool,
        /// Completions of messages from unknown peers hold the peer's GID.
        1:1 with_sgid => bool,
        /// Completions of sends hold request ids of 64 bits.
        2:2 with_sq_comp_64_bit_req_id => bool,
    }
}

layout! {
    /// Input of `create_cq`.
    pub struct CreateCqCmd[16] {
        /// No bit is defined.
        comp_mask @ 0: u32,
        /// Bytes of an entry.
        cq_entry_size @ 4: u32,
        /// Number of sub-queues.
        num_sub_cqs @ 8: u16,
        /// Properties.
        flags @ 10: CreateCqFlags,
        /// Must be zero.
        reserved @ 11: [u8; 5],
    }
}

bits! {
    /// Optional fields of a `create_cq` response.
    pub struct CreateCqRespMask(u32) {
        /// The doorbell's offset and key.
        0:0 db_off => bool,
    }
}

layout! {
    /// Output of `create_cq`.
    pub struct CreateCqResp[40] {
        /// Valid optional fields.
        comp_mask @ 0: CreateCqRespMask,
        /// Key to map the ring by.
        q_mmap_key @ 8: u64,
        /// Bytes of the ring.
        q_mmap_size @ 16: u64,
        /// Number of the completion queue.
        cq_idx @ 24: u16,
        /// Offset of the doorbell in its page.
        db_off @ 28: u32,
        /// Key to map the doorbell by.
        db_mmap_key @ 32: u64,
    }
}

bits! {
    /// Properties of a new queue pair.
    pub struct CreateQpCmdFlags(u16) {
        /// Incoming RDMA writes with immediate consume no receive work request.
        0:0 unsolicited_write_recv => bool,
        /// Request ids of the send queue have 64 bits.
        1:1 sq_64_bit_req_id => bool,
        /// Undefined bits.
        15:2 unknown => u16,
    }
}

layout! {
    /// Input of `create_qp`.
    pub struct CreateQpCmd[24] {
        /// No bit is defined.
        comp_mask @ 0: u32,
        /// Bytes of the receive ring.
        rq_ring_size @ 4: u32,
        /// Bytes of the send ring.
        sq_ring_size @ 8: u32,
        /// Driver-defined transport, for queue pairs of type `IB_QPT_DRIVER`.
        driver_qp_type @ 12: u32,
        /// Properties.
        flags @ 16: CreateQpCmdFlags,
        /// Service level.
        sl @ 18: u8,
        /// Must be zero.
        reserved @ 19: [u8; 5],
    }
}

layout! {
    /// Output of `create_qp`. Offsets are those within a page.
    pub struct CreateQpResp[64] {
        /// No bit is defined.
        comp_mask @ 0: u32,
        /// Offset of the receive queue's doorbell.
        rq_db_offset @ 4: u32,
        /// Offset of the send queue's doorbell.
        sq_db_offset @ 8: u32,
        /// Offset of the send ring.
        llq_desc_offset @ 12: u32,
        /// Key to map the receive ring by.
        rq_mmap_key @ 16: u64,
        /// Bytes of the receive ring.
        rq_mmap_size @ 24: u64,
        /// Key to map the receive queue's doorbell by.
        rq_db_mmap_key @ 32: u64,
        /// Key to map the send queue's doorbell by.
        sq_db_mmap_key @ 40: u64,
        /// Key to map the send ring by.
        llq_desc_mmap_key @ 48: u64,
        /// Sub-queue of the send queue's completion queue.
        send_sub_cq_idx @ 56: u16,
        /// Sub-queue of the receive queue's completion queue.
        recv_sub_cq_idx @ 58: u16,
    }
}

bits! {
    /// Capabilities of the device and the driver.
    pub struct DeviceCaps(u32) {
        /// RDMA read.
        0:0 rdma_read => bool,
        /// The number of RNR retries can be set.
        1:1 rnr_retry => bool,
        /// Completion queues can have a completion channel.
        2:2 cq_notifications => bool,
        /// Completions can hold the sender's GID.
        3:3 cq_with_sgid => bool,
        /// Host memory may be polled for received data in units of 128 bytes.
        4:4 data_polling_128 => bool,
        /// RDMA write.
        5:5 rdma_write => bool,
        /// RDMA write with immediate that consumes no receive work request.
        6:6 unsolicited_write_recv => bool,
        /// Completion queues can be in memory that the application provides.
        7:7 cq_with_ext_mem => bool,
        /// Completion counters.
        8:8 comp_cntr => bool,
        /// Request ids of send queues can have 64 bits.
        9:9 sq_64_bit_req_id => bool,
    }
}

layout! {
    /// Output of `query_device`.
    pub struct QueryDeviceResp[24] {
        /// No bit is defined.
        comp_mask @ 0: u32,
        /// Maximum number of work requests in a send queue.
        max_sq_wr @ 4: u32,
        /// Maximum number of work requests in a receive queue.
        max_rq_wr @ 8: u32,
        /// Maximum number of buffers in a send work request.
        max_sq_sge @ 12: u16,
        /// Maximum number of buffers in a receive work request.
        max_rq_sge @ 14: u16,
        /// Maximum number of bytes of one RDMA operation.
        max_rdma_size @ 16: u32,
        /// Capabilities of the device and the driver.
        device_caps @ 20: DeviceCaps,
    }
}

/// Checks the size of a layout and the offsets of its fields against a C structure.
macro_rules! matches_c {
    ($layout:ident = $c:ident { $($field:ident @ $offset:literal,)* }) => {
        const _: () = {
            assert!($layout::SIZE == size_of::<ffi::$c>());
            $(assert!(offset_of!(ffi::$c, $field) == $offset);)*
        };
    };
}

matches_c! {
    AllocUcontextCmd = efa_ibv_alloc_ucontext_cmd {
        supported_caps @ 0,
    }
}

matches_c! {
    AllocUcontextResp = efa_ibv_alloc_ucontext_resp {
        comp_mask @ 0,
        cmds_supp_udata_mask @ 4,
        sub_cqs_per_cq @ 8,
        inline_buf_size @ 10,
        max_llq_size @ 12,
        max_tx_batch @ 16,
        min_sq_wr @ 18,
        inline_buf_size_ex @ 20,
    }
}

matches_c! {
    AllocPdResp = efa_ibv_alloc_pd_resp {
        comp_mask @ 0,
        pdn @ 4,
    }
}

matches_c! {
    CreateAhResp = efa_ibv_create_ah_resp {
        comp_mask @ 0,
        efa_address_handle @ 4,
    }
}

matches_c! {
    CreateCqCmd = efa_ibv_create_cq {
        comp_mask @ 0,
        cq_entry_size @ 4,
        num_sub_cqs @ 8,
        flags @ 10,
        reserved_58 @ 11,
    }
}

matches_c! {
    CreateCqResp = efa_ibv_create_cq_resp {
        comp_mask @ 0,
        q_mmap_key @ 8,
        q_mmap_size @ 16,
        cq_idx @ 24,
        db_off @ 28,
        db_mmap_key @ 32,
    }
}

matches_c! {
    CreateQpCmd = efa_ibv_create_qp {
        comp_mask @ 0,
        rq_ring_size @ 4,
        sq_ring_size @ 8,
        driver_qp_type @ 12,
        flags @ 16,
        sl @ 18,
        reserved_98 @ 19,
    }
}

matches_c! {
    CreateQpResp = efa_ibv_create_qp_resp {
        comp_mask @ 0,
        rq_db_offset @ 4,
        sq_db_offset @ 8,
        llq_desc_offset @ 12,
        rq_mmap_key @ 16,
        rq_mmap_size @ 24,
        rq_db_mmap_key @ 32,
        sq_db_mmap_key @ 40,
        llq_desc_mmap_key @ 48,
        send_sub_cq_idx @ 56,
        recv_sub_cq_idx @ 58,
    }
}

matches_c! {
    QueryDeviceResp = efa_ibv_ex_query_device_resp {
        comp_mask @ 0,
        max_sq_wr @ 4,
        max_rq_wr @ 8,
        max_sq_sge @ 12,
        max_rq_sge @ 14,
        max_rdma_size @ 16,
        device_caps @ 20,
    }
}
