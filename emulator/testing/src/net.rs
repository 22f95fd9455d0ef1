// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices on a network, each with a driver and a program that uses one queue pair.
//!
//! What fails panics.

#![allow(
    missing_docs,
    reason = "fields and methods have the names of what they are in the interface"
)]

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use efa_fabric::{Access, CopyError, Fabric, Guest, Memory, Pins, PortId, Settings};
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
use efa_model::{Config, Device, DmaError, Host, Overrides, Profile, Segment, TraceEvent};

use crate::mock::{Driver, Page, World};

pub const PAGE: u64 = 4096;

/// Work requests in each queue.
pub const DEPTH: u16 = 64;

/// Q_Key of all queue pairs.
pub const QKEY: u32 = 0x1234_5678;

/// Largest value of event counters.
pub const MOST: u64 = 499;

/// What a region can be used for.
pub const ALL_PERMISSIONS: RegMrPermissions = RegMrPermissions {
    local_write_enable: true,
    remote_write_enable: true,
    remote_read_enable: true,
};

/// Work done on more packets than any test has.
const MUCH: u32 = 1 << 20;

/// A device's host, whose memory is copied without the device.
#[derive(Default)]
pub struct Computer {
    pub world: World,
    pins: Arc<Pins>,
}

/// Memory of a host: parts of pages.
#[derive(Debug)]
pub struct Pages {
    parts: Vec<(Arc<Page>, Range<usize>)>,
    address: u64,
}

impl Host for Computer {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.world.dma_read(address, buffer)
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.world.dma_write(address, data)
    }

    fn is_bus_master(&self) -> bool {
        self.world.is_bus_master()
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        self.world.read_device_memory(offset, buffer);
    }

    fn interrupt(&mut self, vector: u16) {
        self.world.interrupt(vector);
    }

    fn trace(&mut self, event: &TraceEvent) {
        self.world.trace(event);
    }

    fn quiesce(&mut self) {
        self.pins.quiesce();
    }
}

impl Guest for Computer {
    type Memory = Pages;

    fn memory(&self, segments: &[Segment], _: Access) -> Result<Pages, DmaError> {
        let mut pages = Pages {
            parts: Vec::new(),
            address: segments.first().map_or(0, |segment| segment.address),
        };
        for segment in segments {
            let length = segment.length as usize;
            let error = DmaError {
                address: segment.address,
                length,
            };
            if !self.is_bus_master() {
                return Err(error);
            }
            let mut done = 0;
            while done < length {
                let start = segment.address.checked_add(done as u64).ok_or(error)?;
                let page = self.world.page(start).ok_or(error)?;
                let offset = (start % PAGE) as usize;
                let part = (PAGE as usize - offset).min(length - done);
                pages.parts.push((Arc::clone(page), offset..offset + part));
                done += part;
            }
        }
        Ok(pages)
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}

impl Pages {
    fn bytes(&self) -> impl Iterator<Item = &AtomicU8> {
        let parts = self.parts.iter();
        parts.flat_map(|(page, range)| &page[range.clone()])
    }

