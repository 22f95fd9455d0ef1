// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a driver implements.

use kernel::{
    prelude::*,
    str::CString, //
};

use super::{
    attr::{
        DeviceAttr,
        Gid,
        LinkLayer,
        PortAttr, //
    },
    counters::CounterDesc,
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

    /// Reads the counters of the device, in the order of [`Self::DEVICE_COUNTERS`].
    fn read_device_counters(&self, values: &mut [u64]) -> Result;

    /// Reads the counters of a port, in the order of [`Self::PORT_COUNTERS`].
    fn read_port_counters(&self, port: u32, values: &mut [u64]) -> Result;
}
