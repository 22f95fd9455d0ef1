// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device's interface for a transport: to fetch work requests, to deliver, and to release memory only after all copies.

mod copies;
mod deliveries;
mod fetches;

use super::*;

/// Work requests in each receive queue.
const DEPTH: u16 = 16;

/// Work requests in each send queue.
const SQ_DEPTH: u16 = 512;

/// Address of a peer.
const PEER: [u8; 16] = [7; 16];

/// A driver with queue pairs of one protection domain and one completion queue, and a region of a page.
struct Set {
    driver: Driver,
    pd: u16,
    cq: Cq,
    region: Region,
    qps: Vec<Qp>,
}

impl Set {
    fn new(queue_pairs: usize) -> Self {
        Self::of(&vec![QpType::Srd; queue_pairs])
    }

    fn of(qp_types: &[QpType]) -> Self {
        let mut driver = Driver::new(Profile::Efa3);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let cq = Cq::new(&mut driver, 128, CqCaps1::default(), false);
        let mut register = reg_mr(pd, IOVA, PAGE);
        register.permissions = ALL_PERMISSIONS;
        let page = driver.world.map(1);
        let region = Region::new(&mut driver, vec![page], register);
        let mut set = Self { driver, pd, cq, region, qps: Vec::new() };
        qp_types.iter().for_each(|qp_type| set.add(*qp_type));
        set.driver.world.quiesced.clear();
        set
    }

    /// Adds a queue pair that can send and receive.
    fn add(&mut self, qp_type: QpType) {
        let mut shape = Shape::new(qp_type, 64);
        shape.depths = [SQ_DEPTH, DEPTH];
        let mut qp = Qp::of_cq(&mut self.driver, self.pd, self.cq.clone(), shape);
        qp.ah = qp.handle_of(&mut self.driver, PEER);
        qp.start(&mut self.driver);
        self.qps.push(qp);
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
        (0..count).for_each(|_| self.put(qp, &Send::default()));
        self.ring_send(qp);
    }

    /// Posts a receive work request for the whole page; returns its id.
    fn receive(&mut self, qp: usize) -> u16 {
        let qp = &mut self.qps[qp];
        let place = (IOVA, PAGE as u16, self.region.lkey);
        let req_id = qp.put_receives(&self.driver.world, &[place]);
        qp.ring_receive(&mut self.driver);
        req_id
    }

    /// Fetches one work request; returns it if it is for the transport.
    fn fetch_request(&mut self) -> Option<Box<Request>> {
        match self.driver.device.fetch(&mut self.driver.world) {
            Fetched::Request(request) => Some(request),
            Fetched::Internal | Fetched::Idle => None,
        }
    }

    /// As [`Self::fetch_request`]; returns the index of the queue pair.
    fn fetch(&mut self) -> Option<usize> {
        let number = self.fetch_request()?.qp.number;
        self.qps.iter().position(|qp| qp.number == number)
    }

    /// Fetches all work requests; returns their queue pairs in this order.
    fn fetch_all(&mut self) -> Vec<usize> {
        from_fn(|| self.fetch()).collect()
    }

    fn complete(&mut self, request: &Request) {
        let Driver { device, world, .. } = &mut self.driver;
        device.complete(world, request, OK);
    }

    fn arrival(&self, qp: usize, content: Content) -> Arrival {
        Arrival { peer: PEER, peer_qp: 5, qp: self.qps[qp].number, transport: QpType::Srd, qkey: QKEY, content }
    }

    fn message(&self, qp: usize, length: u32) -> Arrival {
        let immediate = None;
        self.arrival(qp, Content::Send { length, immediate })
    }

    /// Returns a write of 8 bytes with immediate data.
    fn write(&self, qp: usize) -> Arrival {
        let (memory, length) = ((self.region.rkey, IOVA), 8);
        let end = Some(WriteEnd { length, immediate: Some(1), unsolicited: false });
        self.arrival(qp, Content::Write { memory, length, end })
    }

    fn deliver(&mut self, arrival: &Arrival) -> Result<Delivery, Refusal> {
        let mut segments = Vec::new();
        let Driver { device, world, .. } = &mut self.driver;
        let delivery = device.deliver(world, arrival, &mut segments);
        match (&delivery, &arrival.content) {
            (Err(_), _) => assert!(segments.is_empty()),
            (_, Content::Send { length, .. } | Content::Write { length, .. }) => {
                let found = segments.iter().map(|it| (it.address, it.length, it.relaxed));
                assert!(found.eq([(self.region.pages[0], *length, false)]));
            }
            _ => {}
        }
        delivery
    }

    fn delivered(&mut self, arrival: &Arrival, delivery: Delivery) {
        let Driver { device, world, .. } = &mut self.driver;
        device.delivered(world, arrival, delivery, Ok(())).unwrap();
    }

    /// Delivers a message; returns the completions.
    fn exchange(&mut self, arrival: &Arrival) -> Vec<(u16, CompStatus)> {
        let delivery = self.deliver(arrival).unwrap();
        self.delivered(arrival, delivery);
        self.completions()
    }

    /// Returns the ids and statuses of the new completions.
    fn completions(&mut self) -> Vec<(u16, CompStatus)> {
        let completions = from_fn(|| self.cq.poll(&self.driver.world));
        completions.map(|one| (one.req_id, status(&one))).collect()
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
