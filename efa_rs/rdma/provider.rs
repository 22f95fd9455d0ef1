// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a driver implements for its devices.

use kernel::{
    prelude::*,
    str::CString, //
};

use super::{
    ah::AddressHandle,
    attr::{
        DeviceAttr,
        Gid,
        LinkLayer,
        PortAttr, //
    },
    comp_cntr::CompletionCounter,
    context::Ucontext,
    counters::CounterDesc,
    cq::CompletionQueue,
    device::{
        Device,
        Named, //
    },
    mr::MemoryRegion,
    pd::ProtectionDomain,
    qp::QueuePair,
    udata::Udata, //
};
use crate::{
    ffi, //
};

/// Number by which userspace finds the library that goes with a driver: one of
/// `enum rdma_driver_id`.
#[derive(Clone, Copy)]
pub(crate) struct DriverId(ffi::rdma_driver_id);

impl DriverId {
    /// No library goes with the driver.
    #[allow(
        dead_code,
        reason = "for providers that have no number yet, see samples/"
    )]
    pub(crate) const UNKNOWN: Self = Self(ffi::rdma_driver_id_RDMA_DRIVER_UNKNOWN);

    /// Makes an id of its number.
    #[allow(dead_code, reason = "for providers that have a number")]
    pub(crate) const fn new(number: ffi::rdma_driver_id) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub(super) const fn as_raw(self) -> ffi::rdma_driver_id {
        self.0
    }
}

/// A driver of RDMA devices.
///
/// The core calls verbs from several tasks at once, in process context, between the registration of
/// a device and its end. `'a` is how long the data of the registration is valid.
#[vtable]
pub(crate) trait Provider: Sized + 'static {
    /// Which userspace library goes with the device.
    const DRIVER_ID: DriverId;

    /// Version of the interface between driver and userspace library.
    const UVERBS_ABI_VERSION: u32;

    /// Methods of the core's objects that are the driver's own.
    const UAPI: Option<ffi::UapiDefinitions> = None;

    /// How many ports a device has; they are numbered from 1 on.
    const PORTS: u32 = 1;

    /// Counters of the device.
    const DEVICE_COUNTERS: &'static [CounterDesc] = &[];

    /// Counters of each port.
    const PORT_COUNTERS: &'static [CounterDesc] = &[];

    /// What verbs need to know of the device; owned by its registration.
    type Data<'a>: Send + Sync + 'a;

    /// Contexts of processes.
    type Ucontext<'a>: Ucontext<Self::Data<'a>>;

    /// Protection domains.
    type Pd<'a>: ProtectionDomain<Self::Data<'a>>;

    /// Address handles.
    type Ah<'a>: AddressHandle<Self::Data<'a>, Self::Pd<'a>>;

    /// Completion queues.
    type Cq<'a>: CompletionQueue<'a, Self::Data<'a>, Self::Ucontext<'a>>;

    /// Queue pairs.
    type Qp<'a>: QueuePair<
        'a,
        Self::Data<'a>,
        Self::Ucontext<'a>,
        Self::Pd<'a>,
        Self::Cq<'a>,
        Self::Ah<'a>,
        Self::Mr<'a>,
    >;

    /// Completion counters.
    type CompCntr<'a>: CompletionCounter<'a, Self::Data<'a>, Self::Ucontext<'a>, Self::Qp<'a>>;

    /// Memory regions.
    type Mr<'a>: MemoryRegion<'a, Self::Data<'a>, Self::Pd<'a>>;

    /// Told that programs can use the device: after its registration, and after it was moved to another
    /// network namespace.
    fn enabled<'a>(_device: &Named<'_, Self::Data<'a>>) {}

    /// Returns the attributes of the device.
    fn query_device<'a>(device: &Device<Self::Data<'a>>, udata: &Udata<'_>) -> Result<DeviceAttr>;

    /// Returns the attributes of a port.
    fn query_port<'a>(device: &Device<Self::Data<'a>>, port: u32) -> Result<PortAttr>;

    /// Returns what is below the transport at a port.
    fn link_layer<'a>(_device: &Device<Self::Data<'a>>, _port: u32) -> LinkLayer {
        LinkLayer::Unspecified
    }

    /// Returns the version of the firmware as text.
    fn firmware_version<'a>(_device: &Device<Self::Data<'a>>) -> Result<CString> {
        Err(EOPNOTSUPP)
    }

    /// Returns the speed of a port in units of 100 Mbit/s.
    fn query_port_speed<'a>(_device: &Device<Self::Data<'a>>, _port: u32) -> Result<u64> {
        Err(EOPNOTSUPP)
    }

    /// Returns an entry of a port's GID table.
    fn query_gid<'a>(_device: &Device<Self::Data<'a>>, _port: u32, _index: u32) -> Result<Gid> {
        Err(EOPNOTSUPP)
    }

    /// Returns an entry of a port's partition table.
    fn query_pkey<'a>(_device: &Device<Self::Data<'a>>, _port: u32, _index: u16) -> Result<u16> {
        Err(EOPNOTSUPP)
    }

    /// Told that a process could not map something.
    fn mmap_failed<'a>(_device: &Device<Self::Data<'a>>) {}

    /// Reads the counters of the device, in the order of [`Self::DEVICE_COUNTERS`].
    fn read_device_counters<'a>(_device: &Device<Self::Data<'a>>, _values: &mut [u64]) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Reads the counters of a port, in the order of [`Self::PORT_COUNTERS`].
    fn read_port_counters<'a>(
        _device: &Device<Self::Data<'a>>,
        _port: u32,
        _values: &mut [u64],
    ) -> Result {
        Err(EOPNOTSUPP)
    }
}

/// A kind of object that a provider does not have.
pub(crate) enum Absent {}

#[vtable]
impl<D> Ucontext<D> for Absent {}

#[vtable]
impl<D> ProtectionDomain<D> for Absent {}

#[vtable]
impl<D, Pd> AddressHandle<D, Pd> for Absent {}

#[vtable]
impl<'a, D, U> CompletionQueue<'a, D, U> for Absent {
    type Details = [u64; 0];
}

#[vtable]
impl<'a, D, U, Pd, Cq, Ah, Mr> QueuePair<'a, D, U, Pd, Cq, Ah, Mr> for Absent {
    type Details = [u64; 0];
}

#[vtable]
impl<'a, D, U, Qp> CompletionCounter<'a, D, U, Qp> for Absent {}

#[vtable]
impl<'a, D, Pd> MemoryRegion<'a, D, Pd> for Absent {
    type Details = [u64; 0];
    type Shared = ();
}
