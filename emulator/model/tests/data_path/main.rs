// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device's interface for a transport: to fetch work requests, to deliver, and to release memory only after all copies.

mod copies;
mod deliveries;
mod fetches;

use efa_hw::{
    admin::{
        cq::CqCaps1,
        mr::{AllocMr, DeregMr, RegMr, RegMrPermissions},
        pd::AllocPd,
        qp::{DestroyQp, QpState, QpType},
    },
    io::{Cdesc, CompStatus, FastMrRegFlags, FastMrRegReq, PblMode},
};
use efa_model::{Arrival, Content, Delivery, Fetched, Profile, Refusal, Request, Segment};
use efa_testing::{
    bus::PAGE,
    commands::reg_mr,
    mock::Driver,
    qp::{Cq, QKEY, Qp, Send, Shape},
    region::{ALL_PERMISSIONS, Region},
};

/// Work requests in each receive queue.
const DEPTH: u16 = 16;

/// Work requests in each send queue.
const SQ_DEPTH: u16 = 512;

/// Address of a peer.
const PEER: [u8; 16] = [7; 16];
const IOVA: u64 = 0x7f00_0000_0000;

/// A driver with queue pairs of one protection domain and one completion queue, and a region of a page.
struct Set {
    driver: Driver,
    pd: u16,
    cq: Cq,
    page: u64,
    lkey: u32,
    rkey: u32,
    qps: Vec<Qp>,
}

impl Set {
    fn new(queue_pairs: usize) -> Self {
        let mut driver = Driver::new(Profile::Efa3);
        let page = driver.world.map(1);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let cq = Cq::new(&mut driver, 128, CqCaps1::default(), false);
        let register = RegMr {
            permissions: ALL_PERMISSIONS,
            ..reg_mr(pd, IOVA, PAGE)
        };
        let region = Region::new(&mut driver, vec![page], register);
        let mut set = Self {
            driver,
            pd,
            cq,
            page,
            lkey: region.lkey,
            rkey: region.rkey,
            qps: Vec::new(),
        };
        for _ in 0..queue_pairs {
            set.add_qp(QpType::Srd);
        }
        set.driver.world.quiesced.clear();
        set
    }

    fn add_qp(&mut self, qp_type: QpType) {
        let shape = Shape {
            depths: [SQ_DEPTH, DEPTH],
            ..Shape::new(qp_type, 64)
        };
        let mut qp = Qp::of_cq(&mut self.driver, self.pd, self.cq.clone(), shape);
        qp.ah = qp.handle_of(&mut self.driver, PEER);
        self.qps.push(qp);
        self.start(self.qps.len() - 1);
    }

    fn start(&mut self, qp: usize) {
        self.qps[qp].start(&mut self.driver);
    }

    fn modify(&mut self, qp: usize, state: QpState) {
        self.qps[qp].modify(&mut self.driver, state).unwrap();
    }

    fn destroy(&mut self, qp: usize) {
        let qp_handle = self.qps[qp].number.into();
        self.driver.execute(&DestroyQp { qp_handle }).unwrap();
    }

    fn deregister(&mut self, l_key: u32) {
        self.driver.execute(&DeregMr { l_key }).unwrap();
    }

    /// Allocates a region for fast registration; returns the request that registers this number of pages.
    fn registration(&mut self, pages: u64, pbl_mode: PblMode, pbl: u64) -> FastMrRegReq {
        let command = AllocMr {
            pd: self.pd,
            max_pages: pages as u32,
        };
        FastMrRegReq {
            lkey: self.driver.execute(&command).unwrap().l_key,
            permissions: RegMrPermissions::default(),
            flags: FastMrRegFlags {
                phys_page_size_shift: 12,
                pbl_mode: pbl_mode.into(),
            },
            iova: IOVA,
            mr_length: pages * PAGE,
            pbl,
        }
    }

    fn ring(&mut self, offset: u64, value: u16) {
        self.driver.doorbell(offset, value.into());
    }

    fn put(&mut self, qp: usize, send: &Send) {
        self.qps[qp].put(&mut self.driver.world, send);
    }

    fn ring_send(&mut self, qp: usize) {
        self.qps[qp].ring_send(&mut self.driver);
    }

    fn post(&mut self, qp: usize, send: &Send) {
        self.put(qp, send);
        self.ring_send(qp);
    }

