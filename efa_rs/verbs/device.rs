// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes of the device.

use kernel::{
    fmt,
    page::PAGE_SIZE,
    prelude::*,
    str::CString, //
};

use super::{
    abi,
    ah::Ah,
    comp_cntr::CompCntr,
    counters,
    cq::Cq,
    mr::Mr,
    pd::Pd,
    port,
    qp::Qp,
    ucontext::Ucontext,
    Efa,
    Verbs, //
};
use crate::rdma::{
    self,
    CounterDesc,
    DeviceAttr,
    DriverId,
    Gid,
    NodeInfo,
    PortAttr,
    UapiDefinitions,
    Udata, //
};

#[vtable]
impl rdma::Provider for Verbs {
    const DRIVER_ID: DriverId = abi::DRIVER_ID;
    const UVERBS_ABI_VERSION: u32 = abi::VERSION;
    const ROBUST_UDATA: bool = true;
    const UAPI: Option<UapiDefinitions<[u16; 4]>> = Some(abi::METHODS);
    const DEVICE_COUNTERS: &'static [CounterDesc] = counters::DEVICE;
    const PORT_COUNTERS: &'static [CounterDesc] = counters::PORT;

    type Data<'a> = Efa<'a>;
    type Ucontext<'a> = Ucontext;
    type Pd<'a> = Pd;
    type Ah<'a> = Ah;
    type Cq<'a> = Cq<'a>;
    type Qp<'a> = Qp<'a>;
    type CompCntr<'a> = CompCntr<'a>;
    type Mr<'a> = Mr<'a>;

    fn enabled<'a>(device: &rdma::Device<Efa<'a>>, log: &dyn Fn(fmt::Arguments<'_>)) {
        let event_queues = device.data().session.event_queues();
        log(fmt!("ready, with {} event queues", event_queues));
    }

    fn has_failed<'a>(device: &rdma::Device<Efa<'a>>) -> bool {
        device.data().session.epoch().is_halted()
    }

    fn firmware_version<'a>(device: &rdma::Device<Efa<'a>>) -> Result<CString> {
        firmware_version(device.data())
    }

    fn query_device<'a>(device: &rdma::Device<Efa<'a>>, udata: &Udata<'_>) -> Result<DeviceAttr> {
        query(device.data(), udata)
    }

    fn query_port<'a>(device: &rdma::Device<Efa<'a>>, _port: u32) -> Result<PortAttr> {
        Ok(port::query(device.data()))
    }

    fn query_port_speed<'a>(device: &rdma::Device<Efa<'a>>, _port: u32) -> Result<u64> {
        Ok(port::speed(device.data()))
    }

    fn query_gid<'a>(device: &rdma::Device<Efa<'a>>, _port: u32, index: u32) -> Result<Gid> {
        port::gid(device.data(), index)
    }

    fn query_pkey<'a>(_device: &rdma::Device<Efa<'a>>, _port: u32, index: u16) -> Result<u16> {
        port::pkey(index)
    }

    fn mmap_failed<'a>(device: &rdma::Device<Efa<'a>>) {
        device.data().errors.mmap_err.increment();
    }

    fn read_device_counters<'a>(device: &rdma::Device<Efa<'a>>, values: &mut [u64]) -> Result {
        counters::read_device(device.data(), values)
    }

    fn read_port_counters<'a>(
        device: &rdma::Device<Efa<'a>>,
        _port: u32,
        values: &mut [u64],
    ) -> Result {
        counters::read_port(device.data(), values)
    }
}

impl Efa<'_> {
    /// Returns the node's attributes that the core needs for the registration of the device.
    ///
    /// # Errors
    ///
    /// Those of reading the port's counters except `EOPNOTSUPP`, which means that there are none.
    pub(crate) fn node_info(&self) -> Result<NodeInfo> {
        Ok(NodeInfo {
            node_guid: self.attributes().device.guid,
            // CAST: There are fewer than 256 event queues.
            num_comp_vectors: self.session.event_queues() as u32,
            has_port_counters: counters::has_port(self)?,
        })
    }
}

/// Returns the version of the firmware as text.
///
/// The device reports 32 bits without a documented format, so they are printed unmodified.
fn firmware_version(efa: &Efa<'_>) -> Result<CString> {
    CString::try_from_fmt(fmt!("{:#010x}", efa.attributes().device.fw_version))
}

/// Returns the attributes, and writes EFA's own attributes to `udata`.
///
/// # Errors
///
/// Those of [`Udata`].
fn query(efa: &Efa<'_>, udata: &Udata<'_>) -> Result<DeviceAttr> {
    udata.expect_no_input()?;

    let device = &efa.attributes().device;
    let queues = &efa.attributes().queues;

    let response = abi::QueryDeviceResp {
        max_sq_wr: queues.max_sq_depth,
        max_rq_wr: queues.max_rq_depth,
        max_sq_sge: queues.max_wr_send_sges,
        max_rq_sge: queues.max_wr_recv_sges,
        max_rdma_size: device.max_rdma_size,
        device_caps: caps(efa),
        ..abi::QueryDeviceResp::default()
    };
    udata.respond(&response)?;

    Ok(DeviceAttr {
        max_mr_size: u64::from(queues.max_mr_pages).saturating_mul(PAGE_SIZE as u64),
        page_size_cap: device.page_size_cap,
        vendor_id: efa.ids.vendor.into(),
        vendor_part_id: efa.ids.device.into(),
        hw_ver: efa.ids.subsystem_device.into(),
        max_qp: queues.max_qp,
        max_qp_wr: largest(queues.max_sq_depth.min(queues.max_rq_depth)),
        max_send_sge: queues.max_wr_send_sges.into(),
        max_recv_sge: queues.max_wr_recv_sges.into(),
        max_sge_rd: queues.max_wr_rdma_sges.into(),
        max_cq: queues.max_cq,
        max_cqe: largest(queues.max_cq_depth),
        max_mr: queues.max_mr,
        max_pd: queues.max_pd,
        max_ah: queues.max_ah,
        max_pkeys: 1,
    })
}

/// Returns the largest depth up to `limit` of a queue of a program, and of a client in the kernel, whose
/// depths are powers of two.
fn largest(limit: u32) -> u32 {
    match limit.checked_ilog2() {
        Some(shift) if cfg!(kverbs) => 1 << shift,
        _ => limit,
    }
}

/// Returns the capabilities of the device and the driver.
fn caps(efa: &Efa<'_>) -> u32 {
    let device = &efa.attributes().device.device_caps;
    let cap = |has: bool, cap: u32| if has { cap } else { 0 };

    abi::CAPS_CQ_WITH_SGID
        | abi::CAPS_CQ_WITH_EXT_MEM
        | cap(device.rdma_read, abi::CAPS_RDMA_READ)
        | cap(device.rnr_retry, abi::CAPS_RNR_RETRY)
        | cap(efa.session.event_queues() != 0, abi::CAPS_CQ_NOTIFICATIONS)
        | cap(device.data_polling_128, abi::CAPS_DATA_POLLING_128)
        | cap(device.rdma_write, abi::CAPS_RDMA_WRITE)
        | cap(
            device.unsolicited_write_recv,
            abi::CAPS_UNSOLICITED_WRITE_RECV,
        )
        | cap(device.event_counters, abi::CAPS_COMP_CNTR)
        | cap(device.sq_64_bit_req_id, abi::CAPS_SQ_64_BIT_REQ_ID)
}
