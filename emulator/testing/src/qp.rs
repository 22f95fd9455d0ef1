// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues and queue pairs of a driver over any bus: work requests, doorbells and completions.

use efa_fabric::PortId;
use efa_hw::{
    admin::{
        Status,
        ah::CreateAh,
        cq::CqCaps1,
        pd::AllocPd,
        qp::{CreateQp, CreateQpFlags, QpState, QpType},
        uar::AllocUar,
    },
    io::{
        Cdesc, CompStatus, FastMrInvReq, FastMrRegReq, OpType, RemoteMemAddr, RxDesc, RxLkeyCtrl, TxBufDesc, TxCtrl1,
        TxCtrl2, TxMetaDesc,
    },
};

pub use crate::commands::DEPTH;
use crate::{
    bus::{Bus, Memory, PAGE},
    commands::{create_cq, create_qp, to_state},
    driver::Driver,
    region::Region,
};

/// Q_Key of all queue pairs.
pub const QKEY: u32 = 0x1234_5678;

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    /// Its number.
    pub idx: u16,
    /// The doorbell page of the queue and of its queue pairs.
    pub uar: u16,
    /// Its bus address.
    pub base: u64,
    entries: u32,
    completed: u32,
}

/// Attributes that a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its transport.
    pub qp_type: QpType,
    /// Its flags.
    pub flags: CreateQpFlags,
    /// The flags of its completion queue.
    pub caps_1: CqCaps1,
    /// Bytes of a send work request.
    pub wqe_size: u32,
    /// Entries of the send queue and of the receive queue.
    pub depths: [u16; 2],
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    /// Port of its device in the network.
    pub port: PortId,
    /// Its protection domain.
    pub pd: u16,
    /// Its completion queue.
    pub cq: Cq,
    /// Its number, which is also its handle.
    pub number: u16,
    /// The address handle of its work requests that name none.
    pub ah: u16,
    /// Its doorbells: of the send queue and of the receive queue.
    pub doorbells: [u64; 2],
    /// Offset of its send queue in the BAR.
    pub llq: u64,
    /// Bus address of its receive queue.
    pub rq: u64,
    /// Bytes of a send work request.
    pub wqe_size: u32,
    pub(crate) depths: [u16; 2],
    /// Number of send work requests so far, modulo 2^16.
    pub sent: u16,
    /// Number of receive descriptors so far, modulo 2^16.
    pub posted: u16,
}

/// A send work request.
#[derive(Clone, Debug, Default)]
pub struct Send {
    /// Its operation: an [`OpType`], or an undefined value.
    pub operation: u8,
    /// Its immediate data.
    pub immediate: Option<u32>,
    /// Local memory: address, length and key of each buffer.
    pub buffers: Vec<(u64, u32, u32)>,
    /// Data in the work request itself.
    pub inline: Option<Vec<u8>>,
    /// Memory of the peer: address, length and key.
    pub remote: Option<(u64, u32, u32)>,
    /// Body of a registration or an invalidation of memory.
    pub body: Option<[u8; 32]>,
    /// Its address handle, if it is not that of the queue pair.
    pub ah: Option<u16>,
    /// The queue pair of the peer.
    pub peer_qp: u16,
    /// Its Q_Key, if it is not [`QKEY`].
    pub qkey: Option<u32>,
    /// Whether it is not signaled.
    pub silent: bool,
}

impl Cq {
    /// Creates a completion queue and a doorbell page.
    pub fn new<D: Bus>(driver: &mut Driver<D>, entries: u16, caps_1: CqCaps1, wide_ids: bool) -> Self {
        let uar = driver.execute(&AllocUar {}).unwrap().uar;
        let bytes = u64::from(entries) * Cdesc::SIZE as u64;
        let base = driver.world.allocate(bytes.div_ceil(PAGE));
        let mut create = create_cq(uar, base);
        create.caps_1 = caps_1;
        create.caps_2.sq_comp_64_bit_req_id = wide_ids;
        create.sub_cq_depth = entries;
        create.eqn = u16::from(caps_1.interrupt_mode_enabled);
        let idx = driver.execute(&create).unwrap().cq_idx;
        let entries = entries.into();
        Self { idx, uar, base, entries, completed: 0 }
    }

    /// Takes the next completion, if there is one.
    pub fn poll(&mut self, memory: &impl Memory) -> Option<Cdesc> {
        let at = self.base + u64::from(self.completed % self.entries) * Cdesc::SIZE as u64;
        let completion = Cdesc::decode(&memory.entry(at));
        let phase = self.completed / self.entries % 2 == 0;
        (completion.flags.phase == phase).then(|| {
            self.completed = self.completed.wrapping_add(1);
            completion
        })
    }
}

