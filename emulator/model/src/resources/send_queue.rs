// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Send queues: a ring of work requests in the device's memory.

use std::{collections::VecDeque, time::Duration};

use efa_hw::{
    admin::qp::QpType,
    io::{CompStatus, FastMrInvReq, FastMrRegReq, MAX_WQE_SIZE, OpType, RemoteMemAddr, TxBufDesc, TxMetaDesc},
    wire::At,
};

use super::{
    memory::{self, Keyed},
    page_list::PageReader,
};
use crate::{
    Host, Then, WorkQueue,
    profile::attributes::Attributes,
    program_error::{Fault, Hex, ProgramError},
    region_work::RegionWork,
    trace::TraceEvent,
};

/// Limit on fetched work requests of a queue pair that have not ended. Further ones stay in the ring.
const MAX_OUTSTANDING: usize = 256;

/// Number of words in a bitmap of all request ids, which have 16 bits.
const ID_WORDS: usize = (1 << 16) / 64;

/// Limit on buffers of a send work request.
const MAX_BUFFERS: usize = 2;

/// A send queue.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// Offset of the ring in the memory BAR.
    ring: u32,
    /// Bytes in a work request: 64 or 128.
    wqe_size: u32,
    /// Work requests in the ring, a power of two.
    depth: u32,
    /// Number of work requests that the program has posted, modulo 2^16.
    produced: u16,
    /// Time of the doorbell for each work request not fetched yet, in ns, by ring index; 0 if unknown.
    posted: Box<[u64]>,
    /// Number of work requests fetched, modulo 2^16.
    fetched: u16,
    /// Work requests that were fetched and have not ended, with their numbers, in their order. They may end in any other.
    outstanding: VecDeque<(u64, Outstanding)>,
    /// Bitmap of the ids of these; empty before the first one, and if ids have 64 bits.
    ids: Box<[u64]>,
    /// Number of the next fetched work request.
    next: u64,
    /// Registration whose pages are not all read. Later work requests wait for it.
    pub(crate) registering: Option<Box<Registering>>,
}

/// A fast registration that is being carried out.
#[derive(Debug)]
pub(crate) struct Registering {
    /// Number of the work request.
    pub(crate) id: u64,
    pub(crate) request: FastMrRegReq,
    pub(crate) pages: PageReader,
}

/// Operation of the transport for a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends to a receive buffer.
    Send,
    /// Reads from memory of the peer.
    RdmaRead,
    /// Writes to memory of the peer.
    RdmaWrite,
}

/// A fetched work request.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    pub(crate) req_id: u16,
    pub(crate) req_id_ex: [u8; 6],
    /// Local keys of the memory that it uses; 0 for none.
    pub(crate) lkeys: [u32; MAX_BUFFERS],
    pub(crate) operation: OpType,
    pub(crate) length: u32,
    /// Whether its success is reported by a completion.
    pub(crate) signaled: bool,
    /// Fault of the work request and its completion.
    pub(crate) fault: Option<Box<Then>>,
    /// Time of its doorbell, if known.
    pub(crate) posted: Option<Duration>,
}

/// A work request as it was in the ring.
#[derive(Debug)]
pub(crate) struct Wqe {
    pub(crate) meta: TxMetaDesc,
    /// The whole work request, padded with zeros.
    raw: [u8; MAX_WQE_SIZE],
    /// Bytes of the body, which follows the meta descriptor.
    size: usize,
    /// Its index in the ring.
    index: u32,
    /// Expected phase, which is that of the pass through the ring.
    phase: bool,
    /// Time of its doorbell in ns; 0 if unknown.
    posted: u64,
}

/// Operation of a work request, without the destination.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) operation: Operation,
    pub(crate) immediate: Option<u32>,
    /// Memory of the peer, for RDMA.
    pub(crate) remote: Keyed,
    pub(crate) length: u32,
    pub(crate) data: Data,
}

/// Data that a work request sends, or destination of its read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// In host memory.
    Buffers([Keyed; MAX_BUFFERS]),
    /// In the work request itself.
    Inline(Box<[u8]>),
}

impl SendQueue {
    pub(crate) fn new(ring: u32, size: u32, depth: u32) -> Self {
        Self {
            ring,
            wqe_size: size.checked_div(depth).unwrap_or(0),
            depth,
            posted: vec![0; depth as usize].into_boxed_slice(),
            ..Self::default()
        }
    }

