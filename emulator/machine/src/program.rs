// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What programs have: queue pairs and regions of memory.

use efa_hw::{
    admin::{
        CtrlBuffInfo,
        ah::CreateAh,
        cq::{CqCaps2, CreateCq},
        mr::{PageList, RegMr, RegMrFlags, RegMrPermissions},
        pd::AllocPd,
        qp::{CreateQp, ModifyQp, ModifyQpMask, QpState, QpType},
        uar::AllocUar,
    },
    io::{
        Cdesc, CompStatus, OpType, RemoteMemAddr, RxDesc, RxLkeyCtrl, TxBufDesc, TxCtrl1, TxCtrl2,
        TxMetaDesc,
    },
};

use efa_testing::wait::wait_for;

use crate::{Machine, ram::PAGE};

/// Work requests in each queue.
const DEPTH: u16 = 256;

/// Bytes of a send work request.
const WQE_SIZE: u64 = 64;

/// Entries of a completion queue: both queues' work requests.
const CQ_DEPTH: u32 = 2 * DEPTH as u32;

/// Bytes of a completion.
const CQE_SIZE: u64 = 32;

/// Q_Key of all queue pairs.
pub const QKEY: u32 = 0x1111_1111;

/// A queue pair with a completion queue, in a protection domain of its own.
#[derive(Clone, Debug)]
pub struct QueuePair {
    /// Its number.
    pub number: u16,
    pd: u16,
    ah: u16,
    llq: u64,
    doorbells: [u64; 2],
    rq: u64,
    cq: u64,
    sent: u16,
    posted: u16,
    completed: u32,
}

/// A registered region of memory, whose addresses are bus addresses.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its first address.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Its local key.
    pub lkey: u32,
    /// Its remote key.
    pub rkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// What it does.
    pub operation: OpType,
    /// Queue pair of the peer.
    pub peer_qp: u16,
    /// Where the data is, or where it is read to.
    pub local: (u64, u32, u32),
    /// Memory of the peer, and its key, for RDMA.
    pub remote: Option<(u64, u32)>,
}

impl QueuePair {
    /// Makes a queue pair that can send and receive.
    pub fn new(machine: &mut Machine, qp_type: QpType) -> Self {
        let pd = machine.execute(&AllocPd::default()).pd;
        let uar = machine.execute(&AllocUar {}).uar;
        let cq = machine.ram.allocate(u64::from(CQ_DEPTH) * CQE_SIZE);
        let rq = machine.ram.allocate(u64::from(DEPTH) * RxDesc::SIZE as u64);
        let create = CreateCq {
            caps_2: CqCaps2 {
                // CAST: in words.
                cq_entry_size_words: (CQE_SIZE / 4) as u8,
                set_src_addr: true,
                ..Default::default()
            },
            // CAST: a small constant.
            sub_cq_depth: CQ_DEPTH as u16,
            base_address: cq,
            num_sub_cqs: 1,
            uar,
            ..CreateCq::default()
        };
        let cq_idx = machine.execute(&create).cq_idx;
        let create = CreateQp {
            pd,
            qp_type: qp_type.into(),
            rq_base_addr: rq,
            send_cq_idx: cq_idx.into(),
            recv_cq_idx: cq_idx.into(),
            // CAST: a small constant.
            send_queue_ring_size: u32::from(DEPTH) * WQE_SIZE as u32,
            send_queue_depth: DEPTH.into(),
            // CAST: a small constant.
            recv_queue_ring_size: u32::from(DEPTH) * RxDesc::SIZE as u32,
            recv_queue_depth: DEPTH.into(),
            uar,
            ..CreateQp::default()
        };
        let made = machine.execute(&create);
        let qp = Self {
            number: made.qp_num,
            pd,
            ah: 0,
            llq: made.llq_descriptors_offset.into(),
            doorbells: [made.sq_db_offset.into(), made.rq_db_offset.into()],
            rq,
            cq,
            sent: 0,
            posted: 0,
            completed: 0,
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let modify = ModifyQp {
                modify_mask: ModifyQpMask {
                    qp_state: true,
                    qkey: state == QpState::Init,
                    ..ModifyQpMask::default()
                },
                qp_handle: made.qp_handle,
                qp_state: state.into(),
                qkey: QKEY,
                ..ModifyQp::default()
            };
            machine.execute(&modify);
        }
        qp
    }

    /// Sends to a device from now on.
    pub fn connect(&mut self, machine: &mut Machine, dest_addr: [u8; 16]) {
        let pd = self.pd;
        self.ah = machine.execute(&CreateAh { dest_addr, pd }).ah;
    }

