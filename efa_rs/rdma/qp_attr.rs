// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Properties of queue pairs: transport, capacity, state, and attributes that can be modified.

use crate::ffi;

/// Transport of a queue pair: one of `enum ib_qp_type`.
///
/// # Examples
///
/// ```
/// use kernel::rdma::QpType;
///
/// let qp_type = QpType::UD;
/// assert!(qp_type != QpType::DRIVER);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct QpType(ffi::ib_qp_type);

impl QpType {
    /// Unreliable datagram.
    pub(crate) const UD: Self = Self(ffi::ib_qp_type_IB_QPT_UD);
    /// Driver-defined transport, for clients in the kernel.
    #[cfg(kverbs)]
    pub(crate) const RESERVED1: Self = Self(ffi::ib_qp_type_IB_QPT_RESERVED1);
    /// Driver-defined transport, for programs.
    pub(crate) const DRIVER: Self = Self(ffi::ib_qp_type_IB_QPT_DRIVER);

    pub(super) fn from_raw(raw: ffi::ib_qp_type) -> Self {
        Self(raw)
    }
}

/// Capacity of a queue pair.
///
/// # Examples
///
/// ```
/// use kernel::rdma::QpCap;
///
/// let cap = QpCap {
///     max_send_wr: 64,
///     max_send_sge: 1,
///     ..QpCap::default()
/// };
/// assert_eq!(cap.max_recv_wr, 0);
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCap {
    /// Limit on outstanding send work requests.
    pub(crate) max_send_wr: u32,
    /// Limit on outstanding receive work requests.
    pub(crate) max_recv_wr: u32,
    /// Limit on buffers in a send work request.
    pub(crate) max_send_sge: u32,
    /// Limit on buffers in a receive work request.
    pub(crate) max_recv_sge: u32,
    /// Limit on inline data in a send work request in bytes.
    pub(crate) max_inline_data: u32,
}

impl QpCap {
    pub(super) fn from_raw(raw: &ffi::ib_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        }
    }

    pub(super) fn into_raw(self) -> ffi::ib_qp_cap {
        ffi::ib_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
            max_rdma_ctxs: 0,
        }
    }
}

/// State of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum QpState {
    /// Newly created, or reset.
    Reset = ffi::ib_qp_state_IB_QPS_RESET,
    /// Receive work requests may be posted.
    Init = ffi::ib_qp_state_IB_QPS_INIT,
    /// Ready to receive.
    Rtr = ffi::ib_qp_state_IB_QPS_RTR,
    /// Ready to send.
    Rts = ffi::ib_qp_state_IB_QPS_RTS,
    /// Send queue drained.
    Sqd = ffi::ib_qp_state_IB_QPS_SQD,
    /// Send queue in error.
    Sqe = ffi::ib_qp_state_IB_QPS_SQE,
    /// In error.
    Err = ffi::ib_qp_state_IB_QPS_ERR,
}

impl QpState {
    /// Converts the core's number of a state. Returns `None` for an unknown one.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::rdma::QpState;
    ///
    /// assert!(QpState::from_raw(QpState::Rts as u32) == Some(QpState::Rts));
    /// assert!(QpState::from_raw(1000).is_none());
    /// ```
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            ffi::ib_qp_state_IB_QPS_RESET => Self::Reset,
            ffi::ib_qp_state_IB_QPS_INIT => Self::Init,
            ffi::ib_qp_state_IB_QPS_RTR => Self::Rtr,
            ffi::ib_qp_state_IB_QPS_RTS => Self::Rts,
            ffi::ib_qp_state_IB_QPS_SQD => Self::Sqd,
            ffi::ib_qp_state_IB_QPS_SQE => Self::Sqe,
            ffi::ib_qp_state_IB_QPS_ERR => Self::Err,
            _ => return None,
        })
    }
}

/// A set of attributes of a queue pair.
///
/// # Examples
///
/// ```
/// use kernel::rdma::QpAttrMask;
///
/// const KNOWN: QpAttrMask = QpAttrMask::STATE.or(QpAttrMask::QKEY);
///
/// assert!(KNOWN.contains(QpAttrMask::QKEY));
/// assert!(!KNOWN.contains(QpAttrMask::STATE.or(QpAttrMask::SQ_PSN)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct QpAttrMask(u32);

