// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A safe layer over the RDMA core, for drivers that provide an `ib_device`.
//!
//! A driver implements [`Provider`] and registers it with a [`Registration`]. Nothing here knows of
//! EFA; it is written as `rust/kernel/rdma` might be.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod ah;
mod attr;
mod context;
mod counters;
mod cq;
mod details;
mod device;
mod mmap;
mod mr;
mod object;
mod ops;
mod provider;
mod qp;
mod udata;
mod umem;

pub(crate) use self::{
    ah::AhAttr,
    attr::{
        DeviceAttr,
        Gid,
        LinkLayer,
        PortAttr,
        PortPhysState,
        PortSpeed,
        PortState,
        PortWidth, //
    },
    context::Context,
    counters::CounterDesc,
    cq::{
        CqEvents,
        CqRequest,
        NewCq, //
    },
    details::Details,
    device::{
        layouts_agree,
        NodeInfo,
        Registration, //
    },
    mmap::{
        Mapping,
        MmapEntry, //
    },
    mr::{
        Access,
        Interconnects,
        MrRequest,
        NewMr, //
    },
    provider::{
        DriverId,
        Provider, //
    },
    qp::{
        ud_transition_is_ok,
        NewQp,
        QpAttr,
        QpAttrMask,
        QpCap,
        QpRequest,
        QpState,
        QpType,
        QueriedQp, //
    },
    udata::Udata,
    umem::Umem, //
};
