// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Values of an object that `rdma resource show` prints in addition to the core's own.

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

/// A netlink message to which an object adds its values.
///
/// # Invariants
///
/// The message is being built.
pub(crate) struct Details(*mut bindings::sk_buff);

impl Details {
    /// Adds a value with its name.
    ///
    /// # Errors
    ///
    /// - [`EMSGSIZE`] if the message has no room for it.
    pub(crate) fn put(&mut self, name: &'static CStr, value: u64) -> Result {
        let name = name.as_char_ptr();
        // SAFETY: By the type invariant the message is being built. The name is static.
        to_result(unsafe { ffi::rdma_nl_put_driver_u64_hex(self.0, name, value) })
    }

    /// Adds the values that `fill` adds, as a group. Returns 0 or a negative errno.
    ///
    /// # Safety
    ///
    /// `msg` must be a message that is being built.
    pub(super) unsafe fn fill(
        msg: *mut bindings::sk_buff,
        fill: impl FnOnce(&mut Self) -> Result,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The caller guarantees that the message is being built.
            let nest = unsafe { ffi::efa_nla_nest_driver(msg) };
            if nest.is_null() {
                return Err(EMSGSIZE);
            }
            // INVARIANT: The caller guarantees that the message is being built.
            fill(&mut Self(msg)).inspect_err(|_| {
                // SAFETY: `nest` was started above, and neither ended nor cancelled.
                unsafe { ffi::efa_nla_nest_cancel(msg, nest) }
            })?;
            // SAFETY: `nest` was started above, and is ended once.
            unsafe { ffi::efa_nla_nest_end(msg, nest) };
            Ok(0)
        })
    }
}
