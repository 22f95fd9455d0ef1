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

use crate::ffi;

/// Writes names and their values into a netlink message.
///
/// # Safety
///
/// `msg` must be a message that is being built.
// One copy for all kinds of objects.
#[inline(never)]
pub(super) unsafe fn write(
    msg: *mut bindings::sk_buff,
    names: &'static [&'static CStr],
    values: &[u64],
) -> c_int {
    from_result(|| {
        // SAFETY: The caller guarantees that the message is being built; names are static.
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
