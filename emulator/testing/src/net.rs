// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices on a network, each with a driver and a program that uses one queue pair.
//!
//! Failures panic.

#![allow(missing_docs, reason = "fields and methods are named as in the interface")]

mod networks;
mod pages;
mod peers;

use std::{sync::Arc, time::Duration};

use efa_fabric::{Fabric, PortId, Settings};
use efa_hw::{
    admin::{
        Command, Status,
        ah::DestroyAh,
        event_counter::{CreateEventCounter, QpEvents},
        mr::{AllocMr, DeregMr, RegMr, RegMrPermissions},
        qp::{DestroyQp, QpState, QpType},
    },
    io::{Cdesc, CompStatus, FastMrRegReq, PblMode, RxDesc},
};
use efa_model::{Config, Device, Overrides, Profile, State};

pub use self::{
    networks::{Arrivals, delay, network, networks},
    pages::Pages,
    peers::Peers,
};
use crate::{
    bus::{Memory, PAGE},
    commands::{attachment, reg_mr},
    mock::{Driver, World},
    qp::{self, Qp, Send, Shape},
    region::{ALL_PERMISSIONS, Region, page_list},
};

/// Largest value of event counters.
pub const MOST: u64 = 499;

/// IOVA of regions.
pub const IOVA: u64 = 0x7f00_0000_0000;

/// Budget of packets that no test exhausts.
pub const UNLIMITED_BUDGET: u32 = 1 << 20;

/// Longer than the transport retries anything.
pub const LONG: Duration = Duration::from_secs(60);

/// A network of devices.
pub struct Net {
    pub fabric: Arc<Fabric<World>>,
    pub now: Duration,
    drivers: Vec<Option<Driver>>,
}

impl Net {
    pub fn new(profiles: &[Profile], settings: Settings) -> Self {
        Self::of_program(profiles, settings, 1, 0)
    }