impl Shape {
    /// Returns the attributes of a queue pair without flags.
    pub fn new(qp_type: QpType, wqe_size: u32) -> Self {
        Self { qp_type, flags: CreateQpFlags::default(), caps_1: CqCaps1::default(), wqe_size, depths: [DEPTH; 2] }
    }
}

impl Qp {
    /// Creates a queue pair in a protection domain of its own.
    pub fn new<D: Bus>(driver: &mut Driver<D>, shape: Shape) -> Self {
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        Self::in_domain(driver, pd, shape)
    }

    /// Creates a queue pair that can send, with a completion queue.
    pub fn in_domain<D: Bus>(driver: &mut Driver<D>, pd: u16, shape: Shape) -> Self {
        let entries = shape.depths.iter().sum();
        let cq = Cq::new(driver, entries, shape.caps_1, shape.flags.sq_64_bit_req_id);
        let mut qp = Self::of_cq(driver, pd, cq, shape);
        qp.start(driver);
        qp
    }

    /// Creates a queue pair with an existing completion queue. It is in state RESET.
    pub fn of_cq<D: Bus>(driver: &mut Driver<D>, pd: u16, cq: Cq, shape: Shape) -> Self {
        let [send, receive] = shape.depths.map(u32::from);
        let ring = receive * RxDesc::SIZE as u32;
        let rq = driver.world.allocate(u64::from(ring).div_ceil(PAGE));
        let create = CreateQp {
            qp_type: shape.qp_type.into(),
            flags: shape.flags,
            send_queue_ring_size: send * shape.wqe_size,
            send_queue_depth: send,
            recv_queue_ring_size: ring,
            recv_queue_depth: receive,
            ..create_qp(pd, cq.uar, cq.idx, rq)
        };
        let made = driver.execute(&create).unwrap();
        Self {
            port: driver.port,
            pd,
            cq,
            number: made.qp_num,
            ah: 0,
            doorbells: [made.sq_db_offset.into(), made.rq_db_offset.into()],
            llq: made.llq_descriptors_offset.into(),
            rq,
            wqe_size: shape.wqe_size,
            depths: shape.depths,
            sent: 0,
            posted: 0,
        }
    }

