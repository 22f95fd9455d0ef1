// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The verbs: what the RDMA core, and through it userspace, asks of the driver.

mod abi;
mod ah;
mod bars;
mod counters;
mod cq;
mod device;
mod mr;
mod pd;
mod port;
mod qp;
mod qp_state;
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
        EventTarget,
        KeepAlives, //
    },
    hw,
    rdma::{
        self,
        AhAttr,
        Context,
        CounterDesc,
        CqEvents,
        CqRequest,
        DeviceAttr,
        DriverId,
        Gid,
        LinkLayer,
        MrRequest,
        NewCq,
        NewMr,
        NewQp,
        PortAttr,
        QpAttr,
        QpAttrMask,
        QpRequest,
        QueriedQp,
        Udata, //
    },
    sys::errno::eopnotsupp,
};

/// An EFA device as the RDMA core sees it.
pub(crate) struct Efa {
    admin: Arc<AdminQueue>,
    attributes: Attributes,
    ids: PciIds,
    bars: bars::Bars,
    event_targets: KVec<EventTarget<CqEvents>>,
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
    /// Makes the verbs of a device.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if a BAR is missing.
    pub(crate) fn new(
        pdev: &pci::Device,
        admin: Arc<AdminQueue>,
        attributes: Attributes,
        event_targets: KVec<EventTarget<CqEvents>>,
        keep_alives: KeepAlives,
    ) -> Result<Self> {
        // CAST: The driver has reserved this BAR.
        let doorbells = attributes.device.db_bar as u8;
        Ok(Self {
            admin,
            attributes,
            ids: PciIds {
                vendor: pdev.vendor_id().as_raw(),
                device: pdev.device_id(),
                subsystem_device: pdev.subsystem_device_id(),
            },
            bars: bars::Bars::new(pdev, doorbells, hw::pci::MEMORY_BAR)?,
            event_targets,
            keep_alives,
            errors: counters::Errors::default(),
        })
    }

    /// Returns what the core wants to know before the device is registered.
    ///
    /// # Errors
    ///
    /// Those of reading the port's counters, but for `EOPNOTSUPP`: then there are none.
    pub(crate) fn node_info(&self) -> Result<rdma::NodeInfo> {
        Ok(rdma::NodeInfo {
            node_guid: self.attributes.device.guid,
            // CAST: There are fewer than 256 of them.
            num_comp_vectors: self.event_targets.len().max(1) as u32,
            has_port_counters: counters::has_port(self)?,
        })
    }
}

impl rdma::Provider for Efa {
    const DRIVER_ID: DriverId = DriverId::Efa;
    const UVERBS_ABI_VERSION: u32 = abi::VERSION;
    const DEVICE_COUNTERS: &'static [CounterDesc] = counters::DEVICE;
    const PORT_COUNTERS: &'static [CounterDesc] = counters::PORT;

    type Ucontext = ucontext::Ucontext;
    type Pd = pd::Pd;
    type Ah = ah::Ah;
    type Cq = cq::Cq;
    type Qp = qp::Qp;
    type Mr = mr::Mr;

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

    fn create_ah(&self, pd: &pd::Pd, attr: &AhAttr, udata: &Udata<'_>) -> Result<ah::Ah> {
        ah::create(self, pd, attr, udata).inspect_err(|_| self.errors.create_ah_err.increment())
    }

    fn destroy_ah(&self, pd: &pd::Pd, ah: ah::Ah) {
        ah::destroy(self, pd, ah);
    }

    fn create_cq(
        &self,
        context: &Context<'_, Self>,
        request: &CqRequest<'_>,
        udata: &Udata<'_>,
    ) -> Result<NewCq<cq::Cq>> {
        // As in the C driver, this is not counted.
        if request.flags != 0 {
            return Err(eopnotsupp());
        }
        cq::create(self, context, request, udata)
            .inspect_err(|_| self.errors.create_cq_err.increment())
    }

    fn destroy_cq(&self, cq: cq::Cq) {
        drop(cq);
    }

    fn create_qp(
        &self,
        context: &Context<'_, Self>,
        request: &QpRequest<'_, Self>,
        udata: &Udata<'_>,
    ) -> Result<NewQp<qp::Qp>> {
        qp::create(self, context, request, udata)
            .inspect_err(|_| self.errors.create_qp_err.increment())
    }

    fn modify_qp(&self, qp: &qp::Qp, attr: &QpAttr, udata: &Udata<'_>) -> Result {
        qp::modify(self, qp, attr, udata)
    }

    fn query_qp(&self, qp: &qp::Qp, mask: QpAttrMask) -> Result<QueriedQp> {
        qp::query(self, qp, mask)
    }

    fn destroy_qp(&self, qp: &qp::Qp) -> Result {
        qp::destroy(qp)
    }

    fn reg_user_mr(
        &self,
        pd: &pd::Pd,
        request: &MrRequest,
        udata: &Udata<'_>,
    ) -> Result<NewMr<mr::Mr>> {
        mr::register(self, pd, request, udata).inspect_err(|_| self.errors.reg_mr_err.increment())
    }

    fn dereg_mr(&self, mr: &mr::Mr, lkey: u32) -> Result {
        mr::deregister(self, mr, lkey)
    }

    fn mmap_failed(&self) {
        self.errors.mmap_err.increment();
    }

    fn read_device_counters(&self, values: &mut [u64]) -> Result {
        counters::read_device(self, values)
    }

    fn read_port_counters(&self, _port: u32, values: &mut [u64]) -> Result {
        counters::read_port(self, values)
    }
}
