// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The C structure behind a device, for functions that the kernel crate does not wrap.

use kernel::{
    bindings,
    device::{
        Device,
        DeviceContext, //
    }, //
};

/// Returns the C structure behind a device.
pub(crate) fn as_raw<Ctx: DeviceContext>(dev: &Device<Ctx>) -> *mut bindings::device {
    // CAST: `Device` is a transparent wrapper of `Opaque<bindings::device>`.
    core::ptr::from_ref(dev).cast_mut().cast()
}
