// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices on a network, each with a driver and a program that uses one queue pair.
//!
//! What fails panics.

#![allow(
    missing_docs,
    reason = "fields and methods have the names of what they are in the interface"
)]

mod computer;
mod networks;

use std::{sync::Arc, time::Duration};

use efa_fabric::{Fabric, PortId, Settings};
use efa_hw::{
    admin::{
        cq::CqCaps1,
        event_counter::{AttachEventCounter, CreateEventCounter, QpEvents},
        mr::{AllocMr, RegMr, RegMrPermissions},
        qp::{CreateQpFlags, DestroyQp, ModifyQp, ModifyQpMask, QpState, QpType},
    },
    io::{Cdesc, CompStatus, FastMrRegReq, PblMode, RxDesc},
};
use efa_model::{Config, Device, Overrides, Profile, State};

pub use self::{
    computer::{Computer, Pages},
    networks::networks,
};
use crate::{
    bus::Memory,
    commands::reg_mr,
    mock::{Driver, World},
    qp::{self, Shape},
    region::page_list,
};
pub use crate::{
    bus::PAGE,
    qp::{DEPTH, QKEY, Qp, Send, req_id_ex},
    region::{ALL_PERMISSIONS, Region, pattern},
};

/// Largest value of event counters.
pub const MOST: u64 = 499;

/// Where regions are, as work requests have it.
const IOVA: u64 = 0x7f00_0000_0000;

/// Work done on more packets than any test has.
const MUCH: u32 = 1 << 20;

/// A network of devices.
pub struct Net {
    pub fabric: Arc<Fabric<Computer>>,
    pub now: Duration,
    drivers: Vec<Option<Driver>>,
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

    /// Changes attributes of a device.
    pub fn set(&mut self, port: PortId, overrides: Overrides) {
        self.driver(port, |driver| driver.device.set(overrides));
    }

    /// What is to be known of a device.
    pub fn state(&mut self, port: PortId) -> State {
        self.driver(port, |driver| driver.device.state())
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
        self.qp_of(port, Shape::new(qp_type, 128))
    }

    /// The same on any device: with work requests of 64 bytes.
    pub fn narrow_qp(&mut self, port: usize, qp_type: QpType) -> Qp {
        self.qp_of(port, Shape::new(qp_type, 64))
    }

    pub fn qp_with(
        &mut self,
        port: usize,
        qp_type: QpType,
        flags: CreateQpFlags,
        caps_1: CqCaps1,
        wqe_size: u32,
    ) -> Qp {
        let shape = Shape {
            flags,
            caps_1,
            ..Shape::new(qp_type, wqe_size)
        };
        self.qp_of(port, shape)
    }

    pub fn qp_of(&mut self, port: usize, shape: Shape) -> Qp {
        let port = PortId(port);
        let qp = self.driver(port, |driver| Qp::new(driver, shape));
        Qp { port, ..qp }
    }

    /// Makes another queue pair of the protection domain of one.
    pub fn sibling(&mut self, qp: &Qp, qp_type: QpType) -> Qp {
        let shape = Shape::new(qp_type, qp.wqe_size);
        let other = self.driver(qp.port, |driver| Qp::in_domain(driver, qp.pd, shape));
        Qp {
            port: qp.port,
            ah: qp.ah,
            ..other
        }
    }

    /// Moves a queue pair to another state.
    pub fn modify(&mut self, qp: &mut Qp, state: QpState) {
        self.driver(qp.port, |driver| qp.modify(driver, state))
            .unwrap();
    }

    /// Resets a queue pair and makes event counters of it, each of some events; returns where their values are, each in a
    /// page of its own.
    pub fn count(&mut self, qp: &mut Qp, events: &[u32]) -> Vec<u64> {
        self.modify(qp, QpState::Reset);
        let (uar, qp_handle) = (qp.cq.uar, qp.number.into());
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
        self.driver(qp.port, |driver| qp.start(driver));
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
        self.driver(qp.port, |driver| qp.handle_of(driver, dest_addr))
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
        let made = self.driver(qp.port, |driver| {
            let own = (0..pages).map(|_| driver.world.map(1)).collect();
            let command = RegMr {
                permissions,
                ..reg_mr(qp.pd, IOVA + offset, pages * PAGE - offset - cut)
            };
            Region::new(driver, own, command)
        });
        Region {
            port: qp.port,
            ..made
        }
    }

