// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests and completions. Payload is not shown.

use std::fmt::{self, Formatter};

use efa_hw::io::{
    Cdesc, CompStatus, OpType, QueueType, RemoteMemAddr, RxDesc, TxBufDesc, TxMetaDesc,
};

use super::flag::flag;

/// Returns the first `N` bytes, padded with zeroes.
fn start<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut start = [0; N];
    for (to, from) in start.iter_mut().zip(bytes) {
        *to = *from;
    }
    start
}

/// Writes a send work request.
pub(super) fn request(f: &mut Formatter<'_>, qp: u16, descriptor: &[u8]) -> fmt::Result {
    let meta = TxMetaDesc::decode(&start(descriptor));
    write!(f, "sq {qp} ")?;
    let operation = OpType::try_from(meta.ctrl1.op_type);
    match operation {
        Ok(operation) => write!(f, "{operation}")?,
        Err(_) => write!(f, "operation {}", meta.ctrl1.op_type)?,
    }
    write!(f, "(id={}", meta.req_id)?;
    let mut body = descriptor.get(TxMetaDesc::SIZE..).unwrap_or_default();
    if !matches!(operation, Ok(OpType::FastReg | OpType::FastInv)) {
        write!(
            f,
            ", ah={}, dest={}, qkey={:#x}",
            meta.ah, meta.dest_qp_num, meta.qkey
        )?;
        if meta.ctrl1.has_imm {
            write!(f, ", imm={:#x}", meta.immediate_data)?;
        }
        if let Ok(OpType::RdmaRead | OpType::RdmaWrite) = operation {
            let memory = RemoteMemAddr::decode(&start(body));
            write!(
                f,
                ", rkey={:#x}, address={:#x}",
                memory.rkey, memory.buf_addr
            )?;
            body = body.get(RemoteMemAddr::SIZE..).unwrap_or_default();
        }
        if meta.ctrl1.inline_msg {
            write!(f, ", inline={}B", meta.length)?;
        } else {
            let buffers = body.chunks_exact(TxBufDesc::SIZE);
            for buffer in buffers.take(meta.length.into()) {
                let buffer = TxBufDesc::decode(&start(buffer));
                let (address, length, lkey) = (buffer.buf_addr, buffer.length, buffer.lkey);
                write!(f, ", {address:#x}/{length}B/{lkey:#x}")?;
            }
        }
    }
    write!(f, "{})", flag(", signaled", meta.ctrl2.comp_req))
}

/// Writes a receive work request.
pub(super) fn receive(f: &mut Formatter<'_>, qp: u16, descriptors: &[u8]) -> fmt::Result {
    let id = RxDesc::decode(&start(descriptors)).req_id;
    write!(f, "rq {qp} RECV(id={id}")?;
    for descriptor in descriptors.chunks_exact(RxDesc::SIZE) {
        let buffer = RxDesc::decode(&start(descriptor));
        let (address, length) = (buffer.buf_addr, buffer.length);
        write!(f, ", {address:#x}/{length}B/{:#x}", buffer.lkey_ctrl.lkey)?;
    }
    f.write_str(")")
}

/// Writes a completion.
pub(super) fn completion(f: &mut Formatter<'_>, cq: u16, entry: &[u8]) -> fmt::Result {
    let entry = Cdesc::decode(&start(entry));
    let (flags, is_receive) = (
        entry.flags,
        entry.flags.q_type == u8::from(QueueType::Receive),
    );
    let queue = if is_receive { "rq" } else { "sq" };
    write!(f, "cq {cq} {queue} {} ", entry.qp_num)?;
    match OpType::try_from(flags.op_type) {
        Ok(operation) => write!(f, "{operation}")?,
        Err(_) => write!(f, "operation {}", flags.op_type)?,
    }
    write!(f, "(id={}", entry.req_id)?;
    if is_receive {
        write!(
            f,
            ", {}B, ah={}, from={}",
            entry.length, entry.ah, entry.src_qp_num
        )?;
        if flags.has_imm {
            write!(f, ", imm={:#x}", entry.imm)?;
        }
        f.write_str(flag(", unsolicited", flags.unsolicited))?;
    }
    match CompStatus::try_from(entry.status) {
        Ok(status) => write!(f, ") = {status}"),
        Err(_) => write!(f, ") = status {}", entry.status),
    }
}