    fn post_raw(&mut self, qp: usize, wqe: &[u8]) {
        self.qps[qp].put_raw(&mut self.driver.world, wqe);
        self.ring_send(qp);
    }

    /// Posts messages of no bytes.
    fn send(&mut self, qp: usize, count: usize) {
        for _ in 0..count {
            self.put(qp, &Send::default());
        }
        self.ring_send(qp);
    }

    /// Posts the last send work request once more.
    fn post_again(&mut self, qp: usize) {
        let Qp { llq, sent, .. } = self.qps[qp];
        let at = llq as usize + usize::from(sent - 1) * 64;
        let wqe = self.driver.world.device_memory[at..at + 64].to_vec();
        self.post_raw(qp, &wqe);
    }

    /// Posts a receive work request for the whole page; returns its id.
    fn receive(&mut self, qp: usize) -> u16 {
        let qp = &mut self.qps[qp];
        let req_id = qp.put_receives(&self.driver.world, &[(IOVA, PAGE as u16, self.lkey)]);
        qp.ring_receive(&mut self.driver);
        req_id
    }

    /// Fetches one work request; returns it if it is for the transport.
    fn fetch_request(&mut self) -> Option<Box<Request>> {
        let Driver { device, world, .. } = &mut self.driver;
        match device.fetch(world) {
            Fetched::Request(request) => Some(request),
            Fetched::Internal | Fetched::Idle => None,
        }
    }

    /// As [`Self::fetch_request`]; returns the queue pair.
    fn fetch(&mut self) -> Option<u16> {
        self.fetch_request().map(|request| request.qp.number)
    }

    /// Fetches all work requests; returns their queue pairs in this order.
    fn fetch_all(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.fetch()).collect()
    }

    fn arrival(&self, qp: usize, content: Content) -> Arrival {
        Arrival {
            peer: PEER,
            peer_qp: 5,
            qp: self.qps[qp].number,
            transport: QpType::Srd,
            qkey: QKEY,
            content,
        }
    }

    fn message(&self, qp: usize, length: u32) -> Arrival {
        let immediate = None;
        self.arrival(qp, Content::Send { length, immediate })
    }

    fn deliver(&mut self, arrival: &Arrival) -> Result<Delivery, Refusal> {
        let mut segments = Vec::new();
        let Driver { device, world, .. } = &mut self.driver;
        let delivery = device.deliver(world, arrival, &mut segments);
        assert!(delivery.is_ok() || segments.is_empty());
        let delivery = delivery?;
        if let Content::Send { length, .. } | Content::Write { length, .. } = arrival.content {
            let address = self.page;
            assert_eq!(
                segments,
                [Segment {
                    address,
                    length,
                    relaxed: false,
                }]
            );
        }
        Ok(delivery)
    }

    fn delivered(&mut self, arrival: &Arrival, delivery: Delivery) -> Result<(), Refusal> {
        let Driver { device, world, .. } = &mut self.driver;
        device.delivered(world, arrival, delivery, Ok(()))
    }

    fn poll(&mut self) -> Option<Cdesc> {
        self.cq.poll(&self.driver.world)
    }

    /// Returns the ids and statuses of the new completions.
    fn completions(&mut self) -> Vec<(u16, CompStatus)> {
        let status = |cdesc: Cdesc| CompStatus::try_from(cdesc.status).unwrap();
        std::iter::from_fn(|| self.poll().map(|cdesc| (cdesc.req_id, status(cdesc)))).collect()
    }

    /// Returns how often the device waited for all copies since the last call. Asserts that its DMA was at most `bytes` by then.
    fn quiesced(&mut self, bytes: usize) -> usize {
        let quiesced = std::mem::take(&mut self.driver.world.quiesced);
        let late = quiesced.iter().find(|read| **read > bytes);
        assert_eq!(late, None, "memory is released before copies have ended");
        quiesced.len()
    }

    /// Asserts that the device waits once for all copies during an action, after at most `bytes` of DMA.
    #[track_caller]
    fn waits(&mut self, bytes: usize, action: impl FnOnce(&mut Self)) {
        let bytes = self.driver.world.dma_bytes + bytes;
        action(self);
        assert_eq!(self.quiesced(bytes), 1);
    }
}
