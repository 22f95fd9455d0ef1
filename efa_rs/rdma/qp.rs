// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs.

use kernel::{
    error::from_result,
    ffi::c_int, //
};

use super::{
    context::Context,
    cq::Cq,
    details::{
        Described,
        Details,
        QUEUE_DETAILS, //
    },
    device::provider,
    object::Object,
    ops::{
        Ops,
        Pd, //
    },
    provider::Provider,
    udata::Udata, //
};
use crate::{
    ffi,
    sys::errno::eopnotsupp, //
};

/// A queue pair with its provider's data.
pub(super) type Qp<T> = Object<Described<ffi::ib_qp, QUEUE_DETAILS>, <T as Provider>::Qp>;

/// Transport of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QpType {
    /// Unreliable datagram.
    Ud,
    /// One that the driver defines.
    Driver,
    /// Another one.
    Other,
}

impl QpType {
    fn from_raw(raw: ffi::ib_qp_type) -> Self {
        match raw {
            ffi::ib_qp_type_IB_QPT_UD => Self::Ud,
            ffi::ib_qp_type_IB_QPT_DRIVER => Self::Driver,
            _ => Self::Other,
        }
    }
}

/// Capacity of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct QpCap {
    /// Outstanding send work requests.
    pub(crate) max_send_wr: u32,
    /// Outstanding receive work requests.
    pub(crate) max_recv_wr: u32,
    /// Buffers in a send work request.
    pub(crate) max_send_sge: u32,
    /// Buffers in a receive work request.
    pub(crate) max_recv_sge: u32,
    /// Bytes of inline data in a send work request.
    pub(crate) max_inline_data: u32,
}

impl QpCap {
    fn from_raw(raw: &ffi::ib_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        }
    }

    fn into_raw(self) -> ffi::ib_qp_cap {
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

/// What a new queue pair shall be.
pub(crate) struct QpRequest<'a, T: Provider> {
    /// Its protection domain.
    pub(crate) pd: &'a T::Pd,
    /// Completion queue of the send queue, which some transports do without.
    pub(crate) send_cq: Option<&'a T::Cq>,
    /// Completion queue of the receive queue, which some transports do without.
    pub(crate) recv_cq: Option<&'a T::Cq>,
    /// Its transport.
    pub(crate) qp_type: QpType,
    /// Its capacity.
    pub(crate) cap: QpCap,
    /// Whether it is to use a shared receive queue.
    pub(crate) has_srq: bool,
    /// Flags that the core defines.
    pub(crate) create_flags: u32,
}

/// A queue pair as its provider has made it.
pub(crate) struct NewQp<T> {
    /// The provider's data.
    pub(crate) data: T,
    /// Its number.
    pub(crate) qp_num: u32,
    /// What to tell of it.
    pub(crate) details: Details<QUEUE_DETAILS>,
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
    /// Returns the state that has a number.
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

/// Which attributes of a queue pair are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct QpAttrMask(u32);

impl QpAttrMask {
    /// None.
    pub(crate) const NONE: Self = Self(0);
    /// State.
    pub(crate) const STATE: Self = Self(ffi::ib_qp_attr_mask_IB_QP_STATE);
    /// State that the caller takes it to be in.
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
    /// How often to try again if the receiver is not ready.
    pub(crate) const RNR_RETRY: Self = Self(ffi::ib_qp_attr_mask_IB_QP_RNR_RETRY);
    /// Capacity.
    pub(crate) const CAP: Self = Self(ffi::ib_qp_attr_mask_IB_QP_CAP);

