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

/// Values of an object, in the order of the names in `DETAILS` of its trait.
///
/// # Examples
///
/// ```
/// use kernel::rdma::Details;
///
/// let (device_number, depth) = (3, 64);
/// let details = Details::new([device_number, depth]);
/// # let _ = details;
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct Details([u64; Self::MAX]);

impl Details {
    /// Limit on the values of an object.
    const MAX: usize = 4;

    /// Makes details of `N` values, at most four.
    #[allow(dead_code, reason = "for providers that have objects with details")]
    pub(crate) fn new<const N: usize>(values: [u64; N]) -> Self {
        const { assert!(N <= Self::MAX) };
        let mut all = [0; Self::MAX];
        all[..N].copy_from_slice(&values);
        Self(all)
    }

    /// Writes the values that have names into a netlink message. Returns 0 or a negative errno.
    ///
    /// # Safety
    ///
    /// `msg` must be a message that is being built.
    // Not inlined, so that all kinds of objects share one copy.
    #[inline(never)]
    pub(super) unsafe fn put(
        self,
        msg: *mut bindings::sk_buff,
        names: &'static [&'static CStr],
    ) -> c_int {
        // SAFETY: The caller guarantees that the message is being built.
        let nest = unsafe { ffi::efa_nla_nest_driver(msg) };
        if nest.is_null() {
            return EMSGSIZE.to_errno();
        }
        let put = |(name, value): (&&CStr, u64)| {
            let name = name.as_char_ptr();
            // SAFETY: The caller guarantees that the message is being built. The name is static.
            to_result(unsafe { ffi::rdma_nl_put_driver_u64_hex(msg, name, value) })
        };
        from_result(|| {
            let written = names.iter().zip(self.0).try_for_each(put);
            // SAFETY: `nest` was started above, and neither ended nor cancelled.
            written.inspect_err(|_| unsafe { ffi::efa_nla_nest_cancel(msg, nest) })?;
            // SAFETY: `nest` was started above, and is ended once.
            unsafe { ffi::efa_nla_nest_end(msg, nest) };
            Ok(0)
        })
    }
}
