// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rings that programs map: work queues and completion queues.

use efa_hw::io::{
    Cdesc, CdescFlags, CqDb, OpType, QueueType, RemoteMemAddr, RxDesc, RxLkeyCtrl, TxBufDesc,
    TxCtrl1, TxCtrl2, TxMetaDesc, CDESC_FLAGS_OFFSET,
};
use ib_core::uverbs::Mapping;
use kernel::error::{code::*, Result};

use crate::program::QKEY;

/// Size of a send work request in bytes.
pub(crate) const WQE: usize = 64;

/// A completion queue of a program.
pub struct Cq {
    /// Id of the object.
    pub id: u32,
    /// Its number in the device.
    pub index: u16,
    pub(crate) ring: Option<Mapping>,
    pub(crate) doorbell: Option<(Mapping, usize)>,
    pub(crate) depth: usize,
    /// Number of completions that were consumed from each of its rings.
    pub(crate) consumed: Vec<usize>,
    /// Number of events that were acknowledged.
    pub(crate) events: u8,
    /// Whether an event was requested that has not been acknowledged.
    pub(crate) is_armed: bool,
}

/// A queue pair of a program.
pub struct Qp {
    /// Id of the object.
    pub id: u32,
    /// The queue pair number, by which peers address it.
    pub number: u32,
    pub(crate) send: Option<Ring>,
    pub(crate) recv: Option<Ring>,
    pub(crate) sends: u32,
    pub(crate) recvs: u32,
}

impl Qp {
    /// Returns where its rings and doorbells begin in their mappings.
    pub fn offsets(&self) -> Vec<(usize, usize)> {
        let rings = [&self.send, &self.recv].into_iter().flatten();
        rings.map(|ring| (ring.start, ring.offset)).collect()
    }
}

/// A ring of work requests and its doorbell.
pub(crate) struct Ring {
    pub(crate) entries: Mapping,
    pub(crate) start: usize,
    pub(crate) doorbell: Mapping,
    pub(crate) offset: usize,
    pub(crate) posted: u32,
}

impl Ring {
    fn post(&mut self, count: u32, entry: &[u8]) -> Result {
        let at = self.start + (self.posted & (count - 1)) as usize * entry.len();
        self.entries.write(at, entry)?;
        self.posted = self.posted.wrapping_add(1);
        self.doorbell
            .write32(self.offset, u32::from(self.posted as u16))
    }
}

/// Address of a peer: an address handle and a queue pair number.
#[derive(Clone, Copy)]
pub struct Peer {
    /// The number of the address handle in the device.
    pub ah: u16,
    /// The number of its queue pair.
    pub qpn: u32,
}

/// Registered memory.
#[derive(Clone, Copy)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local or remote key.
    pub key: u32,
}

/// Completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Id of the work request, as it was posted.
    pub id: u16,
    /// Its status, a `CompStatus`.
    pub status: u8,
    /// Whether the work request was a receive.
    pub is_recv: bool,
    /// Number of bytes received.
    pub length: u16,
}

impl Qp {
    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no receive queue, [`EFAULT`] if the device was removed.
    pub fn post_recv(&mut self, id: u16, sge: Sge) -> Result {
        let entry = RxDesc {
            buf_addr: sge.addr,
            req_id: id,
            length: sge.length as u16,
            lkey_ctrl: RxLkeyCtrl {
                lkey: sge.key,
                first: true,
                last: true,
            },
        };
        let count = self.recvs;
        self.recv
            .as_mut()
            .ok_or(EINVAL)?
            .post(count, &entry.encode())
    }

    fn post(&mut self, id: u16, operation: OpType, peer: Peer, parts: &[[u8; 16]]) -> Result {
        let count = self.sends;
        let ring = self.send.as_mut().ok_or(EINVAL)?;
        let meta = TxMetaDesc {
            req_id: id,
            ctrl1: TxCtrl1 {
                op_type: operation as u8,
                meta_desc: true,
                ..TxCtrl1::default()
            },
            ctrl2: TxCtrl2 {
                phase: ring.posted & count != 0,
                first: true,
                last: true,
                comp_req: true,
            },
            dest_qp_num: peer.qpn as u16,
            length: 1,
            ah: peer.ah,
            qkey: QKEY,
            ..TxMetaDesc::default()
        };
        let mut entry = [0; WQE];
        entry[..TxMetaDesc::SIZE].copy_from_slice(&meta.encode());
        for (place, part) in entry[TxMetaDesc::SIZE..].chunks_exact_mut(16).zip(parts) {
            place.copy_from_slice(part);
        }
        ring.post(count, &entry)
    }

    /// Posts a send.
    ///
    /// # Errors
    ///
    /// - [`EFAULT`] if the device was removed.
    pub fn post_send(&mut self, id: u16, peer: Peer, sge: Sge) -> Result {
        self.post(id, OpType::Send, peer, &[local(sge)])
    }

    /// Posts an RDMA write from local to remote memory, or an RDMA read in the other direction.
    ///
    /// # Errors
    ///
    /// - [`EFAULT`] if the device was removed.
    pub fn post_rdma(
        &mut self,
        id: u16,
        writes: bool,
        peer: Peer,
        sge: Sge,
        remote: Sge,
    ) -> Result {
        let operation = if writes {
            OpType::RdmaWrite
        } else {
            OpType::RdmaRead
        };
        let remote = RemoteMemAddr {
            length: remote.length,
            rkey: remote.key,
            buf_addr: remote.addr,
        };
        self.post(id, operation, peer, &[remote.encode(), local(sge)])
    }
}

fn local(sge: Sge) -> [u8; 16] {
    TxBufDesc {
        length: sge.length,
        lkey: sge.key,
        buf_addr: sge.addr,
    }
    .encode()
}

impl Cq {
    /// Polls one completion. A queue whose ring is not mapped returns none.
    ///
    /// # Errors
    ///
    /// - [`EFAULT`] if the device was removed, and the ring with it.
    pub fn poll(&mut self) -> Result<Option<Completion>> {
        let Some(ring) = &self.ring else {
            return Ok(None);
        };
        for (number, consumed) in self.consumed.iter_mut().enumerate() {
            let entry = (number * self.depth + (*consumed & (self.depth - 1))) * Cdesc::SIZE;
            let mut raw = [0; Cdesc::SIZE];
            ring.read(entry, &mut raw)?;
            let flags = CdescFlags::from_raw(raw[CDESC_FLAGS_OFFSET]);
            // The phase bit toggles with each round of the ring. It is 1 in the first round.
            if flags.phase == (*consumed & self.depth == 0) {
                *consumed += 1;
                let cdesc = Cdesc::decode(&raw);
                return Ok(Some(Completion {
                    id: cdesc.req_id,
                    status: cdesc.status,
                    is_recv: flags.q_type == QueueType::Receive as u8,
                    length: cdesc.length,
                }));
            }
        }
        Ok(None)
    }

    /// Requests an event for the next completion. Does nothing for a queue without events.
    ///
    /// # Errors
    ///
    /// - [`EFAULT`] if the device was removed.
    pub fn arm(&mut self) -> Result {
        let Some((doorbell, offset)) = &self.doorbell else {
            return Ok(());
        };
        self.is_armed = true;
        let taken: usize = self.consumed.iter().sum();
        let value = CqDb {
            consumer_index: taken as u16,
            cmd_sn: self.events & 3,
            arm: true,
        };
        doorbell.write32(*offset, value.into_raw())
    }

    /// Acknowledges an event that was received.
    pub fn ack_event(&mut self) {
        self.events = self.events.wrapping_add(1);
        self.is_armed = false;
    }
}