    fn check(&self, length: usize) {
        let own: usize = self.parts.iter().map(|(_, range)| range.len()).sum();
        assert_eq!(own, length, "at {:#x}", self.address);
    }
}

impl Memory for Pages {
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.check(buffer.len());
        for (byte, own) in buffer.iter_mut().zip(self.bytes()) {
            *byte = own.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        self.check(data.len());
        for (byte, own) in data.iter().zip(self.bytes()) {
            own.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    fn copy_to(&self, target: &Self) -> Result<(), CopyError> {
        target.check(self.bytes().count());
        for (from, to) in self.bytes().zip(target.bytes()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A network of devices.
pub struct Net {
    pub fabric: Arc<Fabric<Computer>>,
    pub now: Duration,
    drivers: Vec<Option<Driver>>,
}

/// A queue pair with its completion queue, and a protection domain.
#[derive(Clone, Debug)]
pub struct Qp {
    pub port: PortId,
    pub pd: u16,
    pub uar: u16,
    pub cq_idx: u16,
    pub number: u16,
    pub ah: u16,
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
pub struct Region {
    pub port: PortId,
    pub iova: u64,
    pub lkey: u32,
    pub rkey: u32,
    pages: Vec<u64>,
}

/// A send work request.
#[derive(Clone, Debug, Default)]
pub struct Send {
    pub operation: u8,
    pub immediate: Option<u32>,
    /// Address, length and key.
    pub buffers: Vec<(u64, u32, u32)>,
    pub inline: Option<Vec<u8>>,
    pub remote: Option<(u64, u32, u32)>,
    /// What is neither.
    pub body: Option<[u8; 32]>,
    pub ah: Option<u16>,
    pub peer_qp: u16,
    pub qkey: Option<u32>,
    /// Whether its success is not to be told.
    pub silent: bool,
}

impl Net {
    pub fn new(profiles: &[Profile], settings: Settings) -> Self {
        Self::with_seed(profiles, settings, 1)
    }

    pub fn with_seed(profiles: &[Profile], settings: Settings, seed: u64) -> Self {
        Self::of_program(profiles, settings, seed, 0)
    }

    /// The devices of a program, of which no two have the same numbers.
    pub fn of_program(profiles: &[Profile], settings: Settings, seed: u64, program: u64) -> Self {
        settings.check().unwrap();
        let mut net = Self {
            fabric: Arc::new(Fabric::new(settings, seed)),
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
            let computer = Computer {
                world: std::mem::take(&mut driver.world),
                ..Computer::default()
            };
            net.fabric.attach(device, computer);
            net.drivers.push(Some(driver));
        }
        net
    }

    /// Two devices that can do all, and a queue pair of each that know each other.
    pub fn pair(settings: Settings) -> (Self, Qp, Qp) {
        let mut net = Self::new(&[Profile::Efa3; 2], settings);
        let (mut a, mut b) = (net.qp(0, QpType::Srd), net.qp(1, QpType::Srd));
        net.introduce(&mut a, &mut b);
        (net, a, b)
    }

    /// Works on the world of a device.
    pub fn world<R>(&mut self, port: PortId, work: impl FnOnce(&mut World) -> R) -> R {
        self.fabric
            .with_guest(port, |computer| work(&mut computer.world))
    }

    /// Lets a driver work on its device.
    pub fn driver<R>(&mut self, port: PortId, work: impl FnOnce(&mut Driver) -> R) -> R {
        let mut driver = self.drivers[port.0].take().unwrap();
        driver.now = self.now;
        let result = self.fabric.with(port, self.now, 0, |device, computer| {
            let world = &mut computer.world;
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
    pub fn qp(&mut self, port: usize, qp_type: QpType) -> Qp {
        self.qp_with(
            port,
            qp_type,
            CreateQpFlags::default(),
            CqCaps1::default(),
            128,
        )
    }

    /// The same on any device: with work requests of 64 bytes.
    pub fn narrow_qp(&mut self, port: usize, qp_type: QpType) -> Qp {
        self.qp_with(
            port,
            qp_type,
            CreateQpFlags::default(),
            CqCaps1::default(),
            64,
        )
    }

    pub fn qp_with(
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
    pub fn sibling(&mut self, qp: &Qp, qp_type: QpType) -> Qp {
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
    pub fn modify(&mut self, qp: &mut Qp, state: QpState) {
        self.driver(qp.port, |driver| modify(driver, qp, state));
    }

    /// Resets a queue pair and makes event counters of it, each of some events; returns where their values are, each in a
    /// page of its own.
    pub fn count(&mut self, qp: &mut Qp, events: &[u32]) -> Vec<u64> {
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
    pub fn values(&mut self, port: PortId, places: &[u64]) -> Vec<u64> {
        self.world(port, |world| {
            let value = |place: &u64| u64::from_le_bytes(world.read(*place));
            places.iter().map(value).collect()
        })
    }

    /// Sets how often a queue pair tries again if the receiver is not ready.
    pub fn set_rnr_retry(&mut self, qp: &Qp, rnr_retry: u8) {
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

    pub fn destroy(&mut self, qp: &Qp) {
        let qp_handle = qp.number.into();
        self.driver(qp.port, |driver| driver.execute(&DestroyQp { qp_handle }))
            .unwrap();
    }

    pub fn address(&mut self, port: PortId) -> [u8; 16] {
        self.driver(port, |driver| driver.device.address())
    }

    /// Makes the handle by which a queue pair knows a device.
    pub fn handle(&mut self, qp: &Qp, port: PortId) -> u16 {
        let dest_addr = self.address(port);
        self.handle_of(qp, dest_addr)
    }

    /// Makes the handle by which a queue pair knows an address.
    pub fn handle_of(&mut self, qp: &Qp, dest_addr: [u8; 16]) -> u16 {
        let command = CreateAh {
            dest_addr,
            pd: qp.pd,
        };
        self.driver(qp.port, |driver| driver.execute(&command))
            .unwrap()
            .ah
    }

    /// Makes the handles by which two queue pairs know each other.
    pub fn introduce(&mut self, a: &mut Qp, b: &mut Qp) {
        a.ah = self.handle(a, b.port);
        b.ah = self.handle(b, a.port);
    }

    /// Registers memory of so many pages, of which no two are contiguous, from `offset` in the first page on.
    pub fn region(&mut self, qp: &Qp, pages: u64, offset: u64) -> Region {
        self.region_with(qp, pages, offset, ALL_PERMISSIONS)
    }

    pub fn region_with(
        &mut self,
        qp: &Qp,
        pages: u64,
        offset: u64,
        permissions: RegMrPermissions,
    ) -> Region {
        self.region_cut(qp, pages, offset, 0, permissions)
    }

    /// The same, but it ends so many bytes before its last page does.
    pub fn region_cut(
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
    pub fn fast_region(&mut self, qp: &Qp, pages: u64, offset: u64) -> Region {
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
    pub fn elsewhere(&mut self, region: &Region) -> Region {
        let pages = self.world(region.port, |world| {
            region.pages.iter().map(|_| world.map(1)).collect()
        });
        Region {
            pages,
            ..region.clone()
        }
    }

    /// Writes a list of the pages of a region and returns the request that gives it all of them, to be used for anything.
    pub fn listed(&mut self, region: &Region) -> FastMrRegReq {
        let bytes: Vec<u8> = region.pages.iter().flat_map(|p| p.to_le_bytes()).collect();
        let list = self.world(region.port, |world| {
            let address = world.map((bytes.len() as u64).div_ceil(PAGE));
            world.write(address, &bytes);
            address
        });
        region.request(PblMode::Direct, list)
    }

    /// Makes a region of bus addresses.
    pub fn physical_region(
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
    pub fn outcome(&mut self, qp: &mut Qp, send: &Send) -> CompStatus {
        let req_id = self.post(qp, send);
        let completion = self.wait(qp);
        assert_eq!(completion.req_id, req_id);
        assert_eq!(completion.flags.op_type, send.operation);
        CompStatus::try_from(completion.status).unwrap()
    }

    /// Writes to a region, as the program would.
    pub fn fill(&mut self, region: &Region, offset: u64, bytes: &[u8]) {
        self.world(region.port, |world| {
            for (index, byte) in bytes.iter().enumerate() {
                let at = (region.iova % PAGE) + offset + index as u64;
                let page = region.pages[(at / PAGE) as usize];
                world.dma_write(page + at % PAGE, &[*byte]).unwrap();
            }
        });
    }

    /// Reads a region, as the program would.
    pub fn content(&mut self, region: &Region, offset: u64, length: usize) -> Vec<u8> {
        self.world(region.port, |world| {
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
    pub fn unmap(&mut self, region: &Region) {
        self.world(region.port, |world| {
            for page in &region.pages {
                world.unmap(*page);
            }
        });
    }

    /// Writes a send work request without telling the device; returns its id.
    pub fn put(&mut self, qp: &mut Qp, send: &Send) -> u16 {
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
    pub fn put_raw(&mut self, qp: &mut Qp, wqe: &[u8]) {
        let at = (qp.llq + u64::from(qp.sent % DEPTH) * qp.wqe_size) as usize;
        let size = qp.wqe_size as usize;
        qp.sent = qp.sent.wrapping_add(1);
        self.world(qp.port, |world| {
            let memory = &mut world.device_memory;
            memory.resize(memory.len().max(at + size), 0);
            memory[at..at + size].fill(0);
            memory[at..at + wqe.len().min(size)].copy_from_slice(&wqe[..wqe.len().min(size)]);
        });
    }

    /// Writes no work request where the next one would be.
    pub fn skip(&self, qp: &mut Qp) {
        qp.sent = qp.sent.wrapping_add(1);
    }

    pub fn ring_send(&mut self, qp: &Qp) {
        let (doorbell, value) = (qp.sq_doorbell, qp.sent.into());
        self.doorbell(qp.port, doorbell, value);
    }

    pub fn ring_receive(&mut self, qp: &Qp) {
        let (doorbell, value) = (qp.rq_doorbell, qp.posted.into());
        self.doorbell(qp.port, doorbell, value);
    }

    pub fn doorbell(&mut self, port: PortId, offset: u64, value: u32) {
        self.driver(port, |driver| {
            driver
                .device
                .write_doorbell(&mut driver.world, offset, value);
        });
    }

    /// Posts a send work request; returns its id.
    pub fn post(&mut self, qp: &mut Qp, send: &Send) -> u16 {
        let req_id = self.put(qp, send);
        self.ring_send(qp);
        req_id
    }

    /// Posts a receive work request of these buffers: address, length and key; returns its id.
    pub fn receive(&mut self, qp: &mut Qp, buffers: &[(u64, u16, u32)]) -> u16 {
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
            self.world(qp.port, |world| world.write(at, &desc.encode()));
        }
        self.ring_receive(qp);
        req_id
    }

    /// Posts a descriptor that need not be the whole of a receive work request.
    pub fn put_receive(&mut self, qp: &mut Qp, desc: &RxDesc) {
        let at = qp.rq + u64::from(qp.posted % DEPTH) * 16;
        qp.posted = qp.posted.wrapping_add(1);
        self.world(qp.port, |world| world.write(at, &desc.encode()));
        self.ring_receive(qp);
    }

    /// Moves a queue pair to another state if the device lets it.
    pub fn try_modify(&mut self, qp: &mut Qp, state: QpState) {
        self.driver(qp.port, |driver| {
            let _ = try_modify(driver, qp, state);
        });
    }

    /// Makes what is oldest in a receive queue the middle of a work request.
    pub fn spoil_receive(&mut self, qp: &Qp) {
        let at = qp.rq;
        self.world(qp.port, |world| world.write(at + 12, &[0; 4]));
    }

    /// Says that a receive queue has one more descriptor than it has room for.
    pub fn overrun_receive(&mut self, qp: &Qp) {
        let value = u32::from(qp.posted - 1 + DEPTH) + 1;
        self.doorbell(qp.port, qp.rq_doorbell, value);
    }

    /// Does what can be done now.
    pub fn run(&mut self) -> Option<Duration> {
        self.fabric.run(self.now, MUCH)
    }

    /// Lets time go by, from one moment when there is something to do to the next.
    pub fn run_for(&mut self, time: Duration) {
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
    pub fn poll(&mut self, qp: &mut Qp) -> Option<Cdesc> {
        let entries = u32::from(2 * DEPTH);
        let at = qp.cq + u64::from(qp.completed % entries) * 32;
        let bytes: [u8; 32] = self.world(qp.port, |world| world.read(at));
        let completion = Cdesc::decode(&bytes);
        if completion.flags.phase != (qp.completed / entries % 2 == 0) {
            return None;
        }
        qp.completed += 1;
        Some(completion)
    }

    /// Takes the next completion, for which time goes by.
    pub fn wait(&mut self, qp: &mut Qp) -> Cdesc {
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
    pub fn status(&mut self, qp: &mut Qp) -> CompStatus {
        CompStatus::try_from(self.wait(qp).status).unwrap()
    }

    pub fn protocol_errors(&mut self) -> u64 {
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
    pub fn completion_queue(&self) -> std::ops::Range<u64> {
        self.cq..self.cq + 4 * PAGE
    }

    /// Its doorbells: of the send queue and of the receive queue.
    pub fn doorbells(&self) -> [u64; 2] {
        [self.sq_doorbell, self.rq_doorbell]
    }
}

impl Region {
    /// Where its pages are.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Its memory with the keys that another one has.
    pub fn with_keys(&self, other: &Self) -> Self {
        Self {
            lkey: other.lkey,
            rkey: other.rkey,
            ..self.clone()
        }
    }

    /// The request that gives it all of its pages, to be used for anything.
    pub fn request(&self, mode: PblMode, pbl: u64) -> FastMrRegReq {
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
    pub fn inline(&self) -> FastMrRegReq {
        self.request(PblMode::Inline, self.pages[0])
    }

    /// Makes its keys those of the next generation, as clients do before they register it.
    pub fn renew(&mut self) {
        for key in [&mut self.lkey, &mut self.rkey] {
            let mut parts = Key::from_raw(*key);
            parts.generation = (parts.generation + 1) % 16;
            *key = parts.into_raw();
        }
    }
}

impl Send {
    /// What gives a region its pages.
    pub fn register(request: &FastMrRegReq) -> Self {
        Self {
            operation: OpType::FastReg.into(),
            ah: Some(0),
            qkey: Some(0),
            body: Some(request.encode()),
            ..Self::default()
        }
    }

    /// What takes them away.
    pub fn invalidate(lkey: u32) -> Self {
        Self {
            operation: OpType::FastInv.into(),
            body: Some(FastMrInvReq { lkey }.encode()),
            ..Self::register(&FastMrRegReq::default())
        }
    }

    /// A message from a region.
    pub fn message(peer: &Qp, region: &Region, length: u32) -> Self {
        Self {
            buffers: vec![(region.iova, length, region.lkey)],
            peer_qp: peer.number,
            ..Self::default()
        }
    }

    /// A write from one region to the start of another.
    pub fn write(peer: &Qp, from: &Region, to: &Region, length: u32) -> Self {
        Self {
            operation: OpType::RdmaWrite.into(),
            remote: Some((to.iova, length, to.rkey)),
            ..Self::message(peer, from, length)
        }
    }

    /// A read from the start of one region to another.
    pub fn read(peer: &Qp, to: &Region, from: &Region, length: u32) -> Self {
        Self {
            operation: OpType::RdmaRead.into(),
            ..Self::write(peer, to, from, length)
        }
    }
}

/// The upper 48 bits of all request ids, which a device looks at only if they are to have 64.
pub fn req_id_ex(req_id: u16) -> [u8; 6] {
    [1, 2, 3, 4, 5, 6].map(|byte| byte ^ req_id as u8)
}

/// Bytes that tell where they are.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
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
