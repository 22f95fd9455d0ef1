// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Driver-specific input and output of verbs, exchanged with the userspace library.
//!
//! These are the structures and constants of [`include/uapi/rdma/efa-abi.h`].
//!
//! [`include/uapi/rdma/efa-abi.h`]: srctree/include/uapi/rdma/efa-abi.h

use core::mem::offset_of;

use crate::{
    ffi,
    rdma::DriverId, //
};

#[cfg(kverbs)]
use crate::rdma::QpType;

pub(super) use crate::ffi::{
    efa_ibv_alloc_pd_resp as AllocPdResp,
    efa_ibv_alloc_ucontext_cmd as AllocUcontextCmd,
    efa_ibv_alloc_ucontext_resp as AllocUcontextResp,
    efa_ibv_create_ah_resp as CreateAhResp,
    efa_ibv_create_cq as CreateCqCmd,
    efa_ibv_create_cq_resp as CreateCqResp,
    efa_ibv_create_qp as CreateQpCmd,
    efa_ibv_create_qp_resp as CreateQpResp,
    efa_ibv_ex_query_device_resp as QueryDeviceResp,
    efa_ibv_user_cmds_supp_udata_EFA_USER_CMDS_SUPP_UDATA_CREATE_AH as UDATA_CREATE_AH,
    efa_ibv_user_cmds_supp_udata_EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE as UDATA_QUERY_DEVICE,
    EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR as SUPP_CAPS_MIN_SQ_WR,
    EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH as SUPP_CAPS_TX_BATCH,
    EFA_CREATE_CQ_RESP_DB_OFF as CREATE_CQ_RESP_DB_OFF,
    EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL as CREATE_CQ_WITH_COMPLETION_CHANNEL,
    EFA_CREATE_CQ_WITH_SGID as CREATE_CQ_WITH_SGID,
    EFA_CREATE_CQ_WITH_SQ_COMP_64_BIT_REQ_ID as CREATE_CQ_WITH_SQ_COMP_64_BIT_REQ_ID,
    EFA_CREATE_QP_WITH_SQ_64_BIT_REQ_ID as CREATE_QP_WITH_SQ_64_BIT_REQ_ID,
    EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV as CREATE_QP_WITH_UNSOLICITED_WRITE_RECV,
    EFA_QUERY_DEVICE_CAPS_COMP_CNTR as CAPS_COMP_CNTR,
    EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS as CAPS_CQ_NOTIFICATIONS,
    EFA_QUERY_DEVICE_CAPS_CQ_WITH_EXT_MEM as CAPS_CQ_WITH_EXT_MEM,
    EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID as CAPS_CQ_WITH_SGID,
    EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128 as CAPS_DATA_POLLING_128,
    EFA_QUERY_DEVICE_CAPS_RDMA_READ as CAPS_RDMA_READ,
    EFA_QUERY_DEVICE_CAPS_RDMA_WRITE as CAPS_RDMA_WRITE,
    EFA_QUERY_DEVICE_CAPS_RNR_RETRY as CAPS_RNR_RETRY,
    EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID as CAPS_SQ_64_BIT_REQ_ID,
    EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV as CAPS_UNSOLICITED_WRITE_RECV, //
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
#[cfg(kverbs)]
pub(super) const KERNEL_QP_TYPE_SRD: QpType = QpType::RESERVED1;

/// Bits of a region's keys that a client in the kernel changes before each registration.
#[cfg(kverbs)]
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
