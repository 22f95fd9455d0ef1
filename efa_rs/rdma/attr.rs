// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes of devices and ports that providers report.

use kernel::prelude::*;

use crate::ffi;

/// Checks the name of new devices, in which the core replaces `%d` by a number.
///
/// # Errors
///
/// - [`EINVAL`] if there is another `%`, which the core reads as a format.
pub(super) fn check_name(name: &CStr) -> Result {
    let mut formats = name.to_bytes().split(|byte| *byte == b'%').skip(1);
    let first = formats.next();
    if first.is_some_and(|rest| !rest.starts_with(b"d")) || formats.next().is_some() {
        return Err(EINVAL);
    }
    Ok(())
}

/// Attributes of a device. Fields of `ib_device_attr` that are missing here are zero.
///
/// The names are those of `struct ib_device_attr`.
///
/// # Examples
///
/// ```
/// use kernel::rdma::DeviceAttr;
///
/// let attr = DeviceAttr {
///     max_pd: 4,
///     ..DeviceAttr::default()
/// };
/// assert_eq!(attr.max_qp, 0);
/// ```
#[derive(Default)]
pub(crate) struct DeviceAttr {
    /// Largest memory region in bytes.
    pub(crate) max_mr_size: u64,
    /// Page sizes that a memory region may have, as a bit mask of the sizes.
    pub(crate) page_size_cap: u64,
    /// PCI vendor id.
    pub(crate) vendor_id: u32,
    /// PCI device id.
    pub(crate) vendor_part_id: u32,
    /// Version of the hardware.
    pub(crate) hw_ver: u32,
    /// Limit on queue pairs.
    pub(crate) max_qp: u32,
    /// Limit on outstanding work requests in a queue.
    pub(crate) max_qp_wr: u32,
    /// Limit on buffers in a send work request.
    pub(crate) max_send_sge: u32,
    /// Limit on buffers in a receive work request.
    pub(crate) max_recv_sge: u32,
    /// Limit on buffers in an RDMA read work request.
    pub(crate) max_sge_rd: u32,
    /// Limit on completion queues.
    pub(crate) max_cq: u32,
    /// Limit on entries in a completion queue.
    pub(crate) max_cqe: u32,
    /// Limit on memory regions.
    pub(crate) max_mr: u32,
    /// Limit on protection domains.
    pub(crate) max_pd: u32,
    /// Limit on address handles.
    pub(crate) max_ah: u32,
    /// Limit on partitions.
    pub(crate) max_pkeys: u16,
}

impl DeviceAttr {
    pub(super) fn to_raw(&self) -> ffi::ib_device_attr {
        ffi::ib_device_attr {
            max_mr_size: self.max_mr_size,
            page_size_cap: self.page_size_cap,
            vendor_id: self.vendor_id,
            vendor_part_id: self.vendor_part_id,
            hw_ver: self.hw_ver,
            max_qp: self.max_qp,
            max_qp_wr: self.max_qp_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_sge_rd: self.max_sge_rd,
            max_cq: self.max_cq,
            max_cqe: self.max_cqe,
            max_mr: self.max_mr,
            max_pd: self.max_pd,
            max_ah: self.max_ah,
            max_pkeys: self.max_pkeys,
            ..Default::default()
        }
    }
}

/// Logical state of a port.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum PortState {
    /// Data can be sent and received.
    Active = ffi::ib_port_state_IB_PORT_ACTIVE,
}

/// Physical state of a port.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum PortPhysState {
    /// The link is up.
    LinkUp = ffi::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
}

/// Signalling rate of one lane.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum PortSpeed {
    /// 2.5 Gbit/s.
    Sdr = ffi::ib_port_speed_IB_SPEED_SDR,
    /// 5 Gbit/s.
    Ddr = ffi::ib_port_speed_IB_SPEED_DDR,
    /// 10 Gbit/s.
    Fdr10 = ffi::ib_port_speed_IB_SPEED_FDR10,
    /// 25 Gbit/s.
    Edr = ffi::ib_port_speed_IB_SPEED_EDR,
    /// 50 Gbit/s.
    Hdr = ffi::ib_port_speed_IB_SPEED_HDR,
    /// 100 Gbit/s.
    Ndr = ffi::ib_port_speed_IB_SPEED_NDR,
    /// 200 Gbit/s.
    Xdr = ffi::ib_port_speed_IB_SPEED_XDR,
}

