// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The table of functions through which the core calls a [`Provider`].

use core::mem::MaybeUninit;

use super::{
    ah::AddressHandle,
    comp_cntr::CompletionCounter,
    context::Ucontext,
    cq::CompletionQueue,
    mr::MemoryRegion,
    object::ObjectOf,
    ops::Ops,
    pd::ProtectionDomain,
    provider::Provider,
    qp::QueuePair, //
};
use crate::ffi;

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
    #[cfg(kverbs)]
    const HAS_CQ: bool = P::Cq::HAS_CREATE_USER || P::Cq::HAS_CREATE_KERNEL;
    #[cfg(not(kverbs))]
    const HAS_CQ: bool = P::Cq::HAS_CREATE_USER;

    #[cfg(kverbs)]
    const HAS_QP: bool = P::Qp::HAS_CREATE || P::Qp::HAS_CREATE_KERNEL;
    #[cfg(not(kverbs))]
    const HAS_QP: bool = P::Qp::HAS_CREATE;

    #[cfg(kverbs)]
    const HAS_MR: bool = P::Mr::HAS_REGISTER_USER || P::Mr::HAS_REGISTER_DMA || P::Mr::HAS_ALLOC;
    #[cfg(not(kverbs))]
    const HAS_MR: bool = P::Mr::HAS_REGISTER_USER;

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
        disassociate_ucontext: only_if!(P::Ucontext::HAS_ALLOC, Self::disassociate_ucontext),
        alloc_ucontext: only_if!(P::Ucontext::HAS_ALLOC, Self::alloc_ucontext),
        dealloc_ucontext: only_if!(P::Ucontext::HAS_ALLOC, Self::dealloc_ucontext),
        mmap: only_if!(P::Ucontext::HAS_ALLOC, Self::mmap),
        mmap_free: only_if!(P::Ucontext::HAS_ALLOC, Self::mmap_free),

        alloc_pd: only_if!(P::Pd::HAS_ALLOC, Self::alloc_pd),
        dealloc_pd: only_if!(P::Pd::HAS_ALLOC, Self::dealloc_pd),

        create_user_ah: only_if!(P::Ah::HAS_CREATE, Self::create_ah),
        #[cfg(kverbs)]
        create_ah: only_if!(
            P::Ah::HAS_CREATE && P::Qp::HAS_CREATE_KERNEL,
            Self::create_ah
        ),
        destroy_ah: only_if!(P::Ah::HAS_CREATE, Self::destroy_ah),

        create_user_cq: only_if!(P::Cq::HAS_CREATE_USER, Self::create_user_cq),
        #[cfg(kverbs)]
        create_cq: only_if!(P::Cq::HAS_CREATE_KERNEL, Self::create_cq),
        #[cfg(kverbs)]
        poll_cq: only_if!(P::Cq::HAS_CREATE_KERNEL, Self::poll_cq),
        #[cfg(kverbs)]
        req_notify_cq: only_if!(P::Cq::HAS_CREATE_KERNEL, Self::req_notify_cq),
        #[cfg(kverbs)]
        pre_destroy_cq: only_if!(P::Cq::HAS_CREATE_KERNEL, Self::pre_destroy_cq),
        #[cfg(kverbs)]
        post_destroy_cq: only_if!(P::Cq::HAS_CREATE_KERNEL, Self::post_destroy_cq),
        destroy_cq: only_if!(Self::HAS_CQ, Self::destroy_cq),
        fill_res_cq_entry: only_if!(Self::HAS_CQ, Self::fill_res_cq_entry),

        create_qp: only_if!(Self::HAS_QP, Self::create_qp),
        modify_qp: only_if!(Self::HAS_QP, Self::modify_qp),
        query_qp: only_if!(Self::HAS_QP, Self::query_qp),
        destroy_qp: only_if!(Self::HAS_QP, Self::destroy_qp),
        #[cfg(kverbs)]
        post_send: only_if!(P::Qp::HAS_CREATE_KERNEL, Self::post_send),
        #[cfg(kverbs)]
        post_recv: only_if!(P::Qp::HAS_CREATE_KERNEL, Self::post_recv),
        fill_res_qp_entry: only_if!(Self::HAS_QP, Self::fill_res_qp_entry),

        query_comp_cntr_caps: only_if!(P::CompCntr::HAS_CREATE, Self::query_comp_cntr_caps),
        create_comp_cntr: only_if!(P::CompCntr::HAS_CREATE, Self::create_comp_cntr),
        modify_comp_cntr: only_if!(P::CompCntr::HAS_CREATE, Self::modify_comp_cntr),
        qp_attach_comp_cntr: only_if!(P::CompCntr::HAS_CREATE, Self::qp_attach_comp_cntr),
        destroy_comp_cntr: only_if!(P::CompCntr::HAS_CREATE, Self::destroy_comp_cntr),

        reg_user_mr: only_if!(P::Mr::HAS_REGISTER_USER, Self::reg_user_mr),
        reg_user_mr_dmabuf: only_if!(P::Mr::HAS_REGISTER_USER, Self::reg_user_mr_dmabuf),
        #[cfg(kverbs)]
        alloc_mr: only_if!(P::Mr::HAS_ALLOC, Self::alloc_mr),
        #[cfg(kverbs)]
        map_mr_sg: only_if!(P::Mr::HAS_ALLOC, Self::map_mr_sg),
        #[cfg(kverbs)]
        get_dma_mr: only_if!(P::Mr::HAS_REGISTER_DMA, Self::get_dma_mr),
        dereg_mr: only_if!(Self::HAS_MR, Self::dereg_mr),
        fill_res_mr_entry: only_if!(Self::HAS_MR, Self::fill_res_mr_entry),

        alloc_hw_device_stats: only_if!(P::HAS_READ_DEVICE_COUNTERS, Self::alloc_hw_device_stats),
        alloc_hw_port_stats: only_if!(P::HAS_READ_PORT_COUNTERS, Self::alloc_hw_port_stats),
        get_hw_stats: only_if!(
            P::HAS_READ_DEVICE_COUNTERS || P::HAS_READ_PORT_COUNTERS,
            Self::get_hw_stats
        ),

        size_ib_ucontext: ObjectOf::<P, ffi::ib_ucontext>::SIZE,
        size_ib_pd: ObjectOf::<P, ffi::ib_pd>::SIZE,
        size_ib_ah: ObjectOf::<P, ffi::ib_ah>::SIZE,
        size_ib_cq: ObjectOf::<P, ffi::ib_cq>::SIZE,
        size_ib_qp: ObjectOf::<P, ffi::ib_qp>::SIZE,
        size_ib_comp_cntr: ObjectOf::<P, ffi::ib_comp_cntr>::SIZE,

        // SAFETY: The table has functions, sizes and flags, for which zero means absent.
        ..unsafe { MaybeUninit::<ffi::ib_device_ops>::zeroed().assume_init() }
    };
}
