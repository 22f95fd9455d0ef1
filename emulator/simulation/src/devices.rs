// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Whole devices, each with a driver, on the network of the product: what is measured is the code that guests use.
//!
//! Only payload is not there: nobody looks at it, and to copy it would take most of the time and memory of a large experiment.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use efa_fabric::{Access, CopyError, Fabric, Guest, Memory, Pins, PortId, Settings};
use efa_hw::{
    admin::{
        ah::CreateAh,
        cq::{CqCaps2, CreateCq},
        mr::{RegMr, RegMrFlags, RegMrPermissions},
        pd::AllocPd,
        qp::{CreateQp, ModifyQp, ModifyQpMask, QpState, QpType},
        uar::AllocUar,
    },
    io::{Cdesc, CompStatus, OpType, RemoteMemAddr, TxBufDesc, TxCtrl1, TxCtrl2, TxMetaDesc},
};
use efa_model::{Config, DmaError, Host, Profile, Segment, TraceEvent};
use efa_testing::mock::{Driver, World};
use parking_lot::Mutex;

use crate::traffic::{Arrived, Flow};

/// Work requests in each queue.
const DEPTH: u16 = 64;

/// Work requests of a queue pair that are not completed: so many that there is always another one to send.
const OUTSTANDING: u64 = 32;

/// Bytes of a work request, and of a completion.
const WQE: u64 = 64;
const CQE: u64 = 32;

/// Bytes of a completion queue.
const CQ: u64 = 2 * DEPTH as u64 * CQE;

const QKEY: u32 = 0x1234_5678;

/// Where the payload is that is not there, and the most of it.
const BUFFER: u64 = 1 << 40;
const LENGTH: u64 = 1 << 30;

/// More packets than are moved before time goes on.
const MUCH: u32 = 1 << 20;

/// A device's host.
struct Machine {
    world: World,
    pins: Arc<Pins>,
    /// Its queue pairs, by the address of their completion queues.
    queues: BTreeMap<u64, usize>,
    /// Queue pairs of all machines with completions to take.
    completed: Arc<Mutex<Vec<usize>>>,
}

/// Payload that is not there.
#[derive(Debug)]
struct Nothing(usize);

/// A queue pair, which knows others by address handles.
struct Qp {
    port: usize,
    number: u16,
    llq: u64,
    doorbell: u64,
    cq: u64,
    lkey: u32,
    rkey: u32,
    sent: u16,
    completed: u32,
    /// What it sends, in this order.
    work: Vec<Work>,
    /// How many messages of the first of `work` were posted.
    posted: u64,
    /// The flow of each work request.
    flows: [usize; DEPTH as usize],
    outstanding: u64,
}

/// A flow of a queue pair.
struct Work {
    flow: usize,
    /// The queue pair to which it goes.
    to: usize,
    ah: u16,
}

/// Who sends by a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Each flow has a queue pair of its own at both ends.
    Flow,
    /// All flows of a device share one.
    Device,
}

impl Host for Machine {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.world.dma_read(address, buffer)
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        if let Some((start, qp)) = self.queues.range(..=address).next_back() {
            if address - start < CQ {
                self.completed.lock().push(*qp);
            }
        }
        self.world.dma_write(address, data)
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        self.world.read_device_memory(offset, buffer);
    }

    fn interrupt(&mut self, _: u16) {}

    fn trace(&mut self, _: &TraceEvent) {}

    fn quiesce(&mut self) {
        self.pins.quiesce();
    }
}

impl Guest for Machine {
    type Memory = Nothing;

    fn memory(&self, segments: &[Segment], _: Access) -> Result<Nothing, DmaError> {
        let lengths = segments.iter().map(|segment| segment.length as usize);
        Ok(Nothing(lengths.sum()))
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}

impl Memory for Nothing {
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError> {
        assert_eq!(buffer.len(), self.0);
        Ok(())
    }

    fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        assert_eq!(data.len(), self.0);
        Ok(())
    }

    fn copy_to(&self, target: &Self) -> Result<(), CopyError> {
        assert_eq!(target.0, self.0);
        Ok(())
    }
}

/// Devices with queue pairs for some flows.
pub(crate) struct Cluster {
    fabric: Fabric<Machine>,
    qps: Vec<Qp>,
    lengths: Vec<(u32, u64)>,
    completed: Arc<Mutex<Vec<usize>>>,
    now: Duration,
}

