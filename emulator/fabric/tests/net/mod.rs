// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices on a network, each with a driver and a program that uses one queue pair.

#![allow(dead_code, reason = "each test uses some of it")]

#[path = "../../../model/tests/mock/mod.rs"]
pub(crate) mod mock;

use std::time::Duration;

use efa_fabric::{Cluster, CopyError, Guest, PortId, Settings};
use efa_hw::{
    admin::{
        CtrlBuffInfo, Status,
        ah::CreateAh,
        cq::{CqCaps1, CqCaps2, CreateCq},
        event_counter::{AttachEventCounter, CreateEventCounter, QpEvents},
        mr::{AllocMr, PageList, RegMr, RegMrFlags, RegMrPermissions},
        pd::AllocPd,
        qp::{CreateQp, CreateQpFlags, DestroyQp, ModifyQp, ModifyQpMask, QpState, QpType},
        uar::AllocUar,
    },
    io::{
        Cdesc, CompStatus, FastMrInvReq, FastMrRegFlags, FastMrRegReq, Key, OpType, PblMode,
        RemoteMemAddr, RxDesc, RxLkeyCtrl, TxBufDesc, TxCtrl1, TxCtrl2, TxMetaDesc,
    },
};
use efa_model::{Config, Device, DmaError, Host, Overrides, Profile};
use mock::{Driver, World};

pub(crate) const PAGE: u64 = 4096;

/// Work requests in each queue.
pub(crate) const DEPTH: u16 = 64;

/// Q_Key of all queue pairs.
pub(crate) const QKEY: u32 = 0x1234_5678;

/// Largest value of event counters.
pub(crate) const MOST: u64 = 499;

/// What a region can be used for.
pub(crate) const ALL_PERMISSIONS: RegMrPermissions = RegMrPermissions {
    local_write_enable: true,
    remote_write_enable: true,
    remote_read_enable: true,
};

/// Work done on more packets than any test has.
const MUCH: u32 = 1 << 20;

impl Guest for World {
    fn copy(&self, from: u64, to: &Self, at: u64, length: usize) -> Result<(), CopyError> {
        let mut bytes = vec![0; length];
        self.peek(from, &mut bytes).map_err(CopyError::Source)?;
        to.poke(at, &bytes).map_err(CopyError::Target)
    }
}

/// A network of devices.
pub(crate) struct Net {
    pub(crate) cluster: Cluster<World>,
    pub(crate) now: Duration,
    drivers: Vec<Option<Driver>>,
}

/// A queue pair with its completion queue, and a protection domain.
#[derive(Clone, Debug)]
pub(crate) struct Qp {
    pub(crate) port: PortId,
    pub(crate) pd: u16,
    pub(crate) uar: u16,
    pub(crate) cq_idx: u16,
    pub(crate) number: u16,
    pub(crate) ah: u16,
    wqe_size: u64,
    llq: u64,
    sq_doorbell: u64,
    rq_doorbell: u64,
    rq: u64,
    cq: u64,
    sent: u16,
    posted: u16,
    completed: u32,
}

/// A region of memory of pages that are scattered.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) port: PortId,
    pub(crate) iova: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pages: Vec<u64>,
}

/// A send work request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Send {
    pub(crate) operation: u8,
    pub(crate) immediate: Option<u32>,
    /// Address, length and key.
    pub(crate) buffers: Vec<(u64, u32, u32)>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) remote: Option<(u64, u32, u32)>,
    /// What is neither.
    pub(crate) body: Option<[u8; 32]>,
    pub(crate) ah: Option<u16>,
    pub(crate) peer_qp: u16,
    pub(crate) qkey: Option<u32>,
    /// Whether its success is not to be told.
    pub(crate) silent: bool,
}

impl Net {
    pub(crate) fn new(profiles: &[Profile], settings: Settings) -> Self {
        Self::with_seed(profiles, settings, 1)
    }

