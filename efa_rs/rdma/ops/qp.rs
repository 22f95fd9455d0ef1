// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of queue pairs.

use core::ptr::NonNull;

use kernel::{
    bindings,
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    details,
    Ops, //
};
use crate::{
    ffi::{
        self,
        SendWrLayout, //
    },
    rdma::{
        kernel_client::KernelClient,
        object,
        provider::Provider,
        qp::{
            QpInitAttr,
            QueuePair, //
        },
        qp_attr::{
            QpAttr,
            QpAttrMask,
            QpCap,
            QpType, //
        },
        udata::Udata,
        work::{
            QpRef,
            RecvWrs,
            SendWrs, //
        },
    },
};

/// A queue pair with its details and the provider's data.
pub(super) type Object<'a, P> = object::Object<ffi::ib_qp, Details<'a, P>, <P as Provider>::Qp<'a>>;

/// What is told of a queue pair.
type Details<'a, P> = <<P as Provider>::Qp<'a> as QueuePair<
    'a,
    <P as Provider>::Data<'a>,
    <P as Provider>::Ucontext<'a>,
    <P as Provider>::Pd<'a>,
    <P as Provider>::Cq<'a>,
    <P as Provider>::Ah<'a>,
    <P as Provider>::Mr<'a>,
>>::Details;

impl<P: Provider> Ops<P> {
    pub(super) extern "C" fn create_qp(
        qp: *mut ffi::ib_qp,
        init_attr: *mut ffi::ib_qp_init_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered, and what the queue pair refers to
            // was created, and is not destroyed before it. It has allocated the object for this call,
            // of the size that the table gives.
            unsafe {
                let device = Self::device((*qp).device);
                let raw = &*init_attr;
                let udata = Udata::from_raw(udata);
                let attr = QpInitAttr {
                    pd: Self::pd((*qp).pd),
                    send_cq: Self::cq(raw.send_cq),
                    recv_cq: Self::cq(raw.recv_cq),
                    qp_type: QpType::from_raw(raw.qp_type),
                    cap: QpCap::from_raw(&raw.cap),
                    has_srq: !raw.srq.is_null(),
                    create_flags: raw.create_flags,
                };
                if let (true, Some(client)) = (udata.is_kernel(), KernelClient::ANY) {
                    let own = QpRef::new(NonNull::new(qp).ok_or(EINVAL)?);
                    let signal_all = raw.sq_sig_type == ffi::ib_sig_type_IB_SIGNAL_ALL_WR;
                    let init = <P::Qp<'_> as QueuePair<_, _, _, _, _, _>>::create_kernel(
                        device, &attr, own, signal_all, client,
                    );
                    Object::<'_, P>::init(qp, init)?;
                } else {
                    let context = Self::context(&udata)?;
                    let init = <P::Qp<'_> as QueuePair<_, _, _, _, _, _>>::create(
                        device, &context, &attr, &udata,
                    );
                    Object::<'_, P>::init(qp, init)?;
                }

                let pair = Object::<'_, P>::data(qp);
                (*qp).qp_num = pair.qp_num();
                Object::<'_, P>::keep(qp, pair.details());
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
                return Err(EOPNOTSUPP);
            }

            // SAFETY: By the core's promise the object was created by `create_qp`; attributes and input
            // are the call's.
            unsafe {
                let attr = QpAttr::from_raw(&*attr, mask);
                let device = Self::device((*qp).device);
                Object::<'_, P>::data(qp).modify(device, &attr, &Udata::from_raw(udata))?;
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
            // SAFETY: By the core's promise the object was created by `create_qp`; it passes room for
            // both structures, which consist of numbers and pointers, for which zeroes are valid.
            unsafe {
                // CAST: A set of bits.
                let mask = QpAttrMask::from_raw(mask as u32);
                let queried = Object::<'_, P>::data(qp).query(Self::device((*qp).device), mask)?;
                attr.write_bytes(0, 1);
                (*attr).qp_state = queried.state as ffi::ib_qp_state;
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
        // SAFETY: By the core's promise the object was created by `create_qp`, and is not used after this call.
        unsafe {
            Object::<'_, P>::data(qp).destroy(Self::device((*qp).device));
            Object::<'_, P>::drop_data(qp);
        }
        0
    }

    pub(super) extern "C" fn post_send(
        qp: *mut ffi::ib_qp,
        wr: *const ffi::ib_send_wr,
        bad_wr: *mut *const ffi::ib_send_wr,
    ) -> c_int {
        // SAFETY: By the core's promise the object was created by `create_qp`. Clients have a work request
        // in the structure that its transport has for it, and all that it points to is there until it has
        // completed; there is room for a pointer to one.
        unsafe {
            let layout = match QpType::from_raw((*qp).qp_type) {
                QpType::UD => Some(&SendWrLayout::UD),
                _ => <P::Qp<'_> as QueuePair<_, _, _, _, _, _>>::SEND_WR_LAYOUT,
            };
            let Some(layout) = layout else {
                *bad_wr = wr;
                return EOPNOTSUPP.to_errno();
            };
            let mut wrs = SendWrs::<P::Ah<'_>, P::Mr<'_>>::new(wr, layout, |mr| Self::mr(mr));
            let device = Self::device((*qp).device);
            match Object::<'_, P>::data(qp).post_send(device, &mut wrs) {
                Ok(()) => 0,
                Err(error) => {
                    *bad_wr = wrs.current();
                    error.to_errno()
                }
            }
        }
    }

    pub(super) extern "C" fn post_recv(
        qp: *mut ffi::ib_qp,
        wr: *const ffi::ib_recv_wr,
        bad_wr: *mut *const ffi::ib_recv_wr,
    ) -> c_int {
        // SAFETY: By the core's promise the object was created by `create_qp`. The work requests and
        // what they point to are the client's, and valid; there is room for a pointer to one.
        unsafe {
            let mut wrs = RecvWrs::new(wr);
            let device = Self::device((*qp).device);
            match Object::<'_, P>::data(qp).post_recv(device, &mut wrs) {
                Ok(()) => 0,
                Err(error) => {
                    *bad_wr = wrs.current();
                    error.to_errno()
                }
            }
        }
    }

    pub(super) extern "C" fn fill_res_qp_entry(
        msg: *mut bindings::sk_buff,
        qp: *mut ffi::ib_qp,
    ) -> c_int {
        // SAFETY: By the core's promise the queue pair was created, which has set the details; the
        // message is being built.
        unsafe {
            let values = Object::<'_, P>::kept(qp);
            let names = <P::Qp<'_> as QueuePair<_, _, _, _, _, _>>::DETAILS;
            details::write(msg, names, values.as_ref())
        }
    }
}