impl Cluster {
    /// So many devices, with what they need for the flows.
    pub(crate) fn new(
        settings: &Settings,
        seed: u64,
        ports: usize,
        flows: &[Flow],
        share: Share,
    ) -> Self {
        let mut drivers: Vec<_> = (0..ports).map(Machine::drive).collect();
        let mut qps = Vec::new();
        let keys: Vec<_> = drivers.iter_mut().map(domain).collect();
        match share {
            Share::Flow => {
                for (flow, Flow { from, to, .. }) in flows.iter().enumerate() {
                    let (sender, receiver) = (qps.len(), qps.len() + 1);
                    for port in [*from, *to] {
                        qps.push(Qp::new(&mut drivers[port], port, &keys[port]));
                    }
                    let ah = handle(&mut drivers, &keys, *from, *to);
                    handle(&mut drivers, &keys, *to, *from);
                    let to = receiver;
                    qps[sender].work.push(Work { flow, to, ah });
                }
            }
            Share::Device => {
                for (port, driver) in drivers.iter_mut().enumerate() {
                    qps.push(Qp::new(driver, port, &keys[port]));
                }
                for (flow, Flow { from, to, .. }) in flows.iter().enumerate() {
                    let ah = handle(&mut drivers, &keys, *from, *to);
                    qps[*from].work.push(Work { flow, to: *to, ah });
                }
            }
        }
        for qp in &mut qps {
            // The next one is the last.
            qp.work.reverse();
        }
        let fabric = Fabric::new(settings.clone(), seed);
        let completed = Arc::new(Mutex::new(Vec::new()));
        for (port, driver) in drivers.into_iter().enumerate() {
            let own = qps.iter().enumerate().filter(|(_, qp)| qp.port == port);
            let machine = Machine {
                world: driver.world,
                pins: Arc::default(),
                queues: own.map(|(number, qp)| (qp.cq, number)).collect(),
                completed: Arc::clone(&completed),
            };
            fabric.attach(driver.device, machine);
        }
        Self {
            fabric,
            qps,
            lengths: flows
                .iter()
                .map(|flow| (flow.length, flow.messages))
                .collect(),
            completed,
            now: Duration::from_secs(1),
        }
    }

    /// Lets all flows send, until all has arrived or some time has passed; returns what arrived when.
    pub(crate) fn run(&mut self, time: Duration) -> Vec<Arrived> {
        let start = self.now;
        let mut arrived = Vec::new();
        let mut left: u64 = self.lengths.iter().map(|(_, messages)| messages).sum();
        for qp in 0..self.qps.len() {
            self.post(qp);
        }
        while left > 0 {
            let due = self
                .fabric
                .run(self.now, MUCH)
                .expect("something is to come");
            let mut completed = std::mem::take(&mut *self.completed.lock());
            completed.dedup();
            for qp in completed {
                while let Some(flow) = self.poll(qp) {
                    left -= 1;
                    arrived.push(Arrived {
                        at: self.now - start,
                        flow,
                        bytes: self.lengths[flow].0.into(),
                    });
                }
                self.post(qp);
            }
            self.now = self.now.max(due);
            if self.now - start > time {
                break;
            }
        }
        arrived
    }

    /// Posts as many work requests as may be outstanding.
    fn post(&mut self, number: usize) {
        let mut wqes = Vec::new();
        let qp = &self.qps[number];
        let (mut posted, mut index) = (qp.posted, qp.work.len());
        while qp.outstanding + (wqes.len() as u64) < OUTSTANDING && index > 0 {
            let work = &qp.work[index - 1];
            let (length, messages) = self.lengths[work.flow];
            let sent = qp.sent.wrapping_add(wqes.len() as u16);
            wqes.push((
                work.flow,
                wqe(qp, &self.qps[work.to], work.ah, sent, length),
            ));
            posted += 1;
            if posted == messages {
                (posted, index) = (0, index - 1);
            }
        }
        if wqes.is_empty() {
            return;
        }
        let qp = &mut self.qps[number];
        qp.work.truncate(index);
        qp.posted = posted;
        qp.outstanding += wqes.len() as u64;
        let (llq, doorbell) = (qp.llq, qp.doorbell);
        self.fabric
            .with(PortId(qp.port), self.now, 0, |device, machine| {
                let memory = &mut machine.world.device_memory;
                for (flow, wqe) in wqes {
                    let slot = qp.sent % DEPTH;
                    qp.flows[usize::from(slot)] = flow;
                    qp.sent = qp.sent.wrapping_add(1);
                    let at = (llq + u64::from(slot) * WQE) as usize;
                    memory.resize(memory.len().max(at + WQE as usize), 0);
                    memory[at..at + wqe.len()].copy_from_slice(&wqe);
                }
                device.write_doorbell(machine, doorbell, qp.sent.into());
            });
    }

    /// Takes a completion of a queue pair; returns its flow.
    fn poll(&mut self, number: usize) -> Option<usize> {
        let qp = &mut self.qps[number];
        let entries = 2 * u32::from(DEPTH);
        let at = qp.cq + u64::from(qp.completed % entries) * CQE;
        let bytes: [u8; 32] = self
            .fabric
            .with_guest(PortId(qp.port), |machine| machine.world.read(at));
        let completion = Cdesc::decode(&bytes);
        if completion.flags.phase != (qp.completed / entries % 2 == 0) {
            return None;
        }
        assert_eq!(completion.status, u8::from(CompStatus::Ok));
        qp.completed += 1;
        qp.outstanding -= 1;
        Some(qp.flows[usize::from(completion.req_id % DEPTH)])
    }

