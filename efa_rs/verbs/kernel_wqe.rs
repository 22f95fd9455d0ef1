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
        Wqe,
        WrIndex, //
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
    sys::mmio::Slot,
};

/// Unit in which inline data is written, in bytes.
const INLINE_PART: usize = TxBufDesc::SIZE;

/// Maximum number of bytes of inline data, whole parts.
const MAX_INLINE: usize = MAX_WQE_SIZE - TxMetaDesc::SIZE;

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
    let (op_type, wr, remote) = match wr.operation()? {
        SendOp::Send(wr) => (OpType::Send, wr, None),
        SendOp::RdmaWrite(wr, remote) => (OpType::RdmaWrite, wr, Some(remote)),
        SendOp::RdmaRead(wr, remote) => (OpType::RdmaRead, wr, Some(remote)),
        // UD has no RDMA, and so no fast registration.
        SendOp::RegMr(_) | SendOp::LocalInv { .. } if qp_type == QpType::UD => return Err(EINVAL),
        SendOp::RegMr(registration) => {
            let request = registration.mr().fast_reg(&registration)?.encode();
            return for_region(OpType::FastReg, &request, req_id, wqe);
        }
        SendOp::LocalInv { rkey } => {
            let request = FastMrInvReq { lkey: rkey }.encode();
            return for_region(OpType::FastInv, &request, req_id, wqe);
        }
    };
    for_peer(op_type, &wr, remote, limits, req_id, wqe)
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
    let data = wr.data();
    let fits = match (&data, &remote) {
        (SendData::Sges(sges), None) => sges.len() <= limits.send_sges,
        (SendData::Sges(sges), Some(_)) => sges.len() <= limits.rdma_sges,
        // `write_inline` checks this.
        (SendData::Inline(_), None) => true,
        (SendData::Inline(_), Some(_)) => {
            let both = data.length().zip(limits.rdma_inline_data);
            both.is_some_and(|(length, most)| length <= most)
        }
    };
    if !fits {
        return Err(EINVAL);
    }
    // Queue pair numbers of the device have 16 bits.
    let dest_qp_num = u16::try_from(wr.remote_qpn()).map_err(|_| EINVAL)?;
    let ah = wr.ah()?.number();
    if let Some(remote) = remote {
        let remote = RemoteMemAddr {
            length: data.length().ok_or(EINVAL)?,
            rkey: remote.rkey,
            buf_addr: remote.addr,
        };
        wqe.body.write(&remote.encode()).ok_or(EINVAL)?;
    }
    let is_inline = matches!(data, SendData::Inline(_));
    let length = match data {
        SendData::Sges(sges) => {
            for sge in sges {
                let buffer = TxBufDesc {
                    length: sge.length(),
                    lkey: sge.lkey(),
                    buf_addr: sge.addr(),
                };
                // There is room for as many as were checked above.
                wqe.body.write(&buffer.encode()).ok_or(EINVAL)?;
            }
            // CAST: At most the number of places.
            sges.len() as u16
        }
        SendData::Inline(data) => {
            let length;
            (length, wqe.body) = write_inline(data, limits.inline_data, wqe.body)?;
            length
        }
    };
    let imm_data = wr.imm_data();
    wqe.finish(TxMetaDesc {
        req_id: req_id.as_raw(),
        ctrl1: TxCtrl1 {
            op_type: op_type.into(),
            has_imm: imm_data.is_some(),
            inline_msg: is_inline,
            ..TxCtrl1::default()
        },
        length,
        dest_qp_num,
        ah,
        qkey: wr.remote_qkey(),
        immediate_data: imm_data.unwrap_or(0),
        ..TxMetaDesc::default()
    });
    Ok(())
}

/// Writes inline data of at most `most` bytes. Returns its length, and the rest of `body`.
#[inline(never)]
fn write_inline<'w>(
    data: InlineData<'_>,
    most: usize,
    mut body: Slot<'w>,
) -> Result<(u16, Slot<'w>)> {
    let mut bytes = [0; MAX_INLINE];
    let place = bytes.get_mut(..most.min(body.room())).ok_or(EINVAL)?;
    let length = data.copy_to(place).ok_or(EINVAL)?;
    // All zeroes behind the data are part of the work request, too.
    let mut parts = bytes.chunks_exact(INLINE_PART);
    while let Some(part) = parts.next().and_then(<[u8]>::first_chunk::<INLINE_PART>) {
        if body.write(part).is_none() {
            break;
        }
    }
    // CAST: Less than the size of a work request.
    Ok((length as u16, body))
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