    /// Creates the devices of a program, with numbers of their own.
    pub fn of_program(profiles: &[Profile], settings: Settings, seed: u64, program: u64) -> Self {
        settings.check().unwrap();
        let mut net =
            Self { fabric: Arc::new(Fabric::new(settings, seed)), now: Duration::from_secs(1), drivers: Vec::new() };
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
            driver.port = PortId(number);
            let placeholder = Device::new(Config::default());
            let device = std::mem::replace(&mut driver.device, placeholder);
            let world = std::mem::take(&mut driver.world);
            net.fabric.attach(device, world);
            net.drivers.push(Some(driver));
        }
        net
    }

    /// Changes attributes of a device, given as JSON.
    pub fn set(&mut self, port: PortId, overrides: &str) {
        self.driver(port, |driver| driver.set(overrides));
    }

    /// Adds a rule to a device, given as JSON.
    pub fn inject(&mut self, port: PortId, rule: &str) {
        self.driver(port, |driver| driver.inject(rule));
    }

    /// Executes a command of a device's driver.
    pub fn execute<C: Command>(&mut self, port: PortId, command: &C) -> Result<C::Response, Status> {
        self.driver(port, |driver| driver.execute(command))
    }

    pub fn deregister(&mut self, port: PortId, l_key: u32) -> Result<(), Status> {
        self.execute(port, &DeregMr { l_key }).map(|_| ())
    }

    /// Destroys the address handle that a queue pair uses.
    pub fn destroy_handle(&mut self, qp: &Qp) {
        let (ah, pd) = (qp.ah, qp.pd);
        self.execute(qp.port, &DestroyAh { ah, pd }).unwrap();
    }

    /// Returns the state of a device.
    pub fn state(&mut self, port: PortId) -> State {
        self.driver(port, |driver| driver.device.state())
    }

    /// Runs `work` on the host of a device.
    pub fn world<R>(&mut self, port: PortId, work: impl FnOnce(&mut World) -> R) -> R {
        self.fabric.with_guest(port, work)
    }

    /// Runs `work` on a device and its driver.
    pub fn driver<R>(&mut self, port: PortId, work: impl FnOnce(&mut Driver) -> R) -> R {
        let mut driver = self.drivers[port.0].take().unwrap();
        driver.now = self.now;
        let result = self.fabric.with(port, self.now, 0, |device, world| {
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

    /// Creates a queue pair that can send and receive, with work requests of 128 bytes.
    pub fn qp(&mut self, port: usize, qp_type: QpType) -> Qp {
        self.qp_of(port, Shape::new(qp_type, 128))
    }

    pub fn qp_of(&mut self, port: usize, shape: Shape) -> Qp {
        self.driver(PortId(port), |driver| Qp::new(driver, shape))
    }

    /// Creates queue pairs of two ports, with address handles of each other.
    pub fn pair(&mut self, ports: [usize; 2], shapes: [Shape; 2]) -> [Qp; 2] {
        let [mut a, mut b] = [0, 1].map(|at| self.qp_of(ports[at], shapes[at]));
        self.introduce(&mut a, &mut b);
        [a, b]
    }

    /// Creates another queue pair in the protection domain of `qp`.
    pub fn sibling(&mut self, qp: &Qp, qp_type: QpType) -> Qp {
        let shape = Shape::new(qp_type, qp.wqe_size);
        let other = self.driver(qp.port, |driver| Qp::in_domain(driver, qp.pd, shape));
        Qp { ah: qp.ah, ..other }
    }

    /// Moves a queue pair to another state.
    pub fn modify(&mut self, qp: &mut Qp, state: QpState) {
        self.driver(qp.port, |driver| qp.modify(driver, state)).unwrap();
    }

    /// Resets a queue pair and attaches new event counters, one for each entry of `events`. Returns the addresses of their
    /// values, each in a page of its own.
    pub fn count(&mut self, qp: &mut Qp, events: &[u32]) -> Vec<u64> {
        self.modify(qp, QpState::Reset);
        let uar = qp.cq.uar;
        let places = self.driver(qp.port, |driver| {
            let counter = |events: &u32| {
                let paddr = driver.world.map(1) + PAGE / 2;
                let made = driver.execute(&CreateEventCounter { uar, paddr }).unwrap();
                driver.execute(&attachment(made.cntr_handle, qp.number.into(), *events)).unwrap();
                paddr
            };
            events.iter().map(counter).collect()
        });
        self.driver(qp.port, |driver| qp.start(driver));
        places
    }

    /// Returns the values of event counters.
    pub fn values(&mut self, port: PortId, places: &[u64]) -> Vec<u64> {
        self.world(port, |world| {
            let value = |place: &u64| u64::from_le_bytes(world.entry(*place));
            places.iter().map(value).collect()
        })
    }

    pub fn destroy(&mut self, qp: &Qp) {
        let qp_handle = qp.number.into();
        self.execute(qp.port, &DestroyQp { qp_handle }).unwrap();
    }

    pub fn address(&mut self, port: PortId) -> [u8; 16] {
        self.driver(port, |driver| driver.device.address())
    }

    /// Creates an address handle of a device, for a queue pair.
    pub fn handle(&mut self, qp: &Qp, port: PortId) -> u16 {
        let dest_addr = self.address(port);
        self.handle_of(qp, dest_addr)
    }

    /// Creates a handle of an address, for a queue pair.
    pub fn handle_of(&mut self, qp: &Qp, dest_addr: [u8; 16]) -> u16 {
        self.driver(qp.port, |driver| qp.handle_of(driver, dest_addr))
    }

    /// Creates address handles of both queue pairs for each other.
    pub fn introduce(&mut self, a: &mut Qp, b: &mut Qp) {
        a.ah = self.handle(a, b.port);
        b.ah = self.handle(b, a.port);
    }

    /// Registers memory of `pages` pages, of which no two are contiguous, starting at `offset` in the first page.
    pub fn region(&mut self, qp: &Qp, pages: u64, offset: u64) -> Region {
        self.region_with(qp, pages, offset, ALL_PERMISSIONS)
    }

    pub fn region_with(&mut self, qp: &Qp, pages: u64, offset: u64, permissions: RegMrPermissions) -> Region {
        self.driver(qp.port, |driver| {
            let own = (0..pages).map(|_| driver.world.map(1)).collect();
            let command = RegMr { permissions, ..reg_mr(qp.pd, IOVA + offset, pages * PAGE - offset) };
            Region::new(driver, own, command)
        })
    }

    /// Allocates a region for fast registration, and `pages` pages of memory for it. No two pages are contiguous; the memory
    /// begins at `offset` in the first one.
    pub fn fast_region(&mut self, qp: &Qp, pages: u64, offset: u64) -> Region {
        let command = AllocMr { pd: qp.pd, max_pages: pages as u32 };
        let made = self.execute(qp.port, &command).unwrap();
        let region = Region {
            port: qp.port,
            iova: IOVA + offset,
            lkey: made.l_key,
            rkey: made.r_key,
            pages: vec![0; pages as usize],
        };
        self.elsewhere(&region)
    }

    /// Returns the same region with other memory of the same size.
    pub fn elsewhere(&mut self, region: &Region) -> Region {
        let pages = self.world(region.port, |world| region.pages.iter().map(|_| world.map(1)).collect());
        Region { pages, ..region.clone() }
    }

    /// Writes a list of the pages of a region; returns the request that registers all of them with all permissions.
    pub fn listed(&mut self, region: &Region) -> FastMrRegReq {
        let list = self.world(region.port, |world| page_list(world, &region.pages));
        region.request(PblMode::Direct, list.address)
    }

    /// Registers a region of bus addresses.
    pub fn physical_region(&mut self, qp: &Qp, iova: u64, length: u64, permissions: RegMrPermissions) -> Region {
        let command = RegMr { permissions, ..reg_mr(qp.pd, iova, length) };
        self.driver(qp.port, |driver| Region::physical(driver, command))
    }

    /// Posts a work request; returns its status.
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

    /// Unmaps the memory of a region, without a command to the device.
    pub fn unmap(&mut self, region: &Region) {
        self.world(region.port, |world| {
            for page in &region.pages {
                world.unmap(*page);
            }
        });
    }

    /// Writes a send work request without ringing the doorbell; returns its id.
    pub fn put(&mut self, qp: &mut Qp, send: &Send) -> u16 {
        self.world(qp.port, |world| qp.put(world, send))
    }

    /// Writes bytes where the next work request would be.
    pub fn put_raw(&mut self, qp: &mut Qp, wqe: &[u8]) {
        self.world(qp.port, |world| qp.put_raw(world, wqe));
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

    /// Posts a receive descriptor, which may be part of a work request.
    pub fn put_receive(&mut self, qp: &mut Qp, desc: &RxDesc) {
        self.driver(qp.port, |driver| {
            qp.put_receive(&driver.world, desc);
            qp.ring_receive(driver);
        });
    }

    /// Makes the oldest descriptor of a receive queue the middle of a work request.
    pub fn corrupt_receive(&mut self, qp: &Qp) {
        let at = qp.rq;
        self.world(qp.port, |world| world.store(at + 12, &[0; 4]));
    }

    /// Processes all work that is due; returns when more work is due.
    pub fn run(&mut self) -> Option<Duration> {
        self.fabric.run(self.now, UNLIMITED_BUDGET)
    }

    /// Advances time by `time`, from one due event to the next.
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

    /// Takes the next completion, if there is one.
    pub fn poll(&mut self, qp: &mut Qp) -> Option<Cdesc> {
        self.world(qp.port, |world| qp.cq.poll(world))
    }

    /// Advances time until there is a completion, and takes it.
    pub fn wait(&mut self, qp: &mut Qp) -> Cdesc {
        for _ in 0..4000 {
            self.run();
            if let Some(completion) = self.poll(qp) {
                return completion;
            }
            self.run_for(Duration::from_millis(5));
        }
        panic!("no completion arrives");
    }

    /// Waits for the next completion; returns its status.
    pub fn status(&mut self, qp: &mut Qp) -> CompStatus {
        qp::status(&self.wait(qp))
    }

    pub fn protocol_errors(&mut self) -> u64 {
        (0..self.drivers.len()).map(|port| self.state(PortId(port)).protocol_errors).sum()
    }
}