    pub(crate) fn with_seed(profiles: &[Profile], settings: Settings, seed: u64) -> Self {
        Self::of_program(profiles, settings, seed, 0)
    }

    /// The devices of a program, of which no two have the same numbers.
    pub(crate) fn of_program(
        profiles: &[Profile],
        settings: Settings,
        seed: u64,
        program: u64,
    ) -> Self {
        settings.check().unwrap();
        let mut net = Self {
            cluster: Cluster::new(settings, seed, program),
            now: Duration::from_secs(1),
            drivers: Vec::new(),
        };
        for (number, profile) in profiles.iter().enumerate() {
            let mut config = Config::new(*profile, program as u32 * 100 + number as u32);
            config.overrides = Overrides {
                event_counters: Some(true),
                max_event_counters: Some(64),
                event_counter_max_val: Some(MOST),
                event_counter_events: Some(QpEvents::DEFINED),
                ..Overrides::default()
            };
            let mut driver = Driver::with(config);
            let nobody = Device::new(Config::default());
            let device = std::mem::replace(&mut driver.device, nobody);
            let world = std::mem::take(&mut driver.world);
            net.cluster.attach(device, world);
            net.drivers.push(Some(driver));
        }
        net
    }

    /// Two devices that can do all, and a queue pair of each that know each other.
    pub(crate) fn pair(settings: Settings) -> (Self, Qp, Qp) {
        let mut net = Self::new(&[Profile::Efa3; 2], settings);
        let (mut a, mut b) = (net.qp(0, QpType::Srd), net.qp(1, QpType::Srd));
        net.introduce(&mut a, &mut b);
        (net, a, b)
    }

    /// Lets a driver work on its device.
    pub(crate) fn driver<R>(&mut self, port: PortId, work: impl FnOnce(&mut Driver) -> R) -> R {
        let mut driver = self.drivers[port.0].take().unwrap();
        driver.now = self.now;
        let result = self.cluster.with(port, self.now, |device, world| {
            std::mem::swap(&mut driver.device, device);
            std::mem::swap(&mut driver.world, world);
            let result = work(&mut driver);
            std::mem::swap(&mut driver.device, device);
            std::mem::swap(&mut driver.world, world);
            result
        });
        self.drivers[port.0] = Some(driver);
        result
    }

    /// Makes a queue pair of a device that can send and receive.
    pub(crate) fn qp(&mut self, port: usize, qp_type: QpType) -> Qp {
        self.qp_with(
            port,
            qp_type,
            CreateQpFlags::default(),
            CqCaps1::default(),
            128,
        )
    }

    /// The same on any device: with work requests of 64 bytes.
    pub(crate) fn narrow_qp(&mut self, port: usize, qp_type: QpType) -> Qp {
        self.qp_with(
            port,
            qp_type,
            CreateQpFlags::default(),
            CqCaps1::default(),
            64,
        )
    }

    pub(crate) fn qp_with(
        &mut self,
        port: usize,
        qp_type: QpType,
        flags: CreateQpFlags,
        caps_1: CqCaps1,
        wqe_size: u32,
    ) -> Qp {
        let pd = self.driver(PortId(port), |driver| driver.execute(&AllocPd {}));
        self.qp_in(pd.unwrap().pd, port, qp_type, flags, caps_1, wqe_size)
    }

    /// Makes another queue pair of the protection domain of one.
    pub(crate) fn sibling(&mut self, qp: &Qp, qp_type: QpType) -> Qp {
        let mut other = self.qp_in(
            qp.pd,
            qp.port.0,
            qp_type,
            CreateQpFlags::default(),
            CqCaps1::default(),
            qp.wqe_size as u32,
        );
        other.ah = qp.ah;
        other
    }

