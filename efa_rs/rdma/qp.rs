// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs.

use kernel::prelude::*;

use super::{
    context::Context,
    device::Device,
    kernel_client::KernelClient,
    qp_attr::{
        QpAttr,
        QpAttrMask,
        QpCap,
        QpType,
        QueriedQp, //
    },
    udata::Udata,
    work::{
        QpRef,
        RecvWrs,
        SendWrs, //
    }, //
};
use crate::{
    ffi::SendWrLayout, //
};

/// What a new queue pair shall be.
pub(crate) struct QpInitAttr<'c, Pd, Cq> {
    /// Its protection domain.
    pub(crate) pd: &'c Pd,
    /// Completion queue of the send queue, which some transports do without.
    pub(crate) send_cq: Option<&'c Cq>,
    /// Completion queue of the receive queue, which some transports do without.
    pub(crate) recv_cq: Option<&'c Cq>,
    /// Its transport.
    pub(crate) qp_type: QpType,
    /// Its capacity.
    pub(crate) cap: QpCap,
    /// Whether it is to use a shared receive queue.
    pub(crate) has_srq: bool,
    /// Flags that the core defines.
    pub(crate) create_flags: u32,
}

/// A queue pair of a device with data `D`, created in a context with data `U`, in a protection domain
/// `Pd`, with completion queues `Cq`, which sends to address handles `Ah` and registers memory regions `Mr`.
#[vtable]
pub(crate) trait QueuePair<'a, D, U, Pd, Cq, Ah, Mr>: Sized + Send + Sync {
    /// The structure of send work requests of a transport that is the driver's own.
    const SEND_WR_LAYOUT: Option<&'static SendWrLayout> = None;

    /// What `rdma resource show` tells of a queue pair, by [`Self::DETAILS`].
    type Details: AsRef<[u64]> + Copy + Default + Send + Sync;

    /// Names of the details.
    const DETAILS: &'static [&'static CStr] = &[];

    /// Creates a queue pair.
    fn create(
        _device: &Device<D>,
        _context: &Context<'_, 'a, U>,
        _attr: &QpInitAttr<'_, Pd, Cq>,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Creates a queue pair for a client in the kernel, and returns what it can hold in `cap`.
    ///
    /// `qp` is what its completions name; `signal_all` says that all of its work requests are to have
    /// one.
    fn create_kernel(
        _device: &Device<D>,
        _attr: &QpInitAttr<'_, Pd, Cq>,
        _qp: QpRef,
        _signal_all: bool,
        _client: KernelClient,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Posts send work requests, up to the first one with which it fails. Called in any context.
    ///
    /// The core drains a queue pair by the completion of a work request that it posts in the error state. So that one
    /// completes as flushed, whatever it asks for, and after all that was posted before.
    fn post_send(&self, _device: &Device<D>, _wrs: &mut SendWrs<'_, Ah, Mr>) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Posts receive work requests, up to the first one with which it fails. Called in any context.
    ///
    /// In the error state they complete as those of [`Self::post_send`] do.
    fn post_recv(&self, _device: &Device<D>, _wrs: &mut RecvWrs<'_>) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Returns the number of the queue pair.
    fn qp_num(&self) -> u32 {
        0
    }

    /// Returns the details.
    fn details(&self) -> Self::Details {
        Self::Details::default()
    }

    /// Changes attributes of the queue pair.
    fn modify(&self, _device: &Device<D>, _attr: &QpAttr, _udata: &Udata<'_>) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Returns attributes of the queue pair.
    fn query(&self, _device: &Device<D>, _mask: QpAttrMask) -> Result<QueriedQp> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the queue pair.
    fn destroy(&self, _device: &Device<D>) {}
}