    /// Packets that paths lost.
    pub(crate) fn lost(&self) -> u64 {
        self.fabric.paths().iter().map(|path| path.lost).sum()
    }
}

impl Machine {
    /// A device with the least of a driver.
    fn drive(number: usize) -> Driver {
        Driver::with(Config::new(Profile::Efa3, number as u32))
    }
}

/// What all queue pairs of a device share.
struct Domain {
    pd: u16,
    uar: u16,
    lkey: u32,
    rkey: u32,
    address: [u8; 16],
}

fn domain(driver: &mut Driver) -> Domain {
    let pd = driver.execute(&AllocPd {}).unwrap().pd;
    let uar = driver.execute(&AllocUar {}).unwrap().uar;
    let command = RegMr {
        pd,
        mr_length: LENGTH,
        flags: RegMrFlags {
            phys_page_size_shift: 0,
            mem_addr_phy_mode_en: true,
        },
        permissions: RegMrPermissions {
            local_write_enable: true,
            remote_write_enable: true,
            remote_read_enable: true,
        },
        iova: BUFFER,
        ..RegMr::default()
    };
    let region = driver.execute(&command).unwrap();
    Domain {
        pd,
        uar,
        lkey: region.l_key,
        rkey: region.r_key,
        address: driver.device.address(),
    }
}

/// Makes the handle by which one device knows another.
fn handle(drivers: &mut [Driver], domains: &[Domain], from: usize, to: usize) -> u16 {
    let command = CreateAh {
        dest_addr: domains[to].address,
        pd: domains[from].pd,
    };
    drivers[from].execute(&command).unwrap().ah
}

impl Qp {
    /// A queue pair that can send and receive.
    fn new(driver: &mut Driver, port: usize, domain: &Domain) -> Self {
        let Domain { pd, uar, .. } = *domain;
        let (cq, rq) = (driver.world.map(CQ.div_ceil(4096)), driver.world.map(1));
        let create = CreateCq {
            caps_2: CqCaps2 {
                cq_entry_size_words: (CQE / 4) as u8,
                ..CqCaps2::default()
            },
            sub_cq_depth: 2 * DEPTH,
            base_address: cq,
            num_sub_cqs: 1,
            uar,
            ..CreateCq::default()
        };
        let cq_idx = driver.execute(&create).unwrap().cq_idx;
        let create = CreateQp {
            pd,
            qp_type: QpType::Srd.into(),
            rq_base_addr: rq,
            send_cq_idx: cq_idx.into(),
            recv_cq_idx: cq_idx.into(),
            send_queue_ring_size: u32::from(DEPTH) * WQE as u32,
            send_queue_depth: DEPTH.into(),
            recv_queue_ring_size: u32::from(DEPTH) * 16,
            recv_queue_depth: DEPTH.into(),
            uar,
            ..CreateQp::default()
        };
        let made = driver.execute(&create).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let command = ModifyQp {
                modify_mask: ModifyQpMask {
                    qp_state: true,
                    qkey: state == QpState::Init,
                    ..ModifyQpMask::default()
                },
                qp_handle: made.qp_num.into(),
                qp_state: state.into(),
                qkey: QKEY,
                ..ModifyQp::default()
            };
            driver.execute(&command).unwrap();
        }
        Self {
            port,
            number: made.qp_num,
            llq: made.llq_descriptors_offset.into(),
            doorbell: made.sq_db_offset.into(),
            cq,
            lkey: domain.lkey,
            rkey: domain.rkey,
            sent: 0,
            completed: 0,
            work: Vec::new(),
            posted: 0,
            flows: [0; DEPTH as usize],
            outstanding: 0,
        }
    }
}

/// A work request: a write of so many bytes to the memory of another queue pair.
fn wqe(qp: &Qp, to: &Qp, ah: u16, req_id: u16, length: u32) -> Vec<u8> {
    let meta = TxMetaDesc {
        req_id,
        ctrl1: TxCtrl1 {
            op_type: OpType::RdmaWrite.into(),
            meta_desc: true,
            ..TxCtrl1::default()
        },
        ctrl2: TxCtrl2 {
            phase: req_id / DEPTH % 2 != 0,
            first: true,
            last: true,
            comp_req: true,
        },
        dest_qp_num: to.number,
        length: 1,
        ah,
        qkey: QKEY,
        ..TxMetaDesc::default()
    };
    let remote = RemoteMemAddr {
        length,
        rkey: to.rkey,
        buf_addr: BUFFER,
    };
    let buffer = TxBufDesc {
        length,
        lkey: qp.lkey,
        buf_addr: BUFFER,
    };
    let mut wqe = meta.encode().to_vec();
    wqe.extend(remote.encode());
    wqe.extend(buffer.encode());
    wqe
}