/// Number of lanes.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum PortWidth {
    /// One lane.
    X1 = ffi::ib_port_width_IB_WIDTH_1X,
    /// Four lanes.
    X4 = ffi::ib_port_width_IB_WIDTH_4X,
    /// Eight lanes.
    X8 = ffi::ib_port_width_IB_WIDTH_8X,
    /// Twelve lanes.
    X12 = ffi::ib_port_width_IB_WIDTH_12X,
}

/// Attributes of a port. Fields of `ib_port_attr` that are missing here are zero.
///
/// The names are those of `struct ib_port_attr`.
///
/// # Examples
///
/// A port of 100 Gbit/s:
///
/// ```
/// use kernel::rdma::{PortAttr, PortPhysState, PortSpeed, PortState, PortWidth};
///
/// let attr = PortAttr {
///     state: PortState::Active,
///     phys_state: PortPhysState::LinkUp,
///     max_mtu: 4096,
///     active_mtu: 4096,
///     max_msg_sz: 4096,
///     gid_tbl_len: 1,
///     pkey_tbl_len: 1,
///     lmc: 0,
///     max_vl_num: 1,
///     active_width: PortWidth::X4,
///     active_speed: PortSpeed::Edr,
/// };
/// assert!(attr.active_mtu <= attr.max_mtu);
/// ```
pub(crate) struct PortAttr {
    /// Logical state.
    pub(crate) state: PortState,
    /// Physical state.
    pub(crate) phys_state: PortPhysState,
    /// Largest payload of a packet in bytes that the hardware allows.
    pub(crate) max_mtu: u32,
    /// Largest payload of a packet in bytes at present.
    pub(crate) active_mtu: u32,
    /// Largest message in bytes.
    pub(crate) max_msg_sz: u32,
    /// Number of entries in the GID table.
    pub(crate) gid_tbl_len: u8,
    /// Number of entries in the partition table.
    pub(crate) pkey_tbl_len: u16,
    /// LID mask control.
    pub(crate) lmc: u8,
    /// Number of virtual lanes.
    pub(crate) max_vl_num: u8,
    /// Number of lanes.
    pub(crate) active_width: PortWidth,
    /// Signalling rate of one lane.
    pub(crate) active_speed: PortSpeed,
}

impl PortAttr {
    /// Writes the attributes to the core's structure.
    pub(super) fn fill(&self, attr: &mut ffi::ib_port_attr) {
        attr.state = self.state as ffi::ib_port_state;
        // CAST: State, width and speed fit in the core's fields.
        attr.phys_state = self.phys_state as u8;
        attr.active_width = self.active_width as u8;
        attr.active_speed = self.active_speed as u16;
        attr.max_mtu = mtu(self.max_mtu);
        attr.active_mtu = mtu(self.active_mtu);
        attr.max_msg_sz = self.max_msg_sz;
        attr.gid_tbl_len = self.gid_tbl_len.into();
        attr.pkey_tbl_len = self.pkey_tbl_len;
        attr.lmc = self.lmc;
        attr.max_vl_num = self.max_vl_num;
    }
}

/// Returns the largest MTU of the InfiniBand specification up to `bytes`, but at least 256 bytes.
fn mtu(bytes: u32) -> ffi::ib_mtu {
    // SAFETY: The function has no precondition.
    unsafe { ffi::efa_ib_mtu_int_to_enum(bytes.try_into().unwrap_or(i32::MAX)) }
}

/// Link layer below the transport.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum LinkLayer {
    /// Neither InfiniBand nor Ethernet.
    Unspecified = ffi::rdma_link_layer_IB_LINK_LAYER_UNSPECIFIED,
}

/// A global identifier, in network byte order.
pub(crate) type Gid = [u8; 16];
