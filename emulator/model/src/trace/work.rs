// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests and completions. Payload is not shown.

use std::fmt::{self, Formatter};

use efa_hw::io::{
    Cdesc, CompStatus, FastMrInvReq, FastMrRegReq, OpType, QueueType, RemoteMemAddr, RxDesc, TxBufDesc, TxMetaDesc,
};

use super::fields::{Fields, code};
use crate::region_work::RegionWork;

/// Returns the first `N` bytes, padded with zeroes.
fn start<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut start = [0; N];
    for (to, from) in start.iter_mut().zip(bytes) {
        *to = *from;
    }
    start
}

/// Fields that frame a work request or a completion, or that its line shows elsewhere.
const FRAMING: &[&str] =
    &["phase", "meta_desc", "first", "last", "op_type", "q_type", "qp_num", "status", "processing_hints"];

/// Returns the list of a work request or a completion.
fn fields<'a, 'b>(f: &'a mut Formatter<'b>) -> Fields<'a, 'b> {
    Fields { f, separator: "(", zeros: true, without: FRAMING }
}

/// Writes a send work request.
pub(super) fn request(f: &mut Formatter<'_>, qp: u16, descriptor: &[u8]) -> fmt::Result {
    let meta = TxMetaDesc::decode(&start(descriptor));
    let operation = OpType::try_from(meta.ctrl1.op_type);
    write!(f, "sq {qp} {}", code(operation, "operation", meta.ctrl1.op_type))?;
    let mut fields = fields(f);
    fields.of::<TxMetaDesc>(descriptor)?;
    let mut body = descriptor.get(TxMetaDesc::SIZE..).unwrap_or_default();
    match operation {
        Ok(OpType::FastReg) => fields.of::<FastMrRegReq>(body)?,
        Ok(OpType::FastInv) => fields.of::<FastMrInvReq>(body)?,
        _ => {
            if let Ok(OpType::RdmaRead | OpType::RdmaWrite) = operation {
                fields.one::<RemoteMemAddr>(body)?;
                body = body.get(RemoteMemAddr::SIZE..).unwrap_or_default();
            }
            let buffers = if meta.ctrl1.inline_msg { 0 } else { meta.length };
            for buffer in body.chunks_exact(TxBufDesc::SIZE).take(buffers.into()) {
                fields.one::<TxBufDesc>(buffer)?;
            }
        }
    }
    f.write_str(")")
}

/// Writes a receive work request.
pub(super) fn receive(f: &mut Formatter<'_>, qp: u16, descriptors: &[u8]) -> fmt::Result {
    write!(f, "rq {qp} RECV")?;
    let mut fields = fields(f);
    for descriptor in descriptors.chunks_exact(RxDesc::SIZE) {
        fields.one::<RxDesc>(descriptor)?;
    }
    f.write_str(")")
}

/// Writes the end of a work request that changes a memory region.
pub(super) fn region(f: &mut Formatter<'_>, qp: u16, work: &RegionWork, status: CompStatus) -> fmt::Result {
    match work {
        RegionWork::Register(request) => {
            write!(f, "sq {qp} {}", OpType::FastReg)?;
            fields(f).of::<FastMrRegReq>(&request.encode())?;
        }
        RegionWork::Invalidate(request) => {
            write!(f, "sq {qp} {}", OpType::FastInv)?;
            fields(f).of::<FastMrInvReq>(&request.encode())?;
        }
    }
    write!(f, ") = {status}")
}

/// Writes a completion.
pub(super) fn completion(f: &mut Formatter<'_>, cq: u16, entry: &[u8]) -> fmt::Result {
    let Cdesc { flags, status, qp_num, .. } = Cdesc::decode(&start(entry));
    let queue = if flags.q_type == u8::from(QueueType::Receive) { "rq" } else { "sq" };
    let operation = code(OpType::try_from(flags.op_type), "operation", flags.op_type);
    write!(f, "cq {cq} {queue} {qp_num} {operation}")?;
    fields(f).of::<Cdesc>(entry)?;
    write!(f, ") = {}", code(CompStatus::try_from(status), "status", status))
}
