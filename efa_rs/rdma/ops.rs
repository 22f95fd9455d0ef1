// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The table of functions through which the core calls a [`Provider`].

use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    device::Device,
    object::{
        CoreObject,
        ObjectOf, //
    },
    provider::Provider, //
};
use crate::ffi;

/// The callbacks for the provider `P`. Each is in the file of its kind of object.
///
/// # Contract of the callbacks
///
/// Only the core calls them, as documented at `struct ib_device_ops`. During a call:
///
/// - A pointer is valid for the structure of its type, unless it is documented that it may be null.
/// - Devices are registered with this table, or are being registered. Their data is initialized.
/// - Objects are of such devices, and were created by callbacks of this table. Objects that an
///   object refers to are destroyed after it.
/// - A new object has the size in the table, and is zeroed. Nothing else uses it. The core has set
///   its device, and the protection domain if it has one.
/// - An object that is destroyed is not in use, and is not used afterwards. `fill_res_*_entry` is called
///   for an object only after its creation, and before its destruction.
///
/// Callbacks are generic over the lifetime of a device's data, because the core does not know it. A
/// provider implements its traits for all lifetimes, so any lifetime that covers the call is valid.
pub(super) struct Ops<P>(PhantomData<P>);

impl<P: Provider> Ops<P> {
    /// Returns the device behind the core's structure.
    ///
    /// # Safety
    ///
    /// `device` must be registered with the provider `P`, or being registered, for `'d`.
    pub(super) unsafe fn device<'d, 'a>(device: *mut ffi::ib_device) -> &'d Device<P::Data<'a>>
    where
        'a: 'd,
    {
        // SAFETY: A registration has allocated the device, and has initialized its data.
        unsafe { Device::from_raw(device) }
    }

    /// Returns the device of an object.
    ///
    /// # Safety
    ///
    /// `core` must be valid. Its device must be registered with the provider `P` for `'d`.
    pub(super) unsafe fn device_of<'d, 'a, C>(core: *mut C) -> &'d Device<P::Data<'a>>
    where
        'a: 'd,
        C: CoreObject,
    {
        // SAFETY: The caller guarantees that the object is valid.
        let device = unsafe { C::device(core) };
        // SAFETY: The caller guarantees that the device is registered for `'d`.
        unsafe { Self::device(device) }
    }

    /// Returns the data of an object, and the object's device.
    ///
    /// # Safety
    ///
    /// `core` must be an object that was created on a device of the provider `P`, and is not destroyed
    /// for `'o`.
    pub(super) unsafe fn object<'o, 'a, C>(
        core: *mut C,
    ) -> (&'o C::Data<'a, P>, &'o Device<P::Data<'a>>)
    where
        'a: 'o,
        C: CoreObject,
    {
        // SAFETY: The caller guarantees that the object was created, which has initialized its data.
        let data = unsafe { ObjectOf::<P, C>::data(core) };
        // SAFETY: The caller guarantees that the object is valid. Its device outlives it.
        (data, unsafe { Self::device_of(core) })
    }

    /// Initializes a new object, and returns the result of its callback.
    ///
    /// # Errors
    ///
    /// Those of `init`.
    ///
    /// # Safety
    ///
    /// By the contract of [`Ops`], `core` must be new.
    pub(super) unsafe fn create<'a, C>(
        core: *mut C,
        init: impl PinInit<C::Data<'a, P>, Error>,
    ) -> Result<c_int>
    where
        C: CoreObject,
    {
        // SAFETY: The caller guarantees that the object is new, and has the size in the table.
        unsafe { ObjectOf::<P, C>::init(core, init) }?;
        Ok(0)
    }

    /// Drops the data of an object that is destroyed, and returns the result of its callback.
    ///
    /// # Safety
    ///
    /// By the contract of [`Ops`], `core` must be an object that is destroyed.
    pub(super) unsafe fn destroy<C: CoreObject>(core: *mut C) -> c_int {
        // SAFETY: The caller guarantees that the object was created, and is not used any more.
        unsafe { ObjectOf::<P, C>::drop_data(core) };
        0
    }

    /// Returns the size of an object in bytes.
    const fn size<C: CoreObject>() -> usize {
        ObjectOf::<'static, P, C>::SIZE
    }
}

/// Converts a result to that of a callback: 0, or a negative errno.
pub(super) fn errno(result: Result) -> c_int {
    result.map_or_else(|error| error.to_errno(), |()| 0)
}

/// Returns an optional entry of the table: `$function` if the condition holds.
macro_rules! only_if {
    ($has:expr, $function:expr) => {
        if $has {
            Some($function)
        } else {
            None
        }
    };
}