    /// Moves it to RTS.
    pub fn start<D: Bus>(&mut self, driver: &mut Driver<D>) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(driver, state).unwrap();
        }
    }

    /// Moves it to another state.
    ///
    /// # Errors
    ///
    /// The device rejects the state.
    pub fn modify<D: Bus>(&mut self, driver: &mut Driver<D>, state: QpState) -> Result<(), Status> {
        let mut command = to_state(self.number.into(), state);
        command.modify_mask.qkey = state == QpState::Init;
        command.qkey = QKEY;
        driver.execute(&command)?;
        if state == QpState::Reset {
            (self.sent, self.posted) = (0, 0);
        }
        Ok(())
    }

    /// Creates an address handle in its protection domain.
    pub fn handle_of<D: Bus>(&self, driver: &mut Driver<D>, dest_addr: [u8; 16]) -> u16 {
        let pd = self.pd;
        driver.execute(&CreateAh { dest_addr, pd }).unwrap().ah
    }

    /// Writes a send work request without ringing the doorbell; returns its id.
    pub fn put(&mut self, memory: &mut impl Memory, send: &Send) -> u16 {
        let req_id = self.sent;
        let mut wqe = self.meta(send).encode().to_vec();
        if let Some((buf_addr, length, rkey)) = send.remote {
            let remote = RemoteMemAddr { length, rkey, buf_addr };
            wqe.extend(remote.encode());
        }
        for (buf_addr, length, lkey) in &send.buffers {
            let buffer = TxBufDesc { length: *length, lkey: *lkey, buf_addr: *buf_addr };
            wqe.extend(buffer.encode());
        }
        wqe.extend(send.inline.iter().flatten());
        wqe.extend(send.body.iter().flatten());
        self.put_raw(memory, &wqe);
        req_id
    }

    fn meta(&self, send: &Send) -> TxMetaDesc {
        let req_id = self.sent;
        TxMetaDesc {
            req_id,
            ctrl1: TxCtrl1 {
                op_type: send.operation,
                has_imm: send.immediate.is_some(),
                inline_msg: send.inline.is_some(),
                meta_extension: false,
                meta_desc: true,
            },
            ctrl2: TxCtrl2 { phase: req_id / self.depths[0] % 2 != 0, first: true, last: true, comp_req: !send.silent },
            dest_qp_num: send.peer_qp,
            length: match &send.inline {
                Some(bytes) => bytes.len() as u16,
                None => send.buffers.len() as u16,
            },
            immediate_data: send.immediate.unwrap_or(0),
            ah: send.ah.unwrap_or(self.ah),
            qkey: send.qkey.unwrap_or(QKEY),
            req_id_ex: req_id_ex(req_id),
            ..TxMetaDesc::default()
        }
    }

    /// Writes bytes to the slot of the next work request.
    pub fn put_raw(&mut self, memory: &mut impl Memory, wqe: &[u8]) {
        let slot = u64::from(self.sent % self.depths[0]);
        let mut bytes = wqe.to_vec();
        bytes.resize(self.wqe_size as usize, 0);
        memory.write_llq(self.llq + slot * u64::from(self.wqe_size), &bytes);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Rings the doorbell of the send queue.
    pub fn ring_send<D: Bus>(&self, driver: &mut Driver<D>) {
        driver.doorbell(self.doorbells[0], self.sent.into());
    }

    /// Writes a receive descriptor, which may be part of a work request, without ringing the doorbell.
    pub fn put_receive(&mut self, memory: &impl Memory, desc: &RxDesc) {
        let slot = u64::from(self.posted % self.depths[1]);
        memory.store(self.rq + slot * RxDesc::SIZE as u64, &desc.encode());
        self.posted = self.posted.wrapping_add(1);
    }

    /// Writes a receive work request of buffers (address, length and key) without ringing the doorbell; returns its id.
    pub fn put_receives(&mut self, memory: &impl Memory, buffers: &[(u64, u16, u32)]) -> u16 {
        let req_id = 0x8000 | self.posted;
        for (index, (buf_addr, length, lkey)) in buffers.iter().enumerate() {
            let desc = RxDesc {
                buf_addr: *buf_addr,
                req_id,
                length: *length,
                lkey_ctrl: RxLkeyCtrl { lkey: *lkey, first: index == 0, last: index + 1 == buffers.len() },
            };
            self.put_receive(memory, &desc);
        }
        req_id
    }

    /// Rings the doorbell of the receive queue.
    pub fn ring_receive<D: Bus>(&self, driver: &mut Driver<D>) {
        driver.doorbell(self.doorbells[1], self.posted.into());
    }
}

impl Send {
    /// Returns a fast registration.
    pub fn register(request: &FastMrRegReq) -> Self {
        Self {
            operation: OpType::FastReg.into(),
            ah: Some(0),
            qkey: Some(0),
            body: Some(request.encode()),
            ..Self::default()
        }
    }

    /// Returns the invalidation of a fast registration.
    pub fn invalidate(lkey: u32) -> Self {
        Self {
            operation: OpType::FastInv.into(),
            body: Some(FastMrInvReq { lkey }.encode()),
            ..Self::register(&FastMrRegReq::default())
        }
    }

    /// Returns a message from the start of a region.
    pub fn message(peer: &Qp, region: &Region, length: u32) -> Self {
        Self { buffers: vec![(region.iova, length, region.lkey)], peer_qp: peer.number, ..Self::default() }
    }

    /// Returns a write from the start of one region to the start of another.
    pub fn write(peer: &Qp, from: &Region, to: &Region, length: u32) -> Self {
        Self {
            operation: OpType::RdmaWrite.into(),
            remote: Some((to.iova, length, to.rkey)),
            ..Self::message(peer, from, length)
        }
    }

    /// Returns the same work request, `offset` bytes further in both regions.
    pub fn moved(&self, offset: u64) -> Self {
        let mut moved = self.clone();
        let places = moved.buffers.iter_mut().chain(&mut moved.remote);
        places.for_each(|(address, _, _)| *address += offset);
        moved
    }

    /// Returns a read from the start of one region to the start of another.
    pub fn read(peer: &Qp, to: &Region, from: &Region, length: u32) -> Self {
        Self { operation: OpType::RdmaRead.into(), ..Self::write(peer, to, from, length) }
    }
}

/// Returns the status of a completion.
pub fn status(completion: &Cdesc) -> CompStatus {
    CompStatus::try_from(completion.status).expect("a known status")
}

/// Returns the upper 48 bits of a request id. A device uses them only if ids have 64 bits.
pub fn req_id_ex(req_id: u16) -> [u8; 6] {
    [1, 2, 3, 4, 5, 6].map(|byte| byte ^ req_id as u8)
}