    /// Makes a region for fast registration, and memory of so many pages for it. No two pages are contiguous; the memory
    /// begins at `offset` in the first one.
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
            iova: IOVA + offset,
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
        let list = self.world(region.port, |world| page_list(world, &region.pages));
        region.request(PblMode::Direct, list.address)
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
            permissions,
            ..reg_mr(qp.pd, iova, length)
        };
        let made = self.driver(qp.port, |driver| Region::physical(driver, command));
        Region {
            port: qp.port,
            ..made
        }
    }

    /// Posts a work request and returns how it ends.
    pub fn outcome(&mut self, qp: &mut Qp, send: &Send) -> CompStatus {
        let req_id = self.post(qp, send);
        let completion = self.wait(qp);
        assert_eq!(completion.req_id, req_id);
        assert_eq!(completion.flags.op_type, send.operation);
        qp::status(&completion)
    }

    /// Writes to a region, as the program would.
    pub fn fill(&mut self, region: &Region, offset: u64, bytes: &[u8]) {
        self.world(region.port, |world| region.fill(world, offset, bytes));
    }

    /// Reads a region, as the program would.
    pub fn content(&mut self, region: &Region, offset: u64, length: usize) -> Vec<u8> {
        self.world(region.port, |world| region.content(world, offset, length))
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
        self.world(qp.port, |world| qp.put(world, send))
    }

    /// Writes bytes where the next work request would be.
    pub fn put_raw(&mut self, qp: &mut Qp, wqe: &[u8]) {
        self.world(qp.port, |world| qp.put_raw(world, wqe));
    }

    /// Writes no work request where the next one would be.
    pub fn skip(&self, qp: &mut Qp) {
        qp.sent = qp.sent.wrapping_add(1);
    }

    pub fn ring_send(&mut self, qp: &Qp) {
        self.driver(qp.port, |driver| qp.ring_send(driver));
    }

    pub fn doorbell(&mut self, port: PortId, offset: u64, value: u32) {
        self.driver(port, |driver| driver.doorbell(offset, value));
    }

    /// Posts a send work request; returns its id.
    pub fn post(&mut self, qp: &mut Qp, send: &Send) -> u16 {
        let req_id = self.put(qp, send);
        self.ring_send(qp);
        req_id
    }

    /// Posts a receive work request of these buffers: address, length and key; returns its id.
    pub fn receive(&mut self, qp: &mut Qp, buffers: &[(u64, u16, u32)]) -> u16 {
        self.driver(qp.port, |driver| {
            let req_id = qp.put_receives(&driver.world, buffers);
            qp.ring_receive(driver);
            req_id
        })
    }

    /// Posts a descriptor that need not be the whole of a receive work request.
    pub fn put_receive(&mut self, qp: &mut Qp, desc: &RxDesc) {
        self.driver(qp.port, |driver| {
            qp.put_receive(&driver.world, desc);
            qp.ring_receive(driver);
        });
    }

    /// Moves a queue pair to another state if the device lets it.
    pub fn try_modify(&mut self, qp: &mut Qp, state: QpState) {
        let _ = self.driver(qp.port, |driver| qp.modify(driver, state));
    }

    /// Makes what is oldest in a receive queue the middle of a work request.
    pub fn spoil_receive(&mut self, qp: &Qp) {
        let at = qp.rq;
        self.world(qp.port, |world| world.store(at + 12, &[0; 4]));
    }

    /// Says that a receive queue has one more descriptor than it has room for.
    pub fn overrun_receive(&mut self, qp: &Qp) {
        let value = u32::from(qp.posted - 1 + DEPTH) + 1;
        self.doorbell(qp.port, qp.doorbells[1], value);
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
        self.world(qp.port, |world| qp.cq.poll(world))
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
        qp::status(&self.wait(qp))
    }

    pub fn protocol_errors(&mut self) -> u64 {
        (0..self.drivers.len())
            .map(|port| self.state(PortId(port)).protocol_errors)
            .sum()
    }
}
