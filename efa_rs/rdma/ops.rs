// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The table of functions through which the core calls a [`Provider`].
//!
//! All functions here are called by the core only, with pointers to objects of a device that was
//! registered with the same provider type, and while it is registered: each may rely on that.

use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};

use kernel::{
    error::from_result,
    ffi::{
        c_char,
        c_int, //
    },
};

use super::{
    ah::Ah,
    counters,
    cq::Cq,
    device::provider,
    object::Object,
    provider::Provider,
    qp::Qp,
    udata::Udata, //
};
use crate::ffi;

/// A userspace context with its provider's data.
pub(super) type Ucontext<T> = Object<ffi::ib_ucontext, <T as Provider>::Ucontext>;

/// A protection domain with its provider's data.
pub(super) type Pd<T> = Object<ffi::ib_pd, <T as Provider>::Pd>;

/// The functions for the provider `T`.
pub(super) struct Ops<T>(PhantomData<T>);

impl<T: Provider> Ops<T> {
    /// The table, all but its owner.
    pub(super) const TABLE: ffi::ib_device_ops = ffi::ib_device_ops {
        driver_id: T::DRIVER_ID as ffi::rdma_driver_id,
        uverbs_abi_ver: T::UVERBS_ABI_VERSION,

        get_dev_fw_str: Some(Self::get_dev_fw_str),
        query_device: Some(Self::query_device),
        query_port: Some(Self::query_port),
        query_port_speed: Some(Self::query_port_speed),
        get_port_immutable: Some(Self::get_port_immutable),
        get_link_layer: Some(Self::get_link_layer),
        query_gid: Some(Self::query_gid),
        query_pkey: Some(Self::query_pkey),
        alloc_ucontext: Some(Self::alloc_ucontext),
        dealloc_ucontext: Some(Self::dealloc_ucontext),
        alloc_pd: Some(Self::alloc_pd),
        dealloc_pd: Some(Self::dealloc_pd),
        create_user_ah: Some(Self::create_user_ah),
        destroy_ah: Some(Self::destroy_ah),
        create_user_cq: Some(Self::create_user_cq),
        destroy_cq: Some(Self::destroy_cq),
        create_qp: Some(Self::create_qp),
        modify_qp: Some(Self::modify_qp),
        query_qp: Some(Self::query_qp),
        destroy_qp: Some(Self::destroy_qp),
        reg_user_mr: Some(Self::reg_user_mr),
        reg_user_mr_dmabuf: Some(Self::reg_user_mr_dmabuf),
        dereg_mr: Some(Self::dereg_mr),
        mmap: Some(Self::mmap),
        fill_res_cq_entry: Some(Self::fill_res_cq_entry),
        fill_res_qp_entry: Some(Self::fill_res_qp_entry),
        fill_res_mr_entry: Some(Self::fill_res_mr_entry),
        mmap_free: Some(Self::mmap_free),
        alloc_hw_device_stats: Some(Self::alloc_hw_device_stats),
        alloc_hw_port_stats: Some(Self::alloc_hw_port_stats),
        get_hw_stats: Some(Self::get_hw_stats),

        size_ib_ucontext: Ucontext::<T>::SIZE,
        size_ib_pd: Pd::<T>::SIZE,
        size_ib_ah: Ah::<T>::SIZE,
        size_ib_cq: Cq::<T>::SIZE,
        size_ib_qp: Qp::<T>::SIZE,

        // SAFETY: In a table of functions, sizes and flags, zero stands for what is not there.
        ..unsafe { MaybeUninit::<ffi::ib_device_ops>::zeroed().assume_init() }
    };

