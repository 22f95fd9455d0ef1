// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The table of functions that the core is given.

use core::mem::MaybeUninit;

use super::{
    ah,
    comp_cntr,
    context,
    cq,
    pd,
    qp,
    Ops, //
};
use crate::{
    ffi,
    rdma::{
        ah::AddressHandle,
        comp_cntr::CompletionCounter,
        context::Ucontext,
        cq::CompletionQueue,
        kernel_client::KernelClient,
        mr::MemoryRegion,
        pd::ProtectionDomain,
        provider::Provider,
        qp::QueuePair, //
    }, //
};

/// Returns `$function` if the condition holds: an entry of the table that a provider may lack.
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
    const HAS_UCONTEXT: bool = <P::Ucontext<'static> as Ucontext<P::Data<'static>>>::HAS_ALLOC;
    const HAS_PD: bool = <P::Pd<'static> as ProtectionDomain<P::Data<'static>>>::HAS_ALLOC;
    const HAS_AH: bool =
        <P::Ah<'static> as AddressHandle<P::Data<'static>, P::Pd<'static>>>::HAS_CREATE;
    const HAS_CQ: bool = <P::Cq<'static> as CompletionQueue<
        'static,
        P::Data<'static>,
        P::Ucontext<'static>,
    >>::HAS_CREATE_USER;
    const HAS_KERNEL_CQ: bool =
        KernelClient::ANY.is_some()
            && <P::Cq<'static> as CompletionQueue<
                'static,
                P::Data<'static>,
                P::Ucontext<'static>,
            >>::HAS_CREATE_KERNEL;
    const HAS_QP: bool = <P::Qp<'static> as QueuePair<
        'static,
        P::Data<'static>,
        P::Ucontext<'static>,
        P::Pd<'static>,
        P::Cq<'static>,
        P::Ah<'static>,
        P::Mr<'static>,
    >>::HAS_CREATE;
    pub(super) const HAS_KERNEL_QP: bool = KernelClient::ANY.is_some()
        && <P::Qp<'static> as QueuePair<
            'static,
            P::Data<'static>,
            P::Ucontext<'static>,
            P::Pd<'static>,
            P::Cq<'static>,
            P::Ah<'static>,
            P::Mr<'static>,
        >>::HAS_CREATE_KERNEL;
    const HAS_COMP_CNTR: bool = <P::CompCntr<'static> as CompletionCounter<
        'static,
        P::Data<'static>,
        P::Ucontext<'static>,
        P::Qp<'static>,
    >>::HAS_CREATE;
    const HAS_MR: bool = <P::Mr<'static> as MemoryRegion<
        'static,
        P::Data<'static>,
        P::Pd<'static>,
    >>::HAS_REGISTER_USER;
    const HAS_DMA_MR: bool = KernelClient::ANY.is_some() && <P::Mr<'static> as MemoryRegion<
        'static,
        P::Data<'static>,
        P::Pd<'static>,
    >>::HAS_REGISTER_DMA;

    const HAS_ALLOC_MR: bool = KernelClient::ANY.is_some()
        && <P::Mr<'static> as MemoryRegion<'static, P::Data<'static>, P::Pd<'static>>>::HAS_ALLOC;

    /// The table, all but its owner.
    pub(in crate::rdma) const TABLE: ffi::ib_device_ops = ffi::ib_device_ops {
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

        // The core destroys what programs have before a device goes, so that it does not wait for them.
        disassociate_ucontext: only_if!(Self::HAS_UCONTEXT, Self::disassociate_ucontext),
        alloc_ucontext: only_if!(Self::HAS_UCONTEXT, Self::alloc_ucontext),
        dealloc_ucontext: only_if!(Self::HAS_UCONTEXT, Self::dealloc_ucontext),
        mmap: only_if!(Self::HAS_UCONTEXT, Self::mmap),
        mmap_free: only_if!(Self::HAS_UCONTEXT, Self::mmap_free),

        alloc_pd: only_if!(Self::HAS_PD, Self::alloc_pd),
        dealloc_pd: only_if!(Self::HAS_PD, Self::dealloc_pd),

        create_user_ah: only_if!(Self::HAS_AH, Self::create_ah),
        create_ah: only_if!(Self::HAS_AH && Self::HAS_KERNEL_QP, Self::create_ah),
        destroy_ah: only_if!(Self::HAS_AH, Self::destroy_ah),

        create_user_cq: only_if!(Self::HAS_CQ, Self::create_user_cq),
        destroy_cq: only_if!(Self::HAS_CQ || Self::HAS_KERNEL_CQ, Self::destroy_cq),
        create_cq: only_if!(Self::HAS_KERNEL_CQ, Self::create_cq),
        pre_destroy_cq: only_if!(Self::HAS_KERNEL_CQ, Self::pre_destroy_cq),
        post_destroy_cq: only_if!(Self::HAS_KERNEL_CQ, Self::post_destroy_cq),
        poll_cq: only_if!(Self::HAS_KERNEL_CQ, Self::poll_cq),
        req_notify_cq: only_if!(Self::HAS_KERNEL_CQ, Self::req_notify_cq),
        fill_res_cq_entry: only_if!(Self::HAS_CQ, Self::fill_res_cq_entry),

        create_qp: only_if!(Self::HAS_QP, Self::create_qp),
        modify_qp: only_if!(Self::HAS_QP, Self::modify_qp),
        query_qp: only_if!(Self::HAS_QP, Self::query_qp),
        destroy_qp: only_if!(Self::HAS_QP, Self::destroy_qp),
        post_send: only_if!(Self::HAS_KERNEL_QP, Self::post_send),
        post_recv: only_if!(Self::HAS_KERNEL_QP, Self::post_recv),
        fill_res_qp_entry: only_if!(Self::HAS_QP, Self::fill_res_qp_entry),

        query_comp_cntr_caps: only_if!(Self::HAS_COMP_CNTR, Self::query_comp_cntr_caps),
        create_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::create_comp_cntr),
        modify_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::modify_comp_cntr),
        qp_attach_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::qp_attach_comp_cntr),
        destroy_comp_cntr: only_if!(Self::HAS_COMP_CNTR, Self::destroy_comp_cntr),

        reg_user_mr: only_if!(Self::HAS_MR, Self::reg_user_mr),
        reg_user_mr_dmabuf: only_if!(Self::HAS_MR, Self::reg_user_mr_dmabuf),
        alloc_mr: only_if!(Self::HAS_ALLOC_MR, Self::alloc_mr),
        map_mr_sg: only_if!(Self::HAS_ALLOC_MR, Self::map_mr_sg),
        get_dma_mr: only_if!(Self::HAS_DMA_MR, Self::get_dma_mr),
        dereg_mr: only_if!(Self::HAS_MR, Self::dereg_mr),
        fill_res_mr_entry: only_if!(Self::HAS_MR, Self::fill_res_mr_entry),

        alloc_hw_device_stats: only_if!(P::HAS_READ_DEVICE_COUNTERS, Self::alloc_hw_device_stats),
        alloc_hw_port_stats: only_if!(P::HAS_READ_PORT_COUNTERS, Self::alloc_hw_port_stats),
        get_hw_stats: only_if!(
            P::HAS_READ_DEVICE_COUNTERS || P::HAS_READ_PORT_COUNTERS,
            Self::get_hw_stats
        ),

        size_ib_ucontext: context::Object::<P>::SIZE,
        size_ib_pd: pd::Object::<P>::SIZE,
        size_ib_ah: ah::Object::<P>::SIZE,
        size_ib_cq: cq::Object::<P>::SIZE,
        size_ib_qp: qp::Object::<P>::SIZE,
        size_ib_comp_cntr: comp_cntr::Object::<P>::SIZE,

        // SAFETY: In a table of functions, sizes and flags, zero stands for what is not there.
        ..unsafe { MaybeUninit::<ffi::ib_device_ops>::zeroed().assume_init() }
    };
}
