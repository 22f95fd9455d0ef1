// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of completion counters.

use kernel::{
    error::from_result,
    ffi::c_int, //
};

use super::{
    qp,
    Ops, //
};
use crate::{
    ffi,
    rdma::{
        comp_cntr::{
            CompCntrEntry,
            CompCntrInitAttr,
            CompCntrModifyOp,
            CompletionCounter,
            QpAttachOps, //
        },
        object,
        provider::Provider,
        udata::Udata, //
    },
};

/// A completion counter with the provider's data.
pub(super) type Object<'a, P> =
    object::Object<ffi::ib_comp_cntr, (), <P as Provider>::CompCntr<'a>>;

impl<P: Provider> Ops<P> {
    pub(super) extern "C" fn query_comp_cntr_caps(
        device: *mut ffi::ib_device,
        caps: *mut ffi::ib_comp_cntr_caps,
        _attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: By the core's promise the device is registered; it passes room for the structure.
        unsafe {
            let found = <P::CompCntr<'_> as CompletionCounter<_, _, _>>::caps(Self::device(device));
            (*caps).max_counters = found.max_counters;
            (*caps).max_value = found.max_value;
            (*caps).supported_qp_attach_ops = found.supported_qp_attach_ops.into_raw();
        }
        0
    }

    pub(super) extern "C" fn create_comp_cntr(
        counter: *mut ffi::ib_comp_cntr,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered, and the context one of ours. It has
            // allocated the object for this call, of the size that the table gives.
            unsafe {
                let raw = (*counter).device;
                let udata = Udata::of(attrs);
                let context = Self::context(&udata)?;
                let attr = CompCntrInitAttr::new(raw, attrs);
                let init = <P::CompCntr<'_> as CompletionCounter<_, _, _>>::create(
                    Self::device(raw),
                    &context,
                    &attr,
                );
                Object::<'_, P>::init(counter, init)?;
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn modify_comp_cntr(
        counter: *mut ffi::ib_comp_cntr,
        entry: ffi::ib_comp_cntr_entry,
        op: ffi::ib_comp_cntr_modify_op,
        value: u64,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the object was created by `create_comp_cntr`.
            unsafe {
                Object::<'_, P>::data(counter).modify(
                    Self::device((*counter).device),
                    CompCntrEntry::from_raw(entry),
                    CompCntrModifyOp::from_raw(op, value),
                )?;
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn qp_attach_comp_cntr(
        qp: *mut ffi::ib_qp,
        counter: *mut ffi::ib_comp_cntr,
        attr: *mut ffi::ib_qp_attach_comp_cntr_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise both objects were created by this table's functions; the
            // attributes are the call's.
            unsafe {
                let ops = QpAttachOps::from_raw((*attr).op_mask);
                let pair = qp::Object::<'_, P>::data(qp);
                let device = Self::device((*counter).device);
                Object::<'_, P>::data(counter).attach(device, pair, ops)?;
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn destroy_comp_cntr(counter: *mut ffi::ib_comp_cntr) -> c_int {
        // SAFETY: By the core's promise the object was created by `create_comp_cntr`, and is not used after this
        // call.
        unsafe {
            Object::<'_, P>::data(counter).destroy(Self::device((*counter).device));
            Object::<'_, P>::drop_data(counter);
        }
        0
    }
}