    /// Returns the union of both.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` are in here.
    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Attributes of a queue pair that are to be changed.
pub(crate) struct QpAttr {
    /// Which of the other fields count.
    pub(crate) mask: QpAttrMask,
    /// State to go to.
    pub(crate) state: QpState,
    /// State that the caller takes it to be in.
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
    /// How often to try again if the receiver is not ready.
    pub(crate) rnr_retry: u8,
}

/// Attributes of a queue pair as they are; those that are not here are zero.
pub(crate) struct QueriedQp {
    /// State.
    pub(crate) state: u32,
    /// Q_Key.
    pub(crate) qkey: u32,
    /// Packet sequence number of the send queue.
    pub(crate) sq_psn: u32,
    /// Whether the send queue is being drained.
    pub(crate) sq_draining: bool,
    /// Port.
    pub(crate) port_num: u32,
    /// How often it tries again if the receiver is not ready.
    pub(crate) rnr_retry: u8,
    /// Capacity.
    pub(crate) cap: QpCap,
}

/// Returns whether the InfiniBand specification allows a UD queue pair to go from one state to the
/// other with these attributes given.
pub(crate) fn ud_transition_is_ok(from: QpState, to: QpState, mask: QpAttrMask) -> bool {
    // SAFETY: The function has no precondition.
    unsafe { ffi::ib_modify_qp_is_ok(from as u32, to as u32, ffi::ib_qp_type_IB_QPT_UD, mask.0) }
}

impl<T: Provider> Ops<T> {
    pub(super) extern "C" fn create_qp(
        qp: *mut ffi::ib_qp,
        init_attr: *mut ffi::ib_qp_init_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the documentation of `ops`. The core has allocated the object for this
            // call, of the size that the table gives, and holds references to what it uses.
            unsafe {
                let attr = &*init_attr;
                let cq =
                    |cq: *mut ffi::ib_cq| (!cq.is_null()).then(|| &Cq::<T>::data(cq.cast()).data);
                let udata = Udata::from_raw(udata);
                let request = QpRequest::<T> {
                    pd: Pd::<T>::data((*qp).pd),
                    send_cq: cq(attr.send_cq),
                    recv_cq: cq(attr.recv_cq),
                    qp_type: QpType::from_raw(attr.qp_type),
                    cap: QpCap::from_raw(&attr.cap),
                    has_srq: !attr.srq.is_null(),
                    create_flags: attr.create_flags,
                };
                let new = provider::<T>((*qp).device).create_qp(
                    &Context::of(&udata)?,
                    &request,
                    &udata,
                )?;
                (*qp).qp_num = new.qp_num;
                Described::describe(qp, new.details);
                Qp::<T>::init(qp.cast(), new.data);
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn modify_qp(
        qp: *mut ffi::ib_qp,
        attr: *mut ffi::ib_qp_attr,
        mask: c_int,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // CAST: A set of bits.
            let mask = mask as u32;
            if mask & !ffi::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS != 0 {
                return Err(eopnotsupp());
            }

            // SAFETY: See the documentation of `ops`. The object was created by `create_qp`.
            unsafe {
                let raw = &*attr;
                let attr = QpAttr {
                    mask: QpAttrMask(mask),
                    // What the mask does not name is not looked at.
                    state: QpState::from_raw(raw.qp_state).unwrap_or(QpState::Err),
                    cur_state: QpState::from_raw(raw.cur_qp_state).unwrap_or(QpState::Err),
                    en_sqd_async_notify: raw.en_sqd_async_notify != 0,
                    pkey_index: raw.pkey_index,
                    port_num: raw.port_num,
                    qkey: raw.qkey,
                    sq_psn: raw.sq_psn,
                    rnr_retry: raw.rnr_retry,
                };
                provider::<T>((*qp).device).modify_qp(
                    Qp::<T>::data(qp.cast()),
                    &attr,
                    &Udata::from_raw(udata),
                )?;
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn query_qp(
        qp: *mut ffi::ib_qp,
        attr: *mut ffi::ib_qp_attr,
        mask: c_int,
        init_attr: *mut ffi::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the documentation of `ops`. The object was created by `create_qp`; both
            // structures consist of numbers and pointers, for which zeroes are valid.
            unsafe {
                // CAST: A set of bits.
                let queried = provider::<T>((*qp).device)
                    .query_qp(Qp::<T>::data(qp.cast()), QpAttrMask(mask as u32))?;
                attr.write_bytes(0, 1);
                (*attr).qp_state = queried.state;
                (*attr).qkey = queried.qkey;
                (*attr).sq_psn = queried.sq_psn;
                (*attr).sq_draining = queried.sq_draining.into();
                (*attr).port_num = queried.port_num;
                (*attr).rnr_retry = queried.rnr_retry;
                (*attr).cap = queried.cap.into_raw();

                init_attr.write_bytes(0, 1);
                (*init_attr).qp_type = (*qp).qp_type;
                (*init_attr).recv_cq = (*qp).recv_cq;
                (*init_attr).send_cq = (*qp).send_cq;
                (*init_attr).qp_context = (*qp).qp_context;
                (*init_attr).cap = queried.cap.into_raw();
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn destroy_qp(qp: *mut ffi::ib_qp, _udata: *mut ffi::ib_udata) -> c_int {
        from_result(|| {
            // SAFETY: See the documentation of `ops`. The object was created by `create_qp`; if its
            // destruction succeeds, the core frees it after this call.
            unsafe {
                provider::<T>((*qp).device).destroy_qp(Qp::<T>::data(qp.cast()))?;
                drop(Qp::<T>::take(qp.cast()));
            }
            Ok(0)
        })
    }
}
