// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Status and operation of work requests in their completions.

use crate::ffi;

/// Status of a completed work request.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcStatus {
    /// The work request has succeeded.
    Success = ffi::ib_wc_status_IB_WC_SUCCESS,
    /// The data is longer than allowed.
    LocLenErr = ffi::ib_wc_status_IB_WC_LOC_LEN_ERR,
    /// The queue pair could not execute the work request.
    LocQpOpErr = ffi::ib_wc_status_IB_WC_LOC_QP_OP_ERR,
    /// No memory region lets the queue pair use a buffer.
    LocProtErr = ffi::ib_wc_status_IB_WC_LOC_PROT_ERR,
    /// The work request was flushed, as the queue pair is in error.
    WrFlushErr = ffi::ib_wc_status_IB_WC_WR_FLUSH_ERR,
    /// The response of the peer is invalid.
    BadRespErr = ffi::ib_wc_status_IB_WC_BAD_RESP_ERR,
    /// The peer has rejected the request.
    RemInvReqErr = ffi::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
    /// No memory region of the peer lets the queue pair use its memory.
    RemAccessErr = ffi::ib_wc_status_IB_WC_REM_ACCESS_ERR,
    /// The peer has no receive buffer.
    RnrRetryExcErr = ffi::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    /// The peer has no such queue pair.
    RemInvRdReqErr = ffi::ib_wc_status_IB_WC_REM_INV_RD_REQ_ERR,
    /// The peer could not execute the operation.
    RemOpErr = ffi::ib_wc_status_IB_WC_REM_OP_ERR,
    /// The peer has aborted the operation.
    RemAbortErr = ffi::ib_wc_status_IB_WC_REM_ABORT_ERR,
    /// The peer has not responded in time.
    RespTimeoutErr = ffi::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
    /// Another failure.
    GeneralErr = ffi::ib_wc_status_IB_WC_GENERAL_ERR,
}

/// Operation of a completed work request.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcOpcode {
    /// A send.
    Send = ffi::ib_wc_opcode_IB_WC_SEND,
    /// An RDMA write.
    RdmaWrite = ffi::ib_wc_opcode_IB_WC_RDMA_WRITE,
    /// An RDMA read.
    RdmaRead = ffi::ib_wc_opcode_IB_WC_RDMA_READ,
    /// A registration of memory.
    RegMr = ffi::ib_wc_opcode_IB_WC_REG_MR,
    /// An invalidation of a registration.
    LocalInv = ffi::ib_wc_opcode_IB_WC_LOCAL_INV,
    /// A receive of a send.
    Recv = ffi::ib_wc_opcode_IB_WC_RECV,
    /// A receive of an RDMA write with immediate data.
    RecvRdmaWithImm = ffi::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
}
