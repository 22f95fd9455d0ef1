// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Calls of programs, and their arguments for the driver.

use crate::ffi::{self, ib_ucontext};

/// The attribute of a completion queue's buffer. No method of a driver has this number.
pub(crate) const CQ_BUFFER: u16 = u16::MAX;

/// A call: arguments for the driver, and buffers of the program by their attribute.
#[repr(C)]
pub(crate) struct Call {
    bundle: ffi::uverbs_attr_bundle,
    pub(crate) buffers: Vec<(u16, (u64, usize))>,
}

/// Returns address and length of a buffer of a call.
///
/// # Safety
///
/// The attributes must be those of a call.
pub(crate) unsafe fn buffer(
    attrs: *const ffi::uverbs_attr_bundle,
    which: u16,
) -> Option<(u64, usize)> {
    // SAFETY: The caller guarantees that the attributes are the first field of a call.
    let call = unsafe { &*attrs.cast::<Call>() };
    let mut buffers = call.buffers.iter();
    buffers
        .find(|(name, _)| *name == which)
        .map(|(_, buffer)| *buffer)
}

/// Returns the context of a call, as `rdma_udata_to_drv_context` does.
///
/// # Safety
///
/// The data must be that of a call.
pub unsafe fn context_of(udata: *mut ffi::ib_udata) -> *mut ib_ucontext {
    // SAFETY: The caller guarantees that the data is that of a call, at whose start it is.
    unsafe { (*udata.cast::<Call>()).bundle.__bindgen_anon_1.hdr.context }
}

impl Call {
    /// Creates a call with the driver-specific input and output.
    pub(crate) fn new(context: *mut ib_ucontext, input: &[u8], output: &mut [u8]) -> Box<Self> {
        let mut bundle: ffi::uverbs_attr_bundle = super::zeroed();
        bundle.__bindgen_anon_1.hdr.context = context;
        bundle.__bindgen_anon_1.hdr.driver_udata = ffi::ib_udata {
            inbuf: input.as_ptr().cast(),
            outbuf: output.as_mut_ptr().cast(),
            inlen: input.len(),
            outlen: output.len(),
        };
        Box::new(Self {
            bundle,
            buffers: Vec::new(),
        })
    }

    pub(crate) fn attrs(&mut self) -> *mut ffi::uverbs_attr_bundle {
        core::ptr::from_mut(self).cast()
    }

    pub(crate) fn udata(&mut self) -> *mut ffi::ib_udata {
        core::ptr::from_mut(self).cast()
    }
}
