// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A safe layer over the RDMA core. This module is for drivers that provide an `ib_device`;
//! `client`, with the `cfg` `rdma_client`, is for kernel clients that use devices.
//!
//! A driver implements [`Provider`] and one trait for each kind of object that it supports:
//! [`Ucontext`], [`ProtectionDomain`], [`AddressHandle`], [`CompletionQueue`], [`QueuePair`],
//! [`CompletionCounter`], [`MemoryRegion`]. [`Absent`] stands for an unsupported kind. A
//! [`Registration`] registers a device with the core. Methods that a provider lacks are not in its
//! `ib_device_ops`.
//!
//! The lifetime `'a` is that of a registration's data: in a driver, the binding of its device.
//! Objects may borrow from the data. They are destroyed before `'a` ends, even if programs have the
//! device open.
//!
//! Each kind of object has a file with its attributes, its trait, and the trait's callbacks for the
//! core. [`ops`] has their contract, and [`table`] the table of them. The files `kernel_*` have those
//! for kernel clients only. Nothing here depends on EFA, so it could be `rust/kernel/rdma`.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod ah;
mod attr;
#[cfg(rdma_client)]
pub(crate) mod client;
mod comp_cntr;
#[cfg(kverbs)]
mod completions;
mod context;
mod counters;
mod cq;
mod details;
mod device;
mod dma_bufs;
mod home;
#[cfg(kverbs)]
mod kernel_cq;
#[cfg(kverbs)]
mod kernel_mr;
#[cfg(kverbs)]
mod kernel_qp;
mod mmap;
mod mr;
mod mr_attr;
mod object;
mod ops;
mod order;
mod pd;
mod provider;
mod qp;
mod qp_attr;
mod registration;
mod revocable;
mod table;
mod udata;
mod umem;
#[cfg(any(kverbs, rdma_client))]
mod wc;
#[cfg(kverbs)]
mod work;
#[cfg(kverbs)]
mod wr_data;
#[cfg(any(kverbs, rdma_client))]
mod wr_layout;

#[allow(unused_imports, reason = "for providers that lack a kind of object")]
pub(crate) use self::provider::Absent;
pub(crate) use crate::ffi::UapiDefinitions;

pub(crate) use self::{
    ah::{
        AddressHandle,
        AhInitAttr, //
    },
    attr::{
        DeviceAttr,
        Gid,
        PortAttr,
        PortPhysState,
        PortSpeed,
        PortState,
        PortWidth, //
    },
    comp_cntr::{
        CompCntrCaps,
        CompCntrEntry,
        CompCntrInitAttr,
        CompCntrModifyOp,
        CompletionCounter,
        QpAttachOps, //
    },
    context::Ucontext,
    counters::CounterDesc,
    cq::{
        CompletionQueue,
        CqEvents,
        CqInitAttr, //
    },
    details::Details,
    device::Device,
    home::Home,
    mmap::{
        Context,
        Mapping, //
    },
    mr::{
        MemoryRegion,
        NewMr, //
    },
    mr_attr::{
        Access,
        MrInitAttr,
        MrKeys,
        PinnedMemory, //
    },
    pd::ProtectionDomain,
    provider::{
        DriverId,
        Provider, //
    },
    qp::{
        QpInitAttr,
        QueuePair, //
    },
    qp_attr::{
        ud_transition_is_ok,
        QpAttr,
        QpAttrMask,
        QpCap,
        QpState,
        QpType,
        QueriedQp, //
    },
    registration::{
        NodeInfo,
        Registration, //
    },
    revocable::{
        Hold,
        Revocable, //
    },
    udata::Udata,
    umem::{
        Pages,
        Umem, //
    },
};

#[cfg(rdma_client)]
pub(crate) use self::wc::WcOpcode;
#[cfg(kverbs)]
pub(crate) use self::wr_layout::RemoteMemory;
#[cfg(kverbs)]
pub(crate) use self::{
    completions::{
        QpRef,
        Received,
        WcPlace,
        WorkCompletion,
        WorkCompletions, //
    },
    cq::KernelCqInitAttr,
    work::{
        PeerWr,
        RecvWrs,
        SendOp,
        SendWr,
        SendWrs,
        WrToken, //
    },
    wr_data::{
        InlineData,
        MrRegistration,
        SendData, //
    },
};
#[cfg(any(kverbs, rdma_client))]
pub(crate) use self::{
    wc::WcStatus,
    wr_layout::SendWrLayout, //
};
