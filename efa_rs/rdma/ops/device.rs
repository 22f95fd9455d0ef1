// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of devices and ports.

use kernel::{
    error::from_result,
    ffi::{
        c_char,
        c_int, //
    },
};

use super::Ops;
use crate::{
    ffi,
    rdma::{
        device::Named,
        provider::Provider,
        udata::Udata, //
    },
};

impl<P: Provider> Ops<P> {
    pub(super) extern "C" fn enable_driver(device: *mut ffi::ib_device) -> c_int {
        // SAFETY: By the core's promise the device is registered. During this call the core has the lock
        // that it takes to rename devices, and does not move this one.
        unsafe {
            Self::device(device).home().note_net(device);
            P::enabled(&Named::new(Self::device(device)));
        }
        0
    }

    pub(super) extern "C" fn get_dev_fw_str(device: *mut ffi::ib_device, text: *mut c_char) {
        // SAFETY: By the core's promise the device is registered.
        let version = P::firmware_version(unsafe { Self::device(device) });
        let version = version
            .as_ref()
            .map_or(&[][..], |version| version.to_bytes());

        // The last of the bytes ends the text.
        let length = version.len().min(ffi::IB_FW_VERSION_NAME_MAX as usize - 1);
        // SAFETY: The core passes room for `IB_FW_VERSION_NAME_MAX` bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(version.as_ptr(), text.cast(), length);
            text.add(length).write(0);
        }
    }

    pub(super) extern "C" fn query_device(
        device: *mut ffi::ib_device,
        attr: *mut ffi::ib_device_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered; attributes and input are the
            // call's.
            let (device, attr, udata) =
                unsafe { (Self::device(device), &mut *attr, Udata::from_raw(udata)) };
            P::query_device(device, &udata)?.fill(attr);
            Ok(0)
        })
    }

    pub(super) extern "C" fn query_port(
        device: *mut ffi::ib_device,
        port: u32,
        attr: *mut ffi::ib_port_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered; the attributes are the call's.
            let (device, attr) = unsafe { (Self::device(device), &mut *attr) };
            P::query_port(device, port)?.fill(attr);
            Ok(0)
        })
    }

    pub(super) extern "C" fn query_port_speed(
        device: *mut ffi::ib_device,
        port: u32,
        speed: *mut u64,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered; it passes room for the speed.
            unsafe { *speed = P::query_port_speed(Self::device(device), port)? };
            Ok(0)
        })
    }

    pub(super) extern "C" fn get_port_immutable(
        device: *mut ffi::ib_device,
        port: u32,
        immutable: *mut ffi::ib_port_immutable,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device, which is being registered, is set up; it passes
            // room for the answer.
            let (device, immutable) = unsafe { (Self::device(device), &mut *immutable) };
            let attr = P::query_port(device, port)?;
            immutable.gid_tbl_len = attr.gid_tbl_len.into();
            immutable.pkey_tbl_len = attr.pkey_tbl_len.into();
            Ok(0)
        })
    }

    pub(super) extern "C" fn get_link_layer(
        device: *mut ffi::ib_device,
        port: u32,
    ) -> ffi::rdma_link_layer {
        // SAFETY: By the core's promise the device is registered.
        P::link_layer(unsafe { Self::device(device) }, port) as ffi::rdma_link_layer
    }

    pub(super) extern "C" fn query_gid(
        device: *mut ffi::ib_device,
        port: u32,
        index: c_int,
        gid: *mut ffi::ib_gid,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered; it passes room for a GID, which
            // is 16 bytes.
            unsafe {
                let value = P::query_gid(Self::device(device), port, index.try_into()?)?;
                gid.cast::<[u8; 16]>().write(value);
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn query_pkey(
        device: *mut ffi::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered; it passes room for the key.
            unsafe { *pkey = P::query_pkey(Self::device(device), port, index)? };
            Ok(0)
        })
    }
}
