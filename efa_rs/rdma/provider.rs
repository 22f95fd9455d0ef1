// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a driver implements.

use kernel::{
    prelude::*,
    str::CString, //
};

use super::{
    ah::AhAttr,
    attr::{
        DeviceAttr,
        Gid,
        LinkLayer,
        PortAttr, //
    },
    context::Context,
    counters::CounterDesc,
    cq::{
        CqRequest,
        NewCq, //
    },
    mr::{
        MrRequest,
        NewMr, //
    },
    qp::{
        NewQp,
        QpAttr,
        QpAttrMask,
        QpRequest,
        QueriedQp, //
    },
    udata::Udata, //
};
use crate::ffi;

/// Number by which userspace finds the library that goes with a driver.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum DriverId {
    /// Elastic Fabric Adapter.
    Efa = ffi::rdma_driver_id_RDMA_DRIVER_EFA,
}

/// A driver of an RDMA device: the verbs that it implements.
///
/// The core calls verbs from several tasks at once, in process context, between the registration of
/// the device and its end.
pub(crate) trait Provider: Send + Sync + Sized + 'static {
    /// Which userspace library goes with the device.
    const DRIVER_ID: DriverId;

    /// Version of the interface between driver and userspace library.
    const UVERBS_ABI_VERSION: u32;

    /// Counters of the device.
    const DEVICE_COUNTERS: &'static [CounterDesc];

    /// Counters of each port.
    const PORT_COUNTERS: &'static [CounterDesc];

    /// Data of a userspace context.
    type Ucontext: Send + Sync;

    /// Data of a protection domain.
    type Pd: Send + Sync;

    /// Data of an address handle.
    type Ah: Send + Sync;

    /// Data of a completion queue.
    type Cq: Send + Sync;

    /// Data of a queue pair.
    type Qp: Send + Sync;

    /// Data of a memory region.
    type Mr: Send + Sync;

    /// Returns the version of the firmware as text.
    fn firmware_version(&self) -> Result<CString>;

    /// Returns the attributes of the device.
    fn query_device(&self, udata: &Udata<'_>) -> Result<DeviceAttr>;

    /// Returns the attributes of a port.
    fn query_port(&self, port: u32) -> Result<PortAttr>;

    /// Returns the speed of a port in units of 100 Mbit/s.
    fn query_port_speed(&self, port: u32) -> Result<u64>;

    /// Returns what is below the transport at a port.
    fn link_layer(&self, port: u32) -> LinkLayer;

    /// Returns an entry of a port's GID table.
    fn query_gid(&self, port: u32, index: u32) -> Result<Gid>;

    /// Returns an entry of a port's partition table.
    fn query_pkey(&self, port: u32, index: u16) -> Result<u16>;

    /// Creates a context for a process that opens the device.
    fn alloc_ucontext(&self, udata: &Udata<'_>) -> Result<Self::Ucontext>;

    /// Destroys a context.
    fn dealloc_ucontext(&self, ucontext: Self::Ucontext);

    /// Creates a protection domain.
    fn alloc_pd(&self, udata: &Udata<'_>) -> Result<Self::Pd>;

    /// Destroys a protection domain.
    fn dealloc_pd(&self, pd: Self::Pd);

    /// Creates an address handle.
    fn create_ah(&self, pd: &Self::Pd, attr: &AhAttr, udata: &Udata<'_>) -> Result<Self::Ah>;

    /// Destroys an address handle.
    fn destroy_ah(&self, pd: &Self::Pd, ah: Self::Ah);

    /// Creates a completion queue.
    fn create_cq(
        &self,
        context: &Context<'_, Self>,
        request: &CqRequest<'_>,
        udata: &Udata<'_>,
    ) -> Result<NewCq<Self::Cq>>;

    /// Destroys a completion queue.
    fn destroy_cq(&self, cq: Self::Cq);

    /// Creates a queue pair.
    fn create_qp(
        &self,
        context: &Context<'_, Self>,
        request: &QpRequest<'_, Self>,
        udata: &Udata<'_>,
    ) -> Result<NewQp<Self::Qp>>;

    /// Changes attributes of a queue pair.
    fn modify_qp(&self, qp: &Self::Qp, attr: &QpAttr, udata: &Udata<'_>) -> Result;

    /// Returns attributes of a queue pair.
    fn query_qp(&self, qp: &Self::Qp, mask: QpAttrMask) -> Result<QueriedQp>;

    /// Destroys a queue pair, which lives on if this fails.
    fn destroy_qp(&self, qp: &Self::Qp) -> Result;

    /// Creates a memory region.
    fn reg_user_mr(
        &self,
        pd: &Self::Pd,
        request: &MrRequest,
        udata: &Udata<'_>,
    ) -> Result<NewMr<Self::Mr>>;

    /// Destroys a memory region by its key, which lives on if this fails.
    fn dereg_mr(&self, mr: &Self::Mr, lkey: u32) -> Result;

    /// Told that a process could not map something.
    fn mmap_failed(&self);

    /// Reads the counters of the device, in the order of [`Self::DEVICE_COUNTERS`].
    fn read_device_counters(&self, values: &mut [u64]) -> Result;

    /// Reads the counters of a port, in the order of [`Self::PORT_COUNTERS`].
    fn read_port_counters(&self, port: u32, values: &mut [u64]) -> Result;
}
