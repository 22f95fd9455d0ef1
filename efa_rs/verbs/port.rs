// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device's only port.

use kernel::prelude::*;

use super::Efa;
use crate::rdma::{
    Gid,
    PortAttr,
    PortPhysState,
    PortSpeed,
    PortState,
    PortWidth, //
};

/// The partition key of all packets: the default one, with full membership.
const PKEY: u16 = 0xffff;

pub(super) fn query(efa: &Efa<'_>) -> PortAttr {
    let mtu = efa.attributes().network.mtu;
    let (active_width, active_speed) = lanes(efa.attributes().device.max_link_speed_gbps);

    PortAttr {
        state: PortState::Active,
        phys_state: PortPhysState::LinkUp,
        max_mtu: mtu,
        active_mtu: mtu,
        max_msg_sz: mtu,
        gid_tbl_len: 1,
        pkey_tbl_len: 1,
        lmc: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
    }
}

/// Returns the speed of the port in units of 100 Mbit/s.
pub(super) fn speed(efa: &Efa<'_>) -> u64 {
    u64::from(efa.attributes().device.max_link_speed_gbps) * 10
}

/// Returns the InfiniBand width and speed of a link of `gbps` Gbit/s, or of the next slower link:
/// at least 25 Gbit/s. The choice is that of Linux's C driver.
fn lanes(gbps: u16) -> (PortWidth, PortSpeed) {
    match gbps {
        1600.. => (PortWidth::X8, PortSpeed::Xdr),
        800.. => (PortWidth::X8, PortSpeed::Ndr),
        400.. => (PortWidth::X8, PortSpeed::Hdr),
        200.. => (PortWidth::X4, PortSpeed::Hdr),
        120.. => (PortWidth::X12, PortSpeed::Fdr10),
        100.. => (PortWidth::X4, PortSpeed::Edr),
        60.. => (PortWidth::X12, PortSpeed::Ddr),
        50.. => (PortWidth::X1, PortSpeed::Hdr),
        40.. => (PortWidth::X4, PortSpeed::Fdr10),
        30.. => (PortWidth::X12, PortSpeed::Sdr),
        _ => (PortWidth::X1, PortSpeed::Edr),
    }
}

/// Returns the port's GID: the device's address.
///
/// # Errors
///
/// - [`EINVAL`] if `index` is not 0, that of the only entry.
pub(super) fn gid(efa: &Efa<'_>, index: u32) -> Result<Gid> {
    if index != 0 {
        return Err(EINVAL);
    }
    Ok(efa.attributes().network.addr)
}

/// Returns the port's partition key.
///
/// # Errors
///
/// - [`EINVAL`] if `index` is not 0, that of the only entry.
pub(super) fn pkey(index: u16) -> Result<u16> {
    if index != 0 {
        return Err(EINVAL);
    }
    Ok(PKEY)
}