    fn qp_in(
        &mut self,
        pd: u16,
        port: usize,
        qp_type: QpType,
        flags: CreateQpFlags,
        caps_1: CqCaps1,
        wqe_size: u32,
    ) -> Qp {
        let port = PortId(port);
        self.driver(port, |driver| {
            let uar = driver.execute(&AllocUar {}).unwrap().uar;
            let (cq, rq) = (driver.world.map(4), driver.world.map(1));
            let create = CreateCq {
                caps_1,
                caps_2: CqCaps2 {
                    cq_entry_size_words: 8,
                    set_src_addr: true,
                    sq_comp_64_bit_req_id: flags.sq_64_bit_req_id,
                },
                sub_cq_depth: 2 * DEPTH,
                eqn: u16::from(caps_1.interrupt_mode_enabled),
                base_address: cq,
                l_key: 0,
                num_sub_cqs: 1,
                uar,
            };
            let cq_idx = driver.execute(&create).unwrap().cq_idx;
            let create = CreateQp {
                pd,
                qp_type: qp_type.into(),
                flags,
                rq_base_addr: rq,
                send_cq_idx: cq_idx.into(),
                recv_cq_idx: cq_idx.into(),
                send_queue_ring_size: u32::from(DEPTH) * wqe_size,
                send_queue_depth: DEPTH.into(),
                recv_queue_ring_size: u32::from(DEPTH) * 16,
                recv_queue_depth: DEPTH.into(),
                uar,
                ..CreateQp::default()
            };
            let made = driver.execute(&create).unwrap();
            let mut qp = Qp {
                port,
                pd,
                uar,
                cq_idx,
                number: made.qp_num,
                ah: 0,
                wqe_size: wqe_size.into(),
                llq: made.llq_descriptors_offset.into(),
                sq_doorbell: made.sq_db_offset.into(),
                rq_doorbell: made.rq_db_offset.into(),
                rq,
                cq,
                sent: 0,
                posted: 0,
                completed: 0,
            };
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                modify(driver, &mut qp, state);
            }
            qp
        })
    }

    /// Moves a queue pair to another state.
    pub(crate) fn modify(&mut self, qp: &mut Qp, state: QpState) {
        self.driver(qp.port, |driver| modify(driver, qp, state));
    }

    /// Resets a queue pair and makes event counters of it, each of some events; returns where their values are, each in a
    /// page of its own.
    pub(crate) fn count(&mut self, qp: &mut Qp, events: &[u32]) -> Vec<u64> {
        self.modify(qp, QpState::Reset);
        let (uar, qp_handle) = (qp.uar, qp.number.into());
        let places = self.driver(qp.port, |driver| {
            let counter = |events: &u32| {
                let paddr = driver.world.map(1) + PAGE / 2;
                let create = CreateEventCounter { uar, paddr };
                let attach = AttachEventCounter {
                    cntr_handle: driver.execute(&create).unwrap().cntr_handle,
                    attach_type: 0,
                    qp_handle,
                    events: QpEvents::from_raw(*events),
                };
                driver.execute(&attach).unwrap();
                paddr
            };
            events.iter().map(counter).collect()
        });
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(qp, state);
        }
        places
    }

    /// The values of event counters.
    pub(crate) fn values(&mut self, port: PortId, places: &[u64]) -> Vec<u64> {
        self.cluster.with_guest(port, |world| {
            let value = |place: &u64| u64::from_le_bytes(world.read(*place));
            places.iter().map(value).collect()
        })
    }

    /// Sets how often a queue pair tries again if the receiver is not ready.
    pub(crate) fn set_rnr_retry(&mut self, qp: &Qp, rnr_retry: u8) {
        let command = ModifyQp {
            modify_mask: ModifyQpMask {
                rnr_retry: true,
                ..ModifyQpMask::default()
            },
            qp_handle: qp.number.into(),
            rnr_retry,
            ..ModifyQp::default()
        };
        self.driver(qp.port, |driver| driver.execute(&command))
            .unwrap();
    }

    pub(crate) fn destroy(&mut self, qp: &Qp) {
        let qp_handle = qp.number.into();
        self.driver(qp.port, |driver| driver.execute(&DestroyQp { qp_handle }))
            .unwrap();
    }

    pub(crate) fn address(&mut self, port: PortId) -> [u8; 16] {
        self.driver(port, |driver| driver.device.address())
    }

    /// Makes the handle by which a queue pair knows a device.
    pub(crate) fn handle(&mut self, qp: &Qp, port: PortId) -> u16 {
        let dest_addr = self.address(port);
        self.handle_of(qp, dest_addr)
    }

    /// Makes the handle by which a queue pair knows an address.
    pub(crate) fn handle_of(&mut self, qp: &Qp, dest_addr: [u8; 16]) -> u16 {
        let command = CreateAh {
            dest_addr,
            pd: qp.pd,
        };
        self.driver(qp.port, |driver| driver.execute(&command))
            .unwrap()
            .ah
    }

    /// Makes the handles by which two queue pairs know each other.
    pub(crate) fn introduce(&mut self, a: &mut Qp, b: &mut Qp) {
        a.ah = self.handle(a, b.port);
        b.ah = self.handle(b, a.port);
    }

    /// Registers memory of so many pages, of which no two are contiguous, from `offset` in the first page on.
    pub(crate) fn region(&mut self, qp: &Qp, pages: u64, offset: u64) -> Region {
        self.region_with(qp, pages, offset, ALL_PERMISSIONS)
    }

    pub(crate) fn region_with(
        &mut self,
        qp: &Qp,
        pages: u64,
        offset: u64,
        permissions: RegMrPermissions,
    ) -> Region {
        self.region_cut(qp, pages, offset, 0, permissions)
    }

    /// The same, but it ends so many bytes before its last page does.
    pub(crate) fn region_cut(
        &mut self,
        qp: &Qp,
        pages: u64,
        offset: u64,
        cut: u64,
        permissions: RegMrPermissions,
    ) -> Region {
        let iova = 0x7f00_0000_0000 + offset;
        self.driver(qp.port, |driver| {
            let pages: Vec<_> = (0..pages).map(|_| driver.world.map(1)).collect();
            let mut command = RegMr {
                pd: qp.pd,
                mr_length: pages.len() as u64 * PAGE - offset - cut,
                flags: RegMrFlags {
                    phys_page_size_shift: 12,
                    mem_addr_phy_mode_en: false,
                },
                permissions,
                iova,
                ..RegMr::default()
            };
            if pages.len() <= 4 {
                let mut list = [0; 4];
                list[..pages.len()].copy_from_slice(&pages);
                command.set_page_list(PageList::Inline(list));
            } else {
                let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
                let address = driver.world.map((bytes.len() as u64).div_ceil(PAGE));
                driver.world.write(address, &bytes);
                let length = bytes.len() as u32;
                command.set_page_list(PageList::Direct(CtrlBuffInfo { length, address }));
            }
            let made = driver.execute(&command).unwrap();
            Region {
                port: qp.port,
                iova,
                lkey: made.l_key,
                rkey: made.r_key,
                pages,
            }
        })
    }

    /// Makes a region that gets its pages by work requests, and memory for it of so many pages, of which no two are
    /// contiguous, from `offset` in the first page on.
    pub(crate) fn fast_region(&mut self, qp: &Qp, pages: u64, offset: u64) -> Region {
        let command = AllocMr {
            pd: qp.pd,
            max_pages: pages as u32,
        };
        let made = self
            .driver(qp.port, |driver| driver.execute(&command))
            .unwrap();
        let region = Region {
            port: qp.port,
            iova: 0x7f00_0000_0000 + offset,
            lkey: made.l_key,
            rkey: made.r_key,
            pages: vec![0; pages as usize],
        };
        self.elsewhere(&region)
    }

    /// The same region with as much other memory.
    pub(crate) fn elsewhere(&mut self, region: &Region) -> Region {
        let pages = self.cluster.with_guest(region.port, |world| {
            region.pages.iter().map(|_| world.map(1)).collect()
        });
        Region {
            pages,
            ..region.clone()
        }
    }

    /// Writes a list of the pages of a region and returns the request that gives it all of them, to be used for anything.
    pub(crate) fn listed(&mut self, region: &Region) -> FastMrRegReq {
        let bytes: Vec<u8> = region.pages.iter().flat_map(|p| p.to_le_bytes()).collect();
        let list = self.cluster.with_guest(region.port, |world| {
            let address = world.map((bytes.len() as u64).div_ceil(PAGE));
            world.write(address, &bytes);
            address
        });
        region.request(PblMode::Direct, list)
    }

    /// Makes a region of bus addresses.
    pub(crate) fn physical_region(
        &mut self,
        qp: &Qp,
        iova: u64,
        length: u64,
        permissions: RegMrPermissions,
    ) -> Region {
        let command = RegMr {
            pd: qp.pd,
            mr_length: length,
            flags: RegMrFlags {
                phys_page_size_shift: 0,
                mem_addr_phy_mode_en: true,
            },
            permissions,
            iova,
            ..RegMr::default()
        };
        let made = self
            .driver(qp.port, |driver| driver.execute(&command))
            .unwrap();
        Region {
            port: qp.port,
            iova,
            lkey: made.l_key,
            rkey: made.r_key,
            pages: Vec::new(),
        }
    }

    /// Posts a work request and returns how it ends.
    pub(crate) fn outcome(&mut self, qp: &mut Qp, send: &Send) -> CompStatus {
        let req_id = self.post(qp, send);
        let completion = self.wait(qp);
        assert_eq!(completion.req_id, req_id);
        assert_eq!(completion.flags.op_type, send.operation);
        CompStatus::try_from(completion.status).unwrap()
    }

    /// Writes to a region, as the program would.
    pub(crate) fn fill(&mut self, region: &Region, offset: u64, bytes: &[u8]) {
        self.cluster.with_guest(region.port, |world| {
            for (index, byte) in bytes.iter().enumerate() {
                let at = (region.iova % PAGE) + offset + index as u64;
                let page = region.pages[(at / PAGE) as usize];
                world.dma_write(page + at % PAGE, &[*byte]).unwrap();
            }
        });
    }

    /// Reads a region, as the program would.
    pub(crate) fn content(&mut self, region: &Region, offset: u64, length: usize) -> Vec<u8> {
        self.cluster.with_guest(region.port, |world| {
            let byte = |index: usize| {
                let at = (region.iova % PAGE) + offset + index as u64;
                let mut byte = [0];
                let page = region.pages[(at / PAGE) as usize];
                world.dma_read(page + at % PAGE, &mut byte).unwrap();
                byte[0]
            };
            (0..length).map(byte).collect()
        })
    }

    /// Takes the memory of a region away from the device, which does not know.
    pub(crate) fn unmap(&mut self, region: &Region) {
        self.cluster.with_guest(region.port, |world| {
            for page in &region.pages {
                world.unmap(*page);
            }
        });
    }

    /// Writes a send work request without telling the device; returns its id.
    pub(crate) fn put(&mut self, qp: &mut Qp, send: &Send) -> u16 {
        let req_id = qp.sent;
        let meta = TxMetaDesc {
            req_id,
            ctrl1: TxCtrl1 {
                op_type: send.operation,
                has_imm: send.immediate.is_some(),
                inline_msg: send.inline.is_some(),
                meta_extension: false,
                meta_desc: true,
            },
            ctrl2: TxCtrl2 {
                phase: qp.sent / DEPTH % 2 != 0,
                first: true,
                last: true,
                comp_req: !send.silent,
            },
            dest_qp_num: send.peer_qp,
            length: match &send.inline {
                Some(bytes) => bytes.len() as u16,
                None => send.buffers.len() as u16,
            },
            immediate_data: send.immediate.unwrap_or(0),
            ah: send.ah.unwrap_or(qp.ah),
            qkey: send.qkey.unwrap_or(QKEY),
            req_id_ex: req_id_ex(req_id),
            ..TxMetaDesc::default()
        };
        let mut wqe = meta.encode().to_vec();
        if let Some((buf_addr, length, rkey)) = send.remote {
            let remote = RemoteMemAddr {
                length,
                rkey,
                buf_addr,
            };
            wqe.extend(remote.encode());
        }
        for (buf_addr, length, lkey) in &send.buffers {
            let buffer = TxBufDesc {
                length: *length,
                lkey: *lkey,
                buf_addr: *buf_addr,
            };
            wqe.extend(buffer.encode());
        }
        wqe.extend(send.inline.iter().flatten());
        wqe.extend(send.body.iter().flatten());
        self.put_raw(qp, &wqe);
        req_id
    }

    /// Writes bytes where the next work request would be.
    pub(crate) fn put_raw(&mut self, qp: &mut Qp, wqe: &[u8]) {
        let at = (qp.llq + u64::from(qp.sent % DEPTH) * qp.wqe_size) as usize;
        let size = qp.wqe_size as usize;
        qp.sent = qp.sent.wrapping_add(1);
        self.cluster.with_guest(qp.port, |world| {
            let memory = &mut world.device_memory;
            memory.resize(memory.len().max(at + size), 0);
            memory[at..at + size].fill(0);
            memory[at..at + wqe.len().min(size)].copy_from_slice(&wqe[..wqe.len().min(size)]);
        });
    }

    /// Writes no work request where the next one would be.
    pub(crate) fn skip(&self, qp: &mut Qp) {
        qp.sent = qp.sent.wrapping_add(1);
    }

    pub(crate) fn ring_send(&mut self, qp: &Qp) {
        let (doorbell, value) = (qp.sq_doorbell, qp.sent.into());
        self.doorbell(qp.port, doorbell, value);
    }

    pub(crate) fn ring_receive(&mut self, qp: &Qp) {
        let (doorbell, value) = (qp.rq_doorbell, qp.posted.into());
        self.doorbell(qp.port, doorbell, value);
    }

    pub(crate) fn doorbell(&mut self, port: PortId, offset: u64, value: u32) {
        self.driver(port, |driver| {
            driver
                .device
                .write_doorbell(&mut driver.world, offset, value);
        });
    }

    /// Posts a send work request; returns its id.
    pub(crate) fn post(&mut self, qp: &mut Qp, send: &Send) -> u16 {
        let req_id = self.put(qp, send);
        self.ring_send(qp);
        req_id
    }

    /// Posts a receive work request of these buffers: address, length and key; returns its id.
    pub(crate) fn receive(&mut self, qp: &mut Qp, buffers: &[(u64, u16, u32)]) -> u16 {
        let req_id = 0x8000 | qp.posted;
        for (index, (buf_addr, length, lkey)) in buffers.iter().enumerate() {
            let desc = RxDesc {
                buf_addr: *buf_addr,
                req_id,
                length: *length,
                lkey_ctrl: RxLkeyCtrl {
                    lkey: *lkey,
                    first: index == 0,
                    last: index + 1 == buffers.len(),
                },
            };
            let at = qp.rq + u64::from(qp.posted % DEPTH) * 16;
            qp.posted = qp.posted.wrapping_add(1);
            self.cluster
                .with_guest(qp.port, |world| world.write(at, &desc.encode()));
        }
        self.ring_receive(qp);
        req_id
    }

    /// Posts a descriptor that need not be the whole of a receive work request.
    pub(crate) fn put_receive(&mut self, qp: &mut Qp, desc: &RxDesc) {
        let at = qp.rq + u64::from(qp.posted % DEPTH) * 16;
        qp.posted = qp.posted.wrapping_add(1);
        self.cluster
            .with_guest(qp.port, |world| world.write(at, &desc.encode()));
        self.ring_receive(qp);
    }

    /// Moves a queue pair to another state if the device lets it.
    pub(crate) fn try_modify(&mut self, qp: &mut Qp, state: QpState) {
        self.driver(qp.port, |driver| {
            let _ = try_modify(driver, qp, state);
        });
    }

    /// Makes what is oldest in a receive queue the middle of a work request.
    pub(crate) fn spoil_receive(&mut self, qp: &Qp) {
        let at = qp.rq;
        self.cluster
            .with_guest(qp.port, |world| world.write(at + 12, &[0; 4]));
    }

    /// Says that a receive queue has one more descriptor than it has room for.
    pub(crate) fn overrun_receive(&mut self, qp: &Qp) {
        let value = u32::from(qp.posted - 1 + DEPTH) + 1;
        self.doorbell(qp.port, qp.rq_doorbell, value);
    }

    /// Does what can be done now.
    pub(crate) fn run(&mut self) -> Option<Duration> {
        self.cluster.run(self.now, MUCH)
    }

    /// Lets time go by, from one moment when there is something to do to the next.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            match self.run() {
                Some(due) if due <= end => self.now = self.now.max(due),
                _ => break,
            }
        }
        self.now = end;
    }

    /// Takes the next completion.
    pub(crate) fn poll(&mut self, qp: &mut Qp) -> Option<Cdesc> {
        let entries = u32::from(2 * DEPTH);
        let at = qp.cq + u64::from(qp.completed % entries) * 32;
        let bytes: [u8; 32] = self.cluster.with_guest(qp.port, |world| world.read(at));
        let completion = Cdesc::decode(&bytes);
        if completion.flags.phase != (qp.completed / entries % 2 == 0) {
            return None;
        }
        qp.completed += 1;
        Some(completion)
    }

    /// Takes the next completion, for which time goes by.
    pub(crate) fn wait(&mut self, qp: &mut Qp) -> Cdesc {
        for _ in 0..4000 {
            self.run();
            if let Some(completion) = self.poll(qp) {
                return completion;
            }
            self.run_for(Duration::from_millis(5));
        }
        panic!("no completion comes");
    }

    /// Takes the next completion and returns its status.
    pub(crate) fn status(&mut self, qp: &mut Qp) -> CompStatus {
        CompStatus::try_from(self.wait(qp).status).unwrap()
    }

    pub(crate) fn protocol_errors(&mut self) -> u64 {
        (0..self.drivers.len())
            .map(|port| self.driver(PortId(port), |driver| driver.device.state().protocol_errors))
            .sum()
    }
}

