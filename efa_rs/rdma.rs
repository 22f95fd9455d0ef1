// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A safe layer over the RDMA core, for drivers that provide an `ib_device`.
//!
//! A driver implements [`Provider`] and registers it with a [`Registration`]. Nothing here knows of
//! EFA; it is written as `rust/kernel/rdma` might be.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod attr;
mod counters;
mod device;
mod object;
mod ops;
mod provider;
mod udata;

pub(crate) use self::{
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
    counters::CounterDesc,
    device::{
        layouts_agree,
        NodeInfo,
        Registration, //
    },
    provider::{
        DriverId,
        Provider, //
    },
    udata::Udata, //
};