impl QpAttrMask {
    /// No attributes.
    pub(crate) const NONE: Self = Self(0);
    /// State.
    pub(crate) const STATE: Self = Self(ffi::ib_qp_attr_mask_IB_QP_STATE);
    /// Current state, as assumed by the caller.
    pub(crate) const CUR_STATE: Self = Self(ffi::ib_qp_attr_mask_IB_QP_CUR_STATE);
    /// Whether to notify when the send queue is drained.
    pub(crate) const EN_SQD_ASYNC_NOTIFY: Self =
        Self(ffi::ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY);
    /// Index of the partition key.
    pub(crate) const PKEY_INDEX: Self = Self(ffi::ib_qp_attr_mask_IB_QP_PKEY_INDEX);
    /// Port.
    pub(crate) const PORT: Self = Self(ffi::ib_qp_attr_mask_IB_QP_PORT);
    /// Q_Key.
    pub(crate) const QKEY: Self = Self(ffi::ib_qp_attr_mask_IB_QP_QKEY);
    /// Packet sequence number of the send queue.
    pub(crate) const SQ_PSN: Self = Self(ffi::ib_qp_attr_mask_IB_QP_SQ_PSN);
    /// Number of retries if the receiver is not ready.
    pub(crate) const RNR_RETRY: Self = Self(ffi::ib_qp_attr_mask_IB_QP_RNR_RETRY);
    /// Capacity.
    pub(crate) const CAP: Self = Self(ffi::ib_qp_attr_mask_IB_QP_CAP);

    pub(super) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the union of both.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` are in this set.
    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Attributes of a queue pair that a caller modifies.
pub(crate) struct QpAttr {
    /// Attributes to modify. Other fields are ignored.
    pub(crate) mask: QpAttrMask,
    /// New state.
    pub(crate) state: QpState,
    /// Current state, as assumed by the caller.
    pub(crate) cur_state: QpState,
    /// Whether to notify when the send queue is drained.
    pub(crate) en_sqd_async_notify: bool,
    /// Index of the partition key.
    pub(crate) pkey_index: u16,
    /// Port.
    pub(crate) port_num: u32,
    /// Q_Key.
    pub(crate) qkey: u32,
    /// Packet sequence number of the send queue.
    pub(crate) sq_psn: u32,
    /// Number of retries if the receiver is not ready.
    pub(crate) rnr_retry: u8,
}

/// Current attributes of a queue pair. Attributes that are missing here are zero.
pub(crate) struct QueriedQp {
    /// State.
    pub(crate) state: QpState,
    /// Q_Key.
    pub(crate) qkey: u32,
    /// Packet sequence number of the send queue.
    pub(crate) sq_psn: u32,
    /// Whether the send queue is being drained.
    pub(crate) sq_draining: bool,
    /// Port.
    pub(crate) port_num: u32,
    /// Number of retries if the receiver is not ready.
    pub(crate) rnr_retry: u8,
    /// Capacity.
    pub(crate) cap: QpCap,
}

impl QueriedQp {
    pub(super) fn to_raw(&self) -> ffi::ib_qp_attr {
        ffi::ib_qp_attr {
            qp_state: self.state as ffi::ib_qp_state,
            qkey: self.qkey,
            sq_psn: self.sq_psn,
            sq_draining: self.sq_draining.into(),
            port_num: self.port_num,
            rnr_retry: self.rnr_retry,
            cap: self.cap.into_raw(),
            ..Default::default()
        }
    }
}

impl QpAttr {
    pub(super) fn from_raw(raw: &ffi::ib_qp_attr, mask: u32) -> Self {
        Self {
            mask: QpAttrMask(mask),
            // Attributes that the mask does not name are ignored.
            state: QpState::from_raw(raw.qp_state).unwrap_or(QpState::Err),
            cur_state: QpState::from_raw(raw.cur_qp_state).unwrap_or(QpState::Err),
            en_sqd_async_notify: raw.en_sqd_async_notify != 0,
            pkey_index: raw.pkey_index,
            port_num: raw.port_num,
            qkey: raw.qkey,
            sq_psn: raw.sq_psn,
            rnr_retry: raw.rnr_retry,
        }
    }
}

/// Returns whether the InfiniBand specification allows a UD queue pair to change from one state to
/// the other with these attributes.
///
/// # Examples
///
/// ```
/// use kernel::rdma::{ud_transition_is_ok, QpAttrMask, QpState};
///
/// let mask = QpAttrMask::STATE;
/// assert!(ud_transition_is_ok(QpState::Init, QpState::Rtr, mask));
/// assert!(!ud_transition_is_ok(QpState::Reset, QpState::Rts, mask));
/// ```
pub(crate) fn ud_transition_is_ok(from: QpState, to: QpState, mask: QpAttrMask) -> bool {
    // SAFETY: The function has no precondition.
    unsafe { ffi::ib_modify_qp_is_ok(from as u32, to as u32, QpType::UD.0, mask.0) }
}
