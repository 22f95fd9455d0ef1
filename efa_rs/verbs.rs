// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The verbs: what the RDMA core, and through it userspace, asks of the driver.

mod abi;
mod counters;
mod device;
mod pd;
mod port;
mod ucontext;

use kernel::{
    pci,
    prelude::*,
    str::CString,
    sync::Arc, //
};

use crate::{
    com::{
        AdminQueue,
        Attributes,
        KeepAlives, //
    },
    rdma::{
        self,
        CounterDesc,
        DeviceAttr,
        DriverId,
        Gid,
        LinkLayer,
        PortAttr,
        Udata, //
    },
};

/// An EFA device as the RDMA core sees it.
pub(crate) struct Efa {
    admin: Arc<AdminQueue>,
    attributes: Attributes,
    ids: PciIds,
    event_queues: u32,
    keep_alives: KeepAlives,
    errors: counters::Errors,
}

/// The PCI ids that userspace knows the device by.
struct PciIds {
    vendor: u16,
    device: u16,
    subsystem_device: u16,
}

impl Efa {
    /// Makes the verbs of a device with the given number of event queues.
    pub(crate) fn new(
        pdev: &pci::Device,
        admin: Arc<AdminQueue>,
        attributes: Attributes,
        event_queues: u32,
        keep_alives: KeepAlives,
    ) -> Self {
        Self {
            admin,
            attributes,
            ids: PciIds {
                vendor: pdev.vendor_id().as_raw(),
                device: pdev.device_id(),
                subsystem_device: pdev.subsystem_device_id(),
            },
            event_queues,
            keep_alives,
            errors: counters::Errors::default(),
        }
    }

    /// Returns what the core wants to know before the device is registered.
    pub(crate) fn node_info(&self) -> rdma::NodeInfo {
        rdma::NodeInfo {
            node_guid: self.attributes.device.guid,
            num_comp_vectors: self.event_queues.max(1),
        }
    }
}

impl rdma::Provider for Efa {
    const DRIVER_ID: DriverId = DriverId::Efa;
    const UVERBS_ABI_VERSION: u32 = abi::VERSION;
    const DEVICE_COUNTERS: &'static [CounterDesc] = counters::DEVICE;
    const PORT_COUNTERS: &'static [CounterDesc] = counters::PORT;

    type Ucontext = ucontext::Ucontext;
    type Pd = pd::Pd;

    fn firmware_version(&self) -> Result<CString> {
        device::firmware_version(self)
    }

    fn query_device(&self, udata: &Udata<'_>) -> Result<DeviceAttr> {
        device::query(self, udata)
    }

    fn query_port(&self, _port: u32) -> Result<PortAttr> {
        Ok(port::query(self))
    }

    fn query_port_speed(&self, _port: u32) -> Result<u64> {
        Ok(port::speed(self))
    }

    fn link_layer(&self, _port: u32) -> LinkLayer {
        LinkLayer::Unspecified
    }

    fn query_gid(&self, _port: u32, index: u32) -> Result<Gid> {
        port::gid(self, index)
    }

    fn query_pkey(&self, _port: u32, index: u16) -> Result<u16> {
        port::pkey(index)
    }

    fn alloc_ucontext(&self, udata: &Udata<'_>) -> Result<ucontext::Ucontext> {
        ucontext::alloc(self, udata).inspect_err(|_| self.errors.alloc_ucontext_err.increment())
    }

    fn dealloc_ucontext(&self, ucontext: ucontext::Ucontext) {
        ucontext::dealloc(self, ucontext);
    }

    fn alloc_pd(&self, udata: &Udata<'_>) -> Result<pd::Pd> {
        pd::alloc(self, udata).inspect_err(|_| self.errors.alloc_pd_err.increment())
    }

    fn dealloc_pd(&self, pd: pd::Pd) {
        pd::dealloc(self, pd);
    }

    fn read_device_counters(&self, values: &mut [u64]) -> Result {
        counters::read_device(self, values)
    }

    fn read_port_counters(&self, _port: u32, values: &mut [u64]) -> Result {
        counters::read_port(self, values)
    }
}