    /// Describes the queue for a snapshot.
    pub(super) fn snapshot(&self) -> WorkQueue {
        WorkQueue {
            depth: self.depth.into(),
            produced: self.produced,
            consumed: self.fetched,
            outstanding: self.outstanding.len(),
        }
    }

    /// Discards all work requests.
    pub(crate) fn reset(&mut self) {
        *self = Self { next: self.next, ..Self::new(self.ring, self.wqe_size * self.depth, self.depth) };
    }

    /// Sets the number of posted work requests, and records the time of the new ones. Returns whether the ring has room for them.
    pub(crate) fn ring(&mut self, now: Option<Duration>, produced: u16) -> bool {
        let news = usize::from(produced.wrapping_sub(self.fetched));
        if news + self.outstanding.len() > self.depth as usize {
            return false;
        }
        // The check above bounds this loop by the size of the ring.
        let now = now.map_or(0, nanos);
        for number in self.produced.wrapping_sub(self.fetched)..produced.wrapping_sub(self.fetched) {
            let index = self.index(self.fetched.wrapping_add(number));
            if let Some(posted) = self.posted.get_mut(index as usize) {
                *posted = now;
            }
        }
        self.produced = produced;
        true
    }

    /// Fetches the next work request of the queue pair, if there is one.
    pub(crate) fn fetch(&mut self, host: &mut dyn Host, qp: u16) -> Option<Wqe> {
        if !self.has_work() {
            return None;
        }
        let index = self.index(self.fetched);
        let round = u32::from(self.fetched) / self.depth;
        self.fetched = self.fetched.wrapping_add(1);
        let mut wqe = [0; MAX_WQE_SIZE];
        // CAST: at most `MAX_WQE_SIZE`.
        let size = (self.wqe_size as usize).min(MAX_WQE_SIZE);
        host.read_device_memory(u64::from(self.ring) + u64::from(index * self.wqe_size), &mut wqe[..size]);
        if host.traces_work() {
            let descriptor = wqe[..size].into();
            host.trace(&TraceEvent::WorkRequest { qp, descriptor });
        }
        Some(Wqe {
            meta: TxMetaDesc::decode(&At::<0>::load(&wqe)),
            raw: wqe,
            size: size - TxMetaDesc::SIZE,
            index,
            phase: round % 2 != 0,
            posted: self.posted.get(index as usize).copied().unwrap_or(0),
        })
    }

    /// Returns the ring index of a work request, given the number of those before it, modulo 2^16.
    fn index(&self, number: u16) -> u32 {
        u32::from(number) & (self.depth - 1)
    }

    /// Adds a fetched work request and returns its number, which is never reused.
    pub(crate) fn add(&mut self, request: Outstanding) -> u64 {
        let number = self.next;
        self.next += 1;
        self.outstanding.push_back((number, request));
        number
    }

    /// Marks an id as used. Returns whether another work request that has not ended uses it.
    pub(crate) fn claim_id(&mut self, req_id: u16) -> bool {
        if self.ids.is_empty() {
            self.ids = vec![0; ID_WORDS].into_boxed_slice();
        }
        let word = &mut self.ids[usize::from(req_id / 64)];
        let bit = 1 << (req_id % 64);
        let is_taken = *word & bit != 0;
        *word |= bit;
        is_taken
    }

    /// The id of the oldest work request that uses the memory region with a local key, if one does.
    pub(crate) fn user_of(&self, lkey: u32) -> Option<u16> {
        let mut requests = self.outstanding.iter().map(|(_, request)| request);
        let user = requests.find(|request| lkey != 0 && request.lkeys.contains(&lkey));
        user.map(|request| request.req_id)
    }

    /// Removes a work request that has ended.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Outstanding> {
        let found = self.outstanding.binary_search_by_key(&number, |(number, _)| *number);
        let (_, request) = self.outstanding.remove(found.ok()?)?;
        if let Some(word) = self.ids.get_mut(usize::from(request.req_id / 64)) {
            *word &= !(1 << (request.req_id % 64));
        }
        Some(request)
    }

    /// Removes all work requests that were fetched, the oldest first.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Outstanding> + use<> {
        self.registering = None;
        self.ids = Box::default();
        let outstanding = std::mem::take(&mut self.outstanding).into_iter();
        outstanding.map(|(_, request)| request)
    }

    /// Whether fetched work requests have not ended.
    pub(crate) fn is_busy(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Whether there is a work request to fetch, within [`MAX_OUTSTANDING`].
    pub(crate) fn can_start(&self) -> bool {
        self.has_work() && self.outstanding.len() < MAX_OUTSTANDING
    }

    /// Whether there are work requests to fetch.
    fn has_work(&self) -> bool {
        self.fetched != self.produced
    }
}