fn modify(driver: &mut Driver, qp: &mut Qp, state: QpState) {
    try_modify(driver, qp, state).unwrap();
}

fn try_modify(driver: &mut Driver, qp: &mut Qp, state: QpState) -> Result<(), Status> {
    let command = ModifyQp {
        modify_mask: ModifyQpMask {
            qp_state: true,
            qkey: state == QpState::Init,
            ..ModifyQpMask::default()
        },
        qp_handle: qp.number.into(),
        qp_state: state.into(),
        qkey: QKEY,
        ..ModifyQp::default()
    };
    driver.execute(&command)?;
    if state == QpState::Reset {
        (qp.sent, qp.posted) = (0, 0);
    }
    Ok(())
}

impl Qp {
    /// Where its completion queue is.
    pub(crate) fn completion_queue(&self) -> std::ops::Range<u64> {
        self.cq..self.cq + 4 * PAGE
    }

    /// Its doorbells: of the send queue and of the receive queue.
    pub(crate) fn doorbells(&self) -> [u64; 2] {
        [self.sq_doorbell, self.rq_doorbell]
    }
}

impl Region {
    /// Where its pages are.
    pub(crate) fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Its memory with the keys that another one has.
    pub(crate) fn with_keys(&self, other: &Self) -> Self {
        Self {
            lkey: other.lkey,
            rkey: other.rkey,
            ..self.clone()
        }
    }

