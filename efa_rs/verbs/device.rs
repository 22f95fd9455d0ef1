// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes of the device.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    str::CString, //
};

use super::{
    abi::{
        DeviceCaps,
        QueryDeviceResp, //
    },
    Efa,
};
use crate::rdma::{
    DeviceAttr,
    Udata, //
};

/// Returns the version of the firmware as text.
///
/// The device gives 32 bits whose parts have no documented meaning, so they are shown as they are.
pub(super) fn firmware_version(efa: &Efa) -> Result<CString> {
    CString::try_from_fmt(fmt!("{:#010x}", efa.attributes.device.fw_version))
}

/// Returns the attributes, and EFA's own ones as output.
///
/// # Errors
///
/// Those of [`Udata`].
pub(super) fn query(efa: &Efa, udata: &Udata<'_>) -> Result<DeviceAttr> {
    udata.expect_no_input()?;

    let device = &efa.attributes.device;
    let queues = &efa.attributes.queues;

    if udata.wants_output() {
        let response = QueryDeviceResp {
            max_sq_wr: queues.max_sq_depth,
            max_rq_wr: queues.max_rq_depth,
            max_sq_sge: queues.max_wr_send_sges,
            max_rq_sge: queues.max_wr_recv_sges,
            max_rdma_size: device.max_rdma_size,
            device_caps: caps(efa),
            ..QueryDeviceResp::default()
        };
        udata.respond(&response.encode())?;
    }

    Ok(DeviceAttr {
        max_mr_size: u64::from(queues.max_mr_pages).saturating_mul(PAGE_SIZE as u64),
        page_size_cap: device.page_size_cap,
        vendor_id: efa.ids.vendor.into(),
        vendor_part_id: efa.ids.device.into(),
        hw_ver: efa.ids.subsystem_device.into(),
        max_qp: queues.max_qp,
        max_qp_wr: queues.max_sq_depth.min(queues.max_rq_depth),
        max_send_sge: queues.max_wr_send_sges.into(),
        max_recv_sge: queues.max_wr_recv_sges.into(),
        max_sge_rd: queues.max_wr_rdma_sges.into(),
        max_cq: queues.max_cq,
        max_cqe: queues.max_cq_depth,
        max_mr: queues.max_mr,
        max_pd: queues.max_pd,
        max_ah: queues.max_ah,
        max_pkeys: 1,
    })
}

/// Returns what the device and the driver can do.
fn caps(efa: &Efa) -> DeviceCaps {
    let device = &efa.attributes.device.device_caps;

    DeviceCaps {
        rdma_read: device.rdma_read,
        rnr_retry: device.rnr_retry,
        cq_notifications: !efa.event_targets.is_empty(),
        cq_with_sgid: true,
        data_polling_128: device.data_polling_128,
        rdma_write: device.rdma_write,
        unsolicited_write_recv: device.unsolicited_write_recv,
        cq_with_ext_mem: true,
    }
}