impl Outstanding {
    /// Returns its completion status: that of its fault, if any, unless it is flushed; otherwise `status`.
    pub(crate) fn status(&self, status: CompStatus) -> u8 {
        let fault = self.fault.as_ref().and_then(|fault| fault.status);
        match (status, fault) {
            (CompStatus::Flushed, _) | (_, None) => status.into(),
            (_, Some(wrong)) => wrong.code(),
        }
    }
}

impl Wqe {
    /// Returns the state to keep until it ends, if it transfers `length` bytes.
    pub(crate) fn outstanding(&self, length: u32) -> Outstanding {
        Outstanding {
            req_id: self.meta.req_id,
            req_id_ex: self.meta.req_id_ex,
            lkeys: [0; MAX_BUFFERS],
            operation: self.operation(),
            length,
            signaled: self.meta.ctrl2.comp_req,
            fault: None,
            posted: (self.posted > 0).then(|| Duration::from_nanos(self.posted)),
        }
    }

    /// Returns the first violation of a rule that holds for every work request, if any.
    pub(crate) fn fault(&self) -> Option<Fault> {
        let (ctrl1, ctrl2) = (self.meta.ctrl1, self.meta.ctrl2);
        [
            (!ctrl1.meta_desc, Fault::NoMeta),
            (ctrl1.meta_extension, Fault::Extension),
            (!ctrl2.first || !ctrl2.last, Fault::Parts),
            (ctrl2.phase != self.phase, Fault::Phase),
        ]
        .into_iter()
        .find_map(|(is_wrong, fault)| is_wrong.then_some(fault))
    }

    /// Returns the error for a malformed work request. It contains no inline data, as others may read it.
    pub(crate) fn malformed(&self, qp: u16, reason: Fault) -> ProgramError {
        let body = match reason {
            Fault::Reserved => self.size,
            _ => 0,
        };
        let bytes = Hex(self.raw[..TxMetaDesc::SIZE + body].into());
        ProgramError::Malformed { queue: "sq", qp, index: self.index, reason, bytes }
    }

    /// Returns the operation, or a send for an unknown one.
    pub(crate) fn operation(&self) -> OpType {
        OpType::try_from(self.meta.ctrl1.op_type).unwrap_or(OpType::Send)
    }

    /// Returns the region change that the work request asks for, if any.
    pub(crate) fn region_work(&self) -> Option<RegionWork> {
        let body = At::<{ TxMetaDesc::SIZE }>::load(&self.raw);
        match self.operation() {
            OpType::FastReg => Some(RegionWork::Register(FastMrRegReq::decode(&body))),
            OpType::FastInv => Some(RegionWork::Invalidate(FastMrInvReq::decode(&body))),
            OpType::Send | OpType::RdmaRead | OpType::RdmaWrite => None,
        }
    }

    /// Whether all reserved bits in the body of a region change are zero. Relaxed ordering is a permission of commands only.
    pub(crate) fn is_canonical(&self, work: RegionWork) -> bool {
        let body = match work {
            RegionWork::Register(mut request) => {
                request.permissions.relaxed_ordering = false;
                request.encode()
            }
            RegionWork::Invalidate(request) => request.encode(),
        };
        self.raw[TxMetaDesc::SIZE..].starts_with(&body)
    }