    /// The request that gives it all of its pages, to be used for anything.
    pub(crate) fn request(&self, mode: PblMode, pbl: u64) -> FastMrRegReq {
        FastMrRegReq {
            lkey: self.lkey,
            permissions: ALL_PERMISSIONS,
            flags: FastMrRegFlags {
                phys_page_size_shift: 12,
                pbl_mode: mode.into(),
            },
            iova: self.iova,
            mr_length: self.pages.len() as u64 * PAGE - self.iova % PAGE,
            pbl,
        }
    }

    /// The same with its first page in the request.
    pub(crate) fn inline(&self) -> FastMrRegReq {
        self.request(PblMode::Inline, self.pages[0])
    }

    /// Makes its keys those of the next generation, as clients do before they register it.
    pub(crate) fn renew(&mut self) {
        for key in [&mut self.lkey, &mut self.rkey] {
            let mut parts = Key::from_raw(*key);
            parts.generation = (parts.generation + 1) % 16;
            *key = parts.into_raw();
        }
    }
}

impl Send {
    /// What gives a region its pages.
    pub(crate) fn register(request: &FastMrRegReq) -> Self {
        Self {
            operation: OpType::FastReg.into(),
            ah: Some(0),
            qkey: Some(0),
            body: Some(request.encode()),
            ..Self::default()
        }
    }

