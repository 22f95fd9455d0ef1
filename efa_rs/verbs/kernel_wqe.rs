// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Send work requests of clients in the kernel, as the device wants them.

use kernel::prelude::*;

use super::{
    ah::Ah,
    kernel_qp_sizes::Limits,
    mr::Mr, //
};
use crate::{
    hw::{
        admin::mr::RegMrPermissions,
        io::{
            FastMrInvReq,
            FastMrRegFlags,
            FastMrRegReq,
            OpType,
            RemoteMemAddr,
            TxBufDesc,
            TxCtrl1,
            TxMetaDesc,
            MAX_WQE_SIZE, //
        }, //
    },
    io::{
        Body,
        Part, //
    },
    rdma::{
        self,
        Access,
        Destination,
        InlineData,
        MrRegistration,
        QpType,
        RemoteMemory,
        SendData,
        SendOp,
        SendWr,
        Sge, //
    },
};

/// Writes what is behind the first descriptor of a work request, and returns that, without an id.
///
/// # Errors
///
/// - [`EINVAL`] if the queue pair or the device can't execute it.
#[inline]
pub(super) fn encode(
    wr: &SendWr<'_, Ah, Mr<'_>>,
    qp_type: QpType,
    limits: &Limits,
    body: &mut Body,
) -> Result<TxMetaDesc> {
    match wr.operation()? {
        SendOp::Send { to, imm, data } => {
            let length = match &data {
                SendData::Sges(sges) => write_sges(sges, limits.send_sges, body)?,
                SendData::Inline(inline) => write_inline(inline, limits, body)?,
            };
            first(OpType::Send, &to, imm, &data, length)
        }
        SendOp::RdmaWrite {
            to,
            remote,
            imm,
            data,
        } => {
            let [place, places @ ..] = body;
            *place = encode_remote(&remote, data.length())?;
            let length = match &data {
                SendData::Sges(sges) => write_sges(sges, limits.rdma_sges, places)?,
                // Only a large work request has room behind the peer's memory.
                SendData::Inline(_) if limits.wqe_size < MAX_WQE_SIZE => return Err(EINVAL),
                SendData::Inline(inline) => write_inline(inline, limits, places)?,
            };
            first(OpType::RdmaWrite, &to, imm, &data, length)
        }
        SendOp::RdmaRead { to, remote, sges } => {
            let [place, places @ ..] = body;
            *place = encode_remote(&remote, rdma::length(sges))?;
            let length = write_sges(sges, limits.rdma_sges, places)?;
            first(OpType::RdmaRead, &to, None, &SendData::Sges(sges), length)
        }
        // UD has no RDMA, and so no fast registration.
        SendOp::RegMr(_) | SendOp::LocalInv { .. } if qp_type == QpType::UD => Err(EINVAL),
        SendOp::RegMr(registration) => {
            let request = register(&registration)?.encode();
            Ok(for_region(OpType::FastReg, &request, body))
        }
        SendOp::LocalInv { rkey } => {
            let request = FastMrInvReq { lkey: rkey }.encode();
            Ok(for_region(OpType::FastInv, &request, body))
        }
    }
}

/// Returns the first descriptor of a work request for a peer. `length` are bytes of inline data, or else buffers.
#[inline]
fn first(
    op_type: OpType,
    to: &Destination<'_, Ah>,
    imm: Option<u32>,
    data: &SendData<'_>,
    length: usize,
) -> Result<TxMetaDesc> {
    Ok(TxMetaDesc {
        ctrl1: TxCtrl1 {
            op_type: op_type.into(),
            has_imm: imm.is_some(),
            inline_msg: matches!(data, SendData::Inline(_)),
            ..TxCtrl1::default()
        },
        // CAST: No more than there are places, or bytes of them.
        length: length as u16,
        // CAST: Numbers of queue pairs have 16 bits; of longer ones there are none.
        dest_qp_num: u16::try_from(to.qpn).map_err(|_| EINVAL)?,
        ah: to.ah.number(),
        qkey: to.qkey,
        immediate_data: imm.unwrap_or(0),
        ..TxMetaDesc::default()
    })
}

fn encode_remote(remote: &RemoteMemory, length: Option<u32>) -> Result<Part> {
    let remote = RemoteMemAddr {
        length: length.ok_or(EINVAL)?,
        rkey: remote.rkey,
        buf_addr: remote.addr,
    };
    Ok(remote.encode())
}

/// Writes buffers, of which there may be `most`, and returns how many they are.
#[inline]
fn write_sges(sges: &[Sge], most: usize, places: &mut [Part]) -> Result<usize> {
    if sges.len() > most {
        return Err(EINVAL);
    }
    for (sge, place) in sges.iter().zip(places) {
        let buffer = TxBufDesc {
            length: sge.length(),
            lkey: sge.lkey(),
            buf_addr: sge.addr(),
        };
        *place = buffer.encode();
    }
    Ok(sges.len())
}

/// Writes inline data, and returns how many bytes they are.
fn write_inline(data: &InlineData<'_>, limits: &Limits, places: &mut [Part]) -> Result<usize> {
    let place = places.as_flattened_mut();
    // Behind the peer's memory there is less room than a device may have for a send.
    let length = place.len().min(limits.inline_data);
    let place = place.get_mut(..length).ok_or(EINVAL)?;
    data.copy_to(place).ok_or(EINVAL)
}

/// Writes a work request for a memory region, and returns its first descriptor.
fn for_region(op_type: OpType, request: &[u8; FastMrRegReq::SIZE], body: &mut Body) -> TxMetaDesc {
    for (place, part) in body.iter_mut().zip(request.chunks_exact(TxBufDesc::SIZE)) {
        place.copy_from_slice(part);
    }
    TxMetaDesc {
        ctrl1: TxCtrl1 {
            op_type: op_type.into(),
            ..TxCtrl1::default()
        },
        ..TxMetaDesc::default()
    }
}

/// Returns the registration that a work request asks for.
fn register(registration: &MrRegistration<'_, Mr<'_>>) -> Result<FastMrRegReq> {
    let access = registration.access;
    if access.required() & !(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE) != 0
    {
        return Err(EINVAL);
    }
    let has = |flag| access.bits() & flag != 0;
    let (pbl_mode, pbl) = registration.mr.fast_pages()?;
    Ok(FastMrRegReq {
        lkey: registration.lkey,
        permissions: RegMrPermissions {
            local_write_enable: has(Access::LOCAL_WRITE),
            remote_write_enable: has(Access::REMOTE_WRITE),
            remote_read_enable: has(Access::REMOTE_READ),
        },
        flags: FastMrRegFlags {
            // CAST: Less than 32.
            phys_page_size_shift: registration.page_size.checked_ilog2().ok_or(EINVAL)? as u8,
            pbl_mode: pbl_mode.into(),
        },
        iova: registration.iova,
        mr_length: registration.length,
        pbl,
    })
}