    extern "C" fn get_dev_fw_str(device: *mut ffi::ib_device, text: *mut c_char) {
        // SAFETY: See the module's documentation.
        let provider = unsafe { provider::<T>(device) };
        let version = provider.firmware_version();
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

    extern "C" fn query_device(
        device: *mut ffi::ib_device,
        attr: *mut ffi::ib_device_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation.
            let (provider, attr, udata) =
                unsafe { (provider::<T>(device), &mut *attr, Udata::from_raw(udata)) };
            provider.query_device(&udata)?.fill(attr);
            Ok(0)
        })
    }

    extern "C" fn query_port(
        device: *mut ffi::ib_device,
        port: u32,
        attr: *mut ffi::ib_port_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation.
            let (provider, attr) = unsafe { (provider::<T>(device), &mut *attr) };
            provider.query_port(port)?.fill(attr);
            Ok(0)
        })
    }

    extern "C" fn query_port_speed(
        device: *mut ffi::ib_device,
        port: u32,
        speed: *mut u64,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation.
            unsafe { *speed = provider::<T>(device).query_port_speed(port)? };
            Ok(0)
        })
    }

    extern "C" fn get_port_immutable(
        device: *mut ffi::ib_device,
        port: u32,
        immutable: *mut ffi::ib_port_immutable,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation.
            let (provider, immutable) = unsafe { (provider::<T>(device), &mut *immutable) };
            let attr = provider.query_port(port)?;
            immutable.gid_tbl_len = attr.gid_tbl_len.into();
            immutable.pkey_tbl_len = attr.pkey_tbl_len.into();
            Ok(0)
        })
    }

    extern "C" fn get_link_layer(device: *mut ffi::ib_device, port: u32) -> ffi::rdma_link_layer {
        // SAFETY: See the module's documentation.
        unsafe { provider::<T>(device) }.link_layer(port) as ffi::rdma_link_layer
    }

    extern "C" fn query_gid(
        device: *mut ffi::ib_device,
        port: u32,
        index: c_int,
        gid: *mut ffi::ib_gid,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation.
            unsafe {
                let value = provider::<T>(device).query_gid(port, index.try_into()?)?;
                gid.cast::<[u8; 16]>().write(value);
            }
            Ok(0)
        })
    }

    extern "C" fn query_pkey(
        device: *mut ffi::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation.
            unsafe { *pkey = provider::<T>(device).query_pkey(port, index)? };
            Ok(0)
        })
    }

    extern "C" fn alloc_ucontext(
        context: *mut ffi::ib_ucontext,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation. The core has allocated the object for this
            // call, of the size that the table gives.
            unsafe {
                let data =
                    provider::<T>((*context).device).alloc_ucontext(&Udata::from_raw(udata))?;
                Ucontext::<T>::init(context, data);
            }
            Ok(0)
        })
    }

    extern "C" fn dealloc_ucontext(context: *mut ffi::ib_ucontext) {
        // SAFETY: See the module's documentation. The object was created by `alloc_ucontext`, and
        // the core frees it after this call.
        unsafe {
            provider::<T>((*context).device).dealloc_ucontext(Ucontext::<T>::take(context));
        }
    }

    extern "C" fn alloc_pd(pd: *mut ffi::ib_pd, udata: *mut ffi::ib_udata) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation. The core has allocated the object for this
            // call, of the size that the table gives.
            unsafe {
                let data = provider::<T>((*pd).device).alloc_pd(&Udata::from_raw(udata))?;
                Pd::<T>::init(pd, data);
            }
            Ok(0)
        })
    }

    extern "C" fn dealloc_pd(pd: *mut ffi::ib_pd, _udata: *mut ffi::ib_udata) -> c_int {
        // SAFETY: See the module's documentation. The object was created by `alloc_pd`, and the
        // core frees it after this call.
        unsafe { provider::<T>((*pd).device).dealloc_pd(Pd::<T>::take(pd)) };
        0
    }

    extern "C" fn alloc_hw_device_stats(_device: *mut ffi::ib_device) -> *mut ffi::rdma_hw_stats {
        counters::alloc(T::DEVICE_COUNTERS)
    }

    extern "C" fn alloc_hw_port_stats(
        _device: *mut ffi::ib_device,
        _port: u32,
    ) -> *mut ffi::rdma_hw_stats {
        counters::alloc(T::PORT_COUNTERS)
    }

    extern "C" fn get_hw_stats(
        device: *mut ffi::ib_device,
        stats: *mut ffi::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the module's documentation. The core holds the lock of `stats`, or has
            // not published it yet.
            let (provider, values) = unsafe { (provider::<T>(device), counters::values(stats)) };

            // Port 0 stands for the device itself.
            if port == 0 {
                provider.read_device_counters(values)?;
            } else {
                provider.read_port_counters(port, values)?;
            }
            // CAST: Drivers have dozens of counters.
            Ok(values.len() as c_int)
        })
    }
}