    /// What takes them away.
    pub(crate) fn invalidate(lkey: u32) -> Self {
        Self {
            operation: OpType::FastInv.into(),
            body: Some(FastMrInvReq { lkey }.encode()),
            ..Self::register(&FastMrRegReq::default())
        }
    }

    /// A message from a region.
    pub(crate) fn message(peer: &Qp, region: &Region, length: u32) -> Self {
        Self {
            buffers: vec![(region.iova, length, region.lkey)],
            peer_qp: peer.number,
            ..Self::default()
        }
    }

    /// A write from one region to the start of another.
    pub(crate) fn write(peer: &Qp, from: &Region, to: &Region, length: u32) -> Self {
        Self {
            operation: OpType::RdmaWrite.into(),
            remote: Some((to.iova, length, to.rkey)),
            ..Self::message(peer, from, length)
        }
    }

    /// A read from the start of one region to another.
    pub(crate) fn read(peer: &Qp, to: &Region, from: &Region, length: u32) -> Self {
        Self {
            operation: OpType::RdmaRead.into(),
            ..Self::write(peer, to, from, length)
        }
    }
}

impl World {
    /// Reads memory without taking note of it.
    pub(crate) fn peek(&self, address: u64, bytes: &mut [u8]) -> Result<(), DmaError> {
        let length = bytes.len();
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = address.wrapping_add(index as u64);
            let error = DmaError { address, length };
            *byte = self.byte(at).ok_or(error)?.get();
        }
        Ok(())
    }

    /// Writes memory without taking note of it.
    pub(crate) fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        let length = bytes.len();
        let error = DmaError { address, length };
        for index in 0..length {
            self.byte(address.wrapping_add(index as u64)).ok_or(error)?;
        }
        for (index, byte) in bytes.iter().enumerate() {
            if let Some(cell) = self.byte(address.wrapping_add(index as u64)) {
                cell.set(*byte);
            }
        }
        Ok(())
    }
}

/// The upper 48 bits of all request ids, which a device looks at only if they are to have 64.
pub(crate) fn req_id_ex(req_id: u16) -> [u8; 6] {
    [1, 2, 3, 4, 5, 6].map(|byte| byte ^ req_id as u8)
}

/// Bytes that tell where they are.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
