// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Encoding of send work requests of clients in the kernel.

use kernel::prelude::*;

use super::{
    ah::Ah,
    kernel_qp_sizes::Limits,
    mr::Mr, //
};
use crate::{
    hw::io::{
        FastMrInvReq,
        OpType,
        RemoteMemAddr,
        TxBufDesc,
        TxCtrl1,
        TxMetaDesc,
        MAX_WQE_SIZE, //
    },
    io::{
        Wqe, //
        WrIndex,
    },
    rdma::{
        InlineData,
        PeerWr,
        QpType,
        RemoteMemory,
        SendData,
        SendOp,
        SendWr, //
    },
};

/// Unit in which inline data is written, in bytes.
const INLINE_PART: usize = TxBufDesc::SIZE;

/// Inline data of a work request, with its length in bytes.
type Inline = (
    [[u8; INLINE_PART]; (MAX_WQE_SIZE - TxMetaDesc::SIZE) / INLINE_PART],
    usize,
);

/// Writes a work request with the id `req_id`. Nothing is written if this fails: the slot's memory is
/// write-combining, so that a part could reach the device after the next work request in the slot.
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
    wqe: Wqe<'_>,
) -> Result {
    match wr.operation()? {
        SendOp::Send(wr) => for_peer(OpType::Send, &wr, None, limits, req_id, wqe),
        SendOp::RdmaWrite(wr, remote) => {
            for_peer(OpType::RdmaWrite, &wr, Some(remote), limits, req_id, wqe)
        }
        SendOp::RdmaRead(wr, remote) => {
            for_peer(OpType::RdmaRead, &wr, Some(remote), limits, req_id, wqe)
        }
        // UD has no RDMA, and so no fast registration.
        SendOp::RegMr(_) | SendOp::LocalInv { .. } if qp_type == QpType::UD => Err(EINVAL),
        SendOp::RegMr(registration) => {
            let request = registration.mr().fast_reg(&registration)?.encode();
            for_region(OpType::FastReg, &request, req_id, wqe)
        }
        SendOp::LocalInv { rkey } => {
            let request = FastMrInvReq { lkey: rkey }.encode();
            for_region(OpType::FastInv, &request, req_id, wqe)
        }
    }
}

/// Writes a request for a peer.
// Always inlined: the descriptor would be assembled in memory otherwise.
#[inline(always)]
fn for_peer(
    op_type: OpType,
    wr: &PeerWr<'_, Ah>,
    remote: Option<RemoteMemory>,
    limits: &Limits,
    req_id: WrIndex,
    mut wqe: Wqe<'_>,
) -> Result {
    let body = &mut wqe.body;
    let (data, imm_data) = (wr.data(), wr.imm_data());
    let most = match remote {
        Some(_) => limits.rdma_sges,
        None => limits.send_sges,
    };
    let (inline, length) = match &data {
        SendData::Sges(sges) if sges.len() <= most => (None, sges.len()),
        SendData::Sges(_) => return Err(EINVAL),
        SendData::Inline(data) => {
            // Only a large work request has room for data after the remote address.
            let room = match remote {
                None => body.room(),
                Some(_) if limits.wqe_size < MAX_WQE_SIZE => return Err(EINVAL),
                Some(_) => body.room() - RemoteMemAddr::SIZE,
            };
            let inline = copy_inline(data, room.min(limits.inline_data))?;
            (Some(inline.0), inline.1)
        }
    };
    // Queue pair numbers of the device have 16 bits.
    let dest_qp_num = u16::try_from(wr.remote_qpn()).map_err(|_| EINVAL)?;
    let ah = wr.ah()?.number();
    let remote = match remote {
        Some(remote) => Some(RemoteMemAddr {
            length: data.length().ok_or(EINVAL)?,
            rkey: remote.rkey,
            buf_addr: remote.addr,
        }),
        None => None,
    };

    // There is room for what was checked above.
    if let Some(remote) = remote {
        body.write(&remote.encode()).ok_or(EINVAL)?;
    }
    if let SendData::Sges(sges) = data {
        for sge in sges {
            let buffer = TxBufDesc {
                length: sge.length(),
                lkey: sge.lkey(),
                buf_addr: sge.addr(),
            };
            body.write(&buffer.encode()).ok_or(EINVAL)?;
        }
    }
    for part in inline.iter().flatten().take(length.div_ceil(INLINE_PART)) {
        body.write(part).ok_or(EINVAL)?;
    }
    wqe.finish(TxMetaDesc {
        req_id: req_id.as_raw(),
        ctrl1: TxCtrl1 {
            op_type: op_type.into(),
            has_imm: imm_data.is_some(),
            inline_msg: inline.is_some(),
            ..TxCtrl1::default()
        },
        // CAST: At most the number of places, or their bytes.
        length: length as u16,
        dest_qp_num,
        ah,
        qkey: wr.remote_qkey(),
        immediate_data: imm_data.unwrap_or(0),
        ..TxMetaDesc::default()
    });
    Ok(())
}

/// Copies inline data of at most `most` bytes.
fn copy_inline(data: &InlineData<'_>, most: usize) -> Result<Inline> {
    let mut bytes = Inline::default();
    let place = bytes.0.as_flattened_mut().get_mut(..most).ok_or(EINVAL)?;
    bytes.1 = data.copy_to(place).ok_or(EINVAL)?;
    Ok(bytes)
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
