// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What `rdma resource show` tells of an object besides what the core knows.

use kernel::{
    bindings,
    error::{
        from_result,
        to_result, //
    },
    ffi::c_int,
    prelude::*, //
};

use super::{
    ops::Ops,
    provider::Provider, //
};
use crate::ffi;

/// Names and values that describe an object from its creation on.
#[derive(Clone, Copy)]
pub(crate) struct Details<const N: usize> {
    /// Those of all objects of a kind: each object has no more than its values.
    pub(crate) names: &'static [&'static CStr; N],
    /// What is told of the object by these names.
    pub(crate) values: [u64; N],
}

/// How many details a completion queue and a queue pair have.
pub(super) const QUEUE_DETAILS: usize = 4;

/// How many details a memory region has: of these objects there are most.
pub(super) const MR_DETAILS: usize = 2;

/// The core's object `C` with details.
///
/// Beside the provider's data rather than part of it, so that the core can be answered without the
/// provider.
#[repr(C)]
pub(super) struct Described<C, const N: usize> {
    core: C,
    details: Details<N>,
}

impl<C, const N: usize> Described<C, N> {
    /// Sets the details.
    ///
    /// # Safety
    ///
    /// `core` must point to an object that was allocated with room for details, and that nobody
    /// else uses.
    pub(super) unsafe fn describe(core: *mut C, details: Details<N>) {
        // SAFETY: The caller guarantees that there is room.
        unsafe { (&raw mut (*core.cast::<Self>()).details).write(details) };
    }
}

/// Writes the details of an object into a netlink message.
///
/// # Safety
///
/// `msg` must be a message that is being built, and `core` an object with so many details.
unsafe fn fill<C, const N: usize>(msg: *mut bindings::sk_buff, core: *mut C) -> c_int {
    // SAFETY: The caller guarantees it.
    unsafe {
        let details = &(*core.cast::<Described<C, N>>()).details;
        write(msg, details.names, &details.values)
    }
}

/// Writes names and their values into a netlink message.
///
/// # Safety
///
/// `msg` must be a message that is being built.
// One copy for all kinds of objects.
#[inline(never)]
unsafe fn write(
    msg: *mut bindings::sk_buff,
    names: &'static [&'static CStr],
    values: &[u64],
) -> c_int {
    from_result(|| {
        // SAFETY: The caller guarantees it; names are static.
        unsafe {
            let nest = ffi::efa_nla_nest_driver(msg);
            if nest.is_null() {
                return Err(EMSGSIZE);
            }
            for (name, value) in names.iter().zip(values) {
                to_result(ffi::rdma_nl_put_driver_u64_hex(
                    msg,
                    name.as_char_ptr(),
                    *value,
                ))
                .inspect_err(|_| ffi::efa_nla_nest_cancel(msg, nest))?;
            }
            ffi::efa_nla_nest_end(msg, nest);
        }
        Ok(0)
    })
}

impl<T: Provider> Ops<T> {
    pub(super) extern "C" fn fill_res_cq_entry(
        msg: *mut bindings::sk_buff,
        cq: *mut ffi::ib_cq,
    ) -> c_int {
        // SAFETY: See the documentation of `ops`.
        unsafe { fill::<_, QUEUE_DETAILS>(msg, cq) }
    }

    pub(super) extern "C" fn fill_res_qp_entry(
        msg: *mut bindings::sk_buff,
        qp: *mut ffi::ib_qp,
    ) -> c_int {
        // SAFETY: See the documentation of `ops`.
        unsafe { fill::<_, QUEUE_DETAILS>(msg, qp) }
    }

    pub(super) extern "C" fn fill_res_mr_entry(
        msg: *mut bindings::sk_buff,
        mr: *mut ffi::ib_mr,
    ) -> c_int {
        // SAFETY: See the documentation of `ops`. The object starts with the core's.
        unsafe { fill::<_, MR_DETAILS>(msg, mr.cast::<ffi::efa_mr_object>()) }
    }
}
