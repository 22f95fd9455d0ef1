// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Encoding of send work requests of clients in the kernel.

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
        Wqe, //
        WrIndex,
    },
    rdma::{
        self,
        Access,
        InlineData,
        MrRegistration,
        PeerWr,
        QpType,
        RemoteMemory,
        SendData,
        SendOp,
        SendWr,
        Sge, //
    },
    sys::mmio::Slot,
};

/// Unit in which inline data is written, in bytes.
const INLINE_PART: usize = TxBufDesc::SIZE;

/// Maximum number of such units in a work request.
const MAX_INLINE_PARTS: usize = (MAX_WQE_SIZE - TxMetaDesc::SIZE) / INLINE_PART;

/// Writes a work request with the id `req_id`.
///
/// # Errors
///
/// - [`EINVAL`] if the queue pair or the device can't execute the work request.
#[inline]
pub(super) fn write(
    wr: &SendWr<'_, Ah, Mr<'_>>,
    qp_type: QpType,
    limits: &Limits,
    req_id: WrIndex,
    mut wqe: Wqe<'_>,
) -> Result {
    let body = &mut wqe.body;
    match wr.operation()? {
        SendOp::Send(wr) => {
            let length = match wr.data() {
                SendData::Sges(sges) => write_sges(sges, limits.send_sges, body)?,
                SendData::Inline(inline) => write_inline(&inline, limits, body)?,
            };
            for_peer(OpType::Send, &wr, length, req_id, wqe)
        }
        SendOp::RdmaWrite(wr, remote) => {
            let data = wr.data();
            write_remote(&remote, data.length(), body)?;
            let length = match data {
                SendData::Sges(sges) => write_sges(sges, limits.rdma_sges, body)?,
                // Only a large work request has room for data after the remote address.
                SendData::Inline(_) if limits.wqe_size < MAX_WQE_SIZE => return Err(EINVAL),
                SendData::Inline(inline) => write_inline(&inline, limits, body)?,
            };
            for_peer(OpType::RdmaWrite, &wr, length, req_id, wqe)
        }
        SendOp::RdmaRead(wr, remote) => {
            let SendData::Sges(sges) = wr.data() else {
                return Err(EINVAL);
            };
            write_remote(&remote, rdma::length(sges), body)?;
            let length = write_sges(sges, limits.rdma_sges, body)?;
            for_peer(OpType::RdmaRead, &wr, length, req_id, wqe)
        }
        // UD has no RDMA, and so no fast registration.
        SendOp::RegMr(_) | SendOp::LocalInv { .. } if qp_type == QpType::UD => Err(EINVAL),
        SendOp::RegMr(registration) => {
            let request = register(&registration)?.encode();
            for_region(OpType::FastReg, &request, req_id, wqe)
        }
        SendOp::LocalInv { rkey } => {
            let request = FastMrInvReq { lkey: rkey }.encode();
            for_region(OpType::FastInv, &request, req_id, wqe)
        }
    }
}

/// Writes the first descriptor of a request for a peer. `length` counts inline bytes or buffers.
// Always inlined: the descriptor would be assembled in memory otherwise.
#[inline(always)]
fn for_peer(
    op_type: OpType,
    wr: &PeerWr<'_, Ah>,
    length: usize,
    req_id: WrIndex,
    wqe: Wqe<'_>,
) -> Result {
    let imm_data = wr.imm_data();
    wqe.finish(TxMetaDesc {
        req_id: req_id.as_raw(),
        ctrl1: TxCtrl1 {
            op_type: op_type.into(),
            has_imm: imm_data.is_some(),
            inline_msg: matches!(wr.data(), SendData::Inline(_)),
            ..TxCtrl1::default()
        },
        // CAST: At most the number of places, or their bytes.
        length: length as u16,
        // Queue pair numbers of the device have 16 bits.
        dest_qp_num: u16::try_from(wr.remote_qpn()).map_err(|_| EINVAL)?,
        ah: wr.ah()?.number(),
        qkey: wr.remote_qkey(),
        immediate_data: imm_data.unwrap_or(0),
        ..TxMetaDesc::default()
    });
    Ok(())
}

/// Writes the descriptor of the remote memory that a work request accesses.
#[inline]
fn write_remote(remote: &RemoteMemory, length: Option<u32>, body: &mut Slot<'_>) -> Result {
    let remote = RemoteMemAddr {
        length: length.ok_or(EINVAL)?,
        rkey: remote.rkey,
        buf_addr: remote.addr,
    };
    body.write(&remote.encode()).ok_or(EINVAL)
}

/// Writes buffer descriptors, and returns their number. More than `most` are an error.
#[inline]
fn write_sges(sges: &[Sge], most: usize, body: &mut Slot<'_>) -> Result<usize> {
    if sges.len() > most {
        return Err(EINVAL);
    }
    for sge in sges {
        let buffer = TxBufDesc {
            length: sge.length(),
            lkey: sge.lkey(),
            buf_addr: sge.addr(),
        };
        body.write(&buffer.encode()).ok_or(EINVAL)?;
    }
    Ok(sges.len())
}

/// Writes inline data, and returns its length in bytes.
fn write_inline(data: &InlineData<'_>, limits: &Limits, body: &mut Slot<'_>) -> Result<usize> {
    let mut bytes = [[0; INLINE_PART]; MAX_INLINE_PARTS];
    // After a remote address, there may be less room than in a send.
    let most = body.room().min(limits.inline_data);
    let place = bytes.as_flattened_mut().get_mut(..most).ok_or(EINVAL)?;
    let length = data.copy_to(place).ok_or(EINVAL)?;
    for part in bytes.iter().take(length.div_ceil(INLINE_PART)) {
        body.write(part).ok_or(EINVAL)?;
    }
    Ok(length)
}

/// Writes a work request for a memory region.
#[inline(always)]
fn for_region<const N: usize>(
    op_type: OpType,
    request: &[u8; N],
    req_id: WrIndex,
    mut wqe: Wqe<'_>,
) -> Result {
    wqe.body.write(request).ok_or(EINVAL)?;
    wqe.finish(TxMetaDesc {
        req_id: req_id.as_raw(),
        ctrl1: TxCtrl1 {
            op_type: op_type.into(),
            ..TxCtrl1::default()
        },
        ..TxMetaDesc::default()
    });
    Ok(())
}

/// Converts the registration that a work request requests.
fn register(registration: &MrRegistration<'_, Mr<'_>>) -> Result<FastMrRegReq> {
    let access = registration.access();
    if access.required() & !(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE) != 0
    {
        return Err(EINVAL);
    }
    let has = |flag| access.bits() & flag != 0;
    let (pbl_mode, pbl) = registration.mr().fast_pages()?;
    Ok(FastMrRegReq {
        lkey: registration.lkey(),
        permissions: RegMrPermissions {
            local_write_enable: has(Access::LOCAL_WRITE),
            remote_write_enable: has(Access::REMOTE_WRITE),
            remote_read_enable: has(Access::REMOTE_READ),
        },
        flags: FastMrRegFlags {
            // CAST: Less than 32.
            phys_page_size_shift: registration.page_size().checked_ilog2().ok_or(EINVAL)? as u8,
            pbl_mode: pbl_mode.into(),
        },
        iova: registration.iova(),
        mr_length: registration.length(),
        pbl,
    })
}