    /// Registers zeroed memory.
    pub fn region(&self, machine: &mut Machine, length: u64) -> Region {
        let address = machine.ram.allocate(length);
        let pages: Vec<_> = (0..length.div_ceil(PAGE))
            .map(|page| address + page * PAGE)
            .collect();
        let mut command = RegMr {
            pd: self.pd,
            mr_length: length,
            flags: RegMrFlags {
                phys_page_size_shift: 12,
                mem_addr_phy_mode_en: false,
            },
            permissions: RegMrPermissions {
                local_write_enable: true,
                remote_write_enable: true,
                remote_read_enable: true,
            },
            iova: address,
            ..RegMr::default()
        };
        if pages.len() <= 4 {
            let mut list = [0; 4];
            list[..pages.len()].copy_from_slice(&pages);
            command.set_page_list(PageList::Inline(list));
        } else {
            let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
            let address = machine.ram.allocate(bytes.len() as u64);
            machine.ram.write(address, &bytes);
            // CAST: of a region of a test.
            let length = bytes.len() as u32;
            command.set_page_list(PageList::Direct(CtrlBuffInfo { length, address }));
        }
        let made = machine.execute(&command);
        Region {
            address,
            length,
            lkey: made.l_key,
            rkey: made.r_key,
        }
    }

    /// Posts a receive work request for memory of a region.
    pub fn receive(&mut self, machine: &mut Machine, region: &Region, offset: u64, length: u16) {
        let desc = RxDesc {
            buf_addr: region.address + offset,
            req_id: self.posted,
            length,
            lkey_ctrl: RxLkeyCtrl {
                lkey: region.lkey,
                first: true,
                last: true,
            },
        };
        let at = u64::from(self.posted % DEPTH) * RxDesc::SIZE as u64;
        machine.ram.write(self.rq + at, &desc.encode());
        self.posted = self.posted.wrapping_add(1);
        machine.doorbell(self.doorbells[1], self.posted.into());
    }

    /// Writes a send work request without telling the device.
    pub fn put(&mut self, machine: &Machine, send: &Send) {
        let meta = TxMetaDesc {
            req_id: self.sent,
            ctrl1: TxCtrl1 {
                op_type: send.operation.into(),
                meta_desc: true,
                ..TxCtrl1::default()
            },
            ctrl2: TxCtrl2 {
                phase: self.sent / DEPTH % 2 != 0,
                first: true,
                last: true,
                comp_req: true,
            },
            dest_qp_num: send.peer_qp,
            length: 1,
            ah: self.ah,
            qkey: QKEY,
            ..TxMetaDesc::default()
        };
        let (buf_addr, length, lkey) = send.local;
        let mut wqe = meta.encode().to_vec();
        if let Some((buf_addr, rkey)) = send.remote {
            let remote = RemoteMemAddr {
                length,
                rkey,
                buf_addr,
            };
            wqe.extend(remote.encode());
        }
        let buffer = TxBufDesc {
            length,
            lkey,
            buf_addr,
        };
        wqe.extend(buffer.encode());
        // CAST: a small constant.
        wqe.resize(WQE_SIZE as usize, 0);
        machine.write_llq(self.llq + u64::from(self.sent % DEPTH) * WQE_SIZE, &wqe);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Tells the device of what was written.
    pub fn ring(&self, machine: &mut Machine) {
        machine.doorbell(self.doorbells[0], self.sent.into());
    }

    /// Posts a send work request.
    pub fn post(&mut self, machine: &mut Machine, send: &Send) {
        self.put(machine, send);
        self.ring(machine);
    }

    /// Takes the next completion, if there is one.
    pub fn poll(&mut self, machine: &Machine) -> Option<Cdesc> {
        let at = u64::from(self.completed % CQ_DEPTH) * CQE_SIZE;
        let completion = Cdesc::decode(&machine.ram.load::<32>(self.cq + at));
        let phase = self.completed / CQ_DEPTH % 2 == 0;
        (completion.flags.phase == phase).then(|| {
            self.completed = self.completed.wrapping_add(1);
            completion
        })
    }

    /// Waits for the next completion; returns how it ended.
    pub fn wait(&mut self, machine: &Machine) -> CompStatus {
        let completion = wait_for("completion of a work request", || {
            self.poll(machine).ok_or(())
        });
        CompStatus::try_from(completion.status).expect("a known status")
    }
}

impl Region {
    /// Fills it.
    pub fn fill(&self, machine: &Machine, bytes: &[u8]) {
        machine.ram.write(self.address, bytes);
    }

    /// Its content from `offset` on.
    pub fn content(&self, machine: &Machine, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        machine.ram.read(self.address + offset, &mut bytes);
        bytes
    }
}

impl Send {
    /// A message from the start of a region.
    pub fn message(peer: &QueuePair, from: &Region, length: u32) -> Self {
        Self {
            operation: OpType::Send,
            peer_qp: peer.number,
            local: (from.address, length, from.lkey),
            remote: None,
        }
    }

    /// A write from the start of one region to that of another.
    pub fn write(peer: &QueuePair, from: &Region, to: &Region, length: u32) -> Self {
        Self {
            operation: OpType::RdmaWrite,
            remote: Some((to.address, to.rkey)),
            ..Self::message(peer, from, length)
        }
    }

    /// The same so many bytes further in both regions.
    pub fn moved(&self, offset: u64) -> Self {
        let (address, length, lkey) = self.local;
        Self {
            local: (address + offset, length, lkey),
            remote: self.remote.map(|(address, rkey)| (address + offset, rkey)),
            ..*self
        }
    }

    /// A read from the start of one region to that of another.
    pub fn read(peer: &QueuePair, to: &Region, from: &Region, length: u32) -> Self {
        Self {
            operation: OpType::RdmaRead,
            ..Self::write(peer, to, from, length)
        }
    }
}