impl<P: Provider> Ops<P> {
    /// The table, without its owner, which the registration sets.
    pub(super) const TABLE: ffi::ib_device_ops = ffi::ib_device_ops {
        driver_id: P::DRIVER_ID.as_raw(),
        uverbs_abi_ver: P::UVERBS_ABI_VERSION,

        enable_driver: Some(Self::enable_driver),
        query_device: Some(Self::query_device),
        query_port: Some(Self::query_port),
        get_port_immutable: Some(Self::get_port_immutable),
        get_link_layer: Some(Self::get_link_layer),
        get_dev_fw_str: only_if!(P::HAS_FIRMWARE_VERSION, Self::get_dev_fw_str),
        query_port_speed: only_if!(P::HAS_QUERY_PORT_SPEED, Self::query_port_speed),
        query_gid: only_if!(P::HAS_QUERY_GID, Self::query_gid),
        query_pkey: only_if!(P::HAS_QUERY_PKEY, Self::query_pkey),

        // With disassociation, the core destroys programs' objects before it unregisters a device.
        disassociate_ucontext: only_if!(Self::HAS_UCONTEXT, Self::disassociate_ucontext),
        alloc_ucontext: only_if!(Self::HAS_UCONTEXT, Self::alloc_ucontext),
        dealloc_ucontext: only_if!(Self::HAS_UCONTEXT, Self::dealloc_ucontext),
        mmap: only_if!(Self::HAS_UCONTEXT, Self::mmap),
        mmap_free: only_if!(Self::HAS_UCONTEXT, Self::mmap_free),

        alloc_pd: only_if!(Self::HAS_PD, Self::alloc_pd),
        dealloc_pd: only_if!(Self::HAS_PD, Self::dealloc_pd),

        create_user_ah: only_if!(Self::HAS_AH, Self::create_ah),
        #[cfg(kverbs)]
        create_ah: only_if!(Self::HAS_AH && Self::HAS_KERNEL_QP, Self::create_ah),
        destroy_ah: only_if!(Self::HAS_AH, Self::destroy_ah),

        create_user_cq: only_if!(Self::HAS_USER_CQ, Self::create_user_cq),
        #[cfg(kverbs)]
        create_cq: only_if!(Self::HAS_KERNEL_CQ, Self::create_cq),
        #[cfg(kverbs)]
        poll_cq: only_if!(Self::HAS_KERNEL_CQ, Self::poll_cq),
        #[cfg(kverbs)]
        req_notify_cq: only_if!(Self::HAS_KERNEL_CQ, Self::req_notify_cq),
        #[cfg(kverbs)]
        pre_destroy_cq: only_if!(Self::HAS_KERNEL_CQ, Self::pre_destroy_cq),
        #[cfg(kverbs)]
        post_destroy_cq: only_if!(Self::HAS_KERNEL_CQ, Self::post_destroy_cq),
        destroy_cq: only_if!(Self::HAS_CQ, Self::destroy_cq),
        fill_res_cq_entry: only_if!(Self::HAS_CQ, Self::fill_res_cq_entry),

        create_qp: only_if!(Self::HAS_QP, Self::create_qp),
        modify_qp: only_if!(Self::HAS_QP, Self::modify_qp),
        query_qp: only_if!(Self::HAS_QP, Self::query_qp),
        destroy_qp: only_if!(Self::HAS_QP, Self::destroy_qp),
        #[cfg(kverbs)]
        post_send: only_if!(Self::HAS_KERNEL_QP, Self::post_send),
        #[cfg(kverbs)]
        post_recv: only_if!(Self::HAS_KERNEL_QP, Self::post_recv),
        fill_res_qp_entry: only_if!(Self::HAS_QP, Self::fill_res_qp_entry),

        query_comp_cntr_caps: only_if!(Self::HAS_COMP_CNTR, Self::query_comp_cntr_caps),
        create_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::create_comp_cntr),
        modify_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::modify_comp_cntr),
        qp_attach_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::qp_attach_comp_cntr),
        destroy_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::destroy_comp_cntr),

        reg_user_mr: only_if!(Self::HAS_USER_MR, Self::reg_user_mr),
        reg_user_mr_dmabuf: only_if!(Self::HAS_USER_MR, Self::reg_user_mr_dmabuf),
        #[cfg(kverbs)]
        alloc_mr: only_if!(Self::HAS_ALLOC_MR, Self::alloc_mr),
        #[cfg(kverbs)]
        map_mr_sg: only_if!(Self::HAS_ALLOC_MR, Self::map_mr_sg),
        #[cfg(kverbs)]
        get_dma_mr: only_if!(Self::HAS_DMA_MR, Self::get_dma_mr),
        dereg_mr: only_if!(Self::HAS_MR, Self::dereg_mr),
        fill_res_mr_entry: only_if!(Self::HAS_MR, Self::fill_res_mr_entry),

        alloc_hw_device_stats: only_if!(P::HAS_READ_DEVICE_COUNTERS, Self::alloc_hw_device_stats),
        alloc_hw_port_stats: only_if!(P::HAS_READ_PORT_COUNTERS, Self::alloc_hw_port_stats),
        get_hw_stats: only_if!(
            P::HAS_READ_DEVICE_COUNTERS || P::HAS_READ_PORT_COUNTERS,
            Self::get_hw_stats
        ),

        size_ib_ucontext: Self::size::<ffi::ib_ucontext>(),
        size_ib_pd: Self::size::<ffi::ib_pd>(),
        size_ib_ah: Self::size::<ffi::ib_ah>(),
        size_ib_cq: Self::size::<ffi::ib_cq>(),
        size_ib_qp: Self::size::<ffi::ib_qp>(),
        size_ib_comp_cntr: Self::size::<ffi::ib_comp_cntr>(),

        // SAFETY: The table has functions, sizes and flags, for which zero means absent.
        ..unsafe { MaybeUninit::<ffi::ib_device_ops>::zeroed().assume_init() }
    };
}