    /// Decodes the work for the transport, if queue pair and device support it.
    pub(crate) fn work(&self, qp_type: QpType, attributes: &Attributes) -> Result<Work, CompStatus> {
        let operation = match OpType::try_from(self.meta.ctrl1.op_type) {
            Ok(OpType::Send) => Operation::Send,
            Ok(OpType::RdmaRead) => Operation::RdmaRead,
            Ok(OpType::RdmaWrite) => Operation::RdmaWrite,
            Ok(OpType::FastReg | OpType::FastInv) | Err(_) => {
                return Err(CompStatus::LocalUnsupportedOp);
            }
        };
        let has_imm = self.meta.ctrl1.has_imm;
        let (supported, most, buffers) = match operation {
            Operation::Send => (true, attributes.mtu, attributes.max_wr_send_sges),
            Operation::RdmaRead => (
                attributes.rdma_read && !has_imm && !self.meta.ctrl1.inline_msg,
                attributes.max_rdma_size,
                attributes.max_wr_rdma_sges,
            ),
            Operation::RdmaWrite => (attributes.rdma_write, attributes.max_rdma_size, attributes.max_wr_rdma_sges),
        };
        let rdma = operation != Operation::Send;
        if !supported || rdma && qp_type != QpType::Srd {
            return Err(CompStatus::LocalUnsupportedOp);
        }
        let mut body = &self.raw[TxMetaDesc::SIZE..][..self.size];
        let mut remote = None;
        if rdma {
            let memory = RemoteMemAddr::decode(&At::<{ TxMetaDesc::SIZE }>::load(&self.raw));
            remote = Some(Keyed { key: memory.rkey, address: memory.buf_addr, length: memory.length });
            body = &body[RemoteMemAddr::SIZE..];
        }
        let data = self.data(body, usize::from(buffers), attributes)?;
        let length = data.length().filter(|length| *length <= most);
        let length = length.ok_or(CompStatus::LocalBadLength)?;
        if remote.is_some_and(|remote| remote.length != length) {
            return Err(CompStatus::LocalBadLength);
        }
        Ok(Work {
            operation,
            immediate: has_imm.then_some(self.meta.immediate_data),
            remote: remote.unwrap_or_default(),
            length,
            data,
        })
    }

    /// Decodes the data or at most `most` buffers of the work request from `body`.
    fn data(&self, body: &[u8], most: usize, attributes: &Attributes) -> Result<Data, CompStatus> {
        let count = usize::from(self.meta.length);
        if self.meta.ctrl1.inline_msg {
            // A 64-byte RDMA work request has no room for inline data after the remote address.
            let room = match (body.len(), self.size) {
                (32, 32) => attributes.inline_buf_size.min(32),
                (_, 96) => u32::from(attributes.inline_buf_size_ex).min(80),
                _ => 0,
            };
            let data = body.get(..count).filter(|data| data.len() <= room as usize);
            return Ok(Data::Inline(data.ok_or(CompStatus::LocalBadLength)?.into()));
        }
        if count > most.min(MAX_BUFFERS) {
            return Err(CompStatus::LocalBadLength);
        }
        let mut buffers = [Keyed::default(); MAX_BUFFERS];
        for (buffer, bytes) in buffers[..count].iter_mut().zip(body.chunks_exact(TxBufDesc::SIZE)) {
            let mut desc = [0; TxBufDesc::SIZE];
            desc.copy_from_slice(bytes);
            let desc = TxBufDesc::decode(&desc);
            *buffer = Keyed { key: desc.lkey, address: desc.buf_addr, length: desc.length };
        }
        Ok(Data::Buffers(buffers))
    }
}

/// Converts a time to ns; at least 1, as 0 means unknown.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl Data {
    /// Returns the length in bytes, unless it overflows.
    fn length(&self) -> Option<u32> {
        match self {
            Self::Buffers(buffers) => buffers.iter().try_fold(0_u32, |sum, buffer| sum.checked_add(buffer.length)),
            Self::Inline(data) => u32::try_from(data.len()).ok(),
        }
    }

    /// Local keys of the memory that is used; 0 for none.
    pub(crate) fn lkeys(&self) -> [u32; MAX_BUFFERS] {
        match self {
            Self::Buffers(buffers) => buffers.map(|buffer| if buffer.length == 0 { 0 } else { buffer.key }),
            Self::Inline(_) => [0; MAX_BUFFERS],
        }
    }

    /// The part of the buffers that starts at `offset` and has `length` bytes.
    pub(crate) fn part(&self, offset: u32, length: u32) -> impl Iterator<Item = Keyed> + '_ {
        let buffers: &[Keyed] = match self {
            Self::Buffers(buffers) => buffers,
            Self::Inline(_) => &[],
        };
        memory::part(buffers.iter().copied(), offset, length)
    }
}
