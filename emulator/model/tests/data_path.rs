// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device's interface for a transport: to fetch work requests, to deliver, and to release memory only after all copies.

use efa_hw::{
    admin::{
        Status,
        cq::CqCaps1,
        mr::{AllocMr, DeregMr, PageList, RegMr, RegMrPermissions},
        pd::AllocPd,
        qp::{DestroyQp, QpState, QpType},
    },
    io::{Cdesc, CompStatus, FastMrRegFlags, FastMrRegReq, PblMode, RxDesc},
    regs::ResetReason,
};
use efa_model::{
    Arrival, Content, Death, Delivery, DmaError, Fetched, Overrides, Profile, Refusal, Request,
    Segment, WriteEnd,
};
use efa_testing::{
    bus::PAGE,
    commands::{reg_mr, to_state},
    mock::Driver,
    qp::{Cq, QKEY, Qp, Send, Shape},
    region::{ALL_PERMISSIONS, Region, page_list},
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
            assert_eq!(segments, [Segment { address, length }]);
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

#[test]
fn a_doorbell_fetches_nothing() {
    let mut set = Set::new(1);
    set.send(0, 3);
    // A malformed work request does not fail before it is fetched, either.
    set.post_raw(0, &[0; 64]);
    assert_eq!(set.completions(), []);
    let number = set.qps[0].number;
    let first = set.fetch_request().unwrap();
    assert_eq!((first.qp.number, first.id), (number, 0));
    assert_eq!(set.fetch_all(), [number; 2]);
    let mut ends = set.completions();
    ends.sort_unstable_by_key(|(req_id, _)| *req_id);
    assert_eq!(ends.len(), 4);
    assert!(ends.contains(&(0, CompStatus::LocalQpInternalError)));
}

#[test]
fn queue_pairs_take_turns() {
    let mut set = Set::new(3);
    set.send(0, 3);
    set.send(2, 2);
    set.send(1, 1);
    let [a, b, c] = [0, 1, 2].map(|qp: usize| set.qps[qp].number);
    assert_eq!(set.fetch(), Some(a));
    assert_eq!(set.fetch_all(), [b, c, a, c, a]);

    // A queue pair that always has more work requests does not delay the turns of others.
    set.send(2, 8);
    assert_eq!(set.fetch(), Some(c));
    set.send(0, 1);
    assert_eq!(set.fetch_all()[..2], [a, c]);
}

#[test]
fn a_queue_pair_has_only_so_many_work_requests_in_the_transport() {
    let mut set = Set::new(2);
    set.send(0, 300);
    set.send(1, 1);
    let requests: Vec<_> = std::iter::from_fn(|| set.fetch_request()).collect();
    assert_eq!(requests.len(), 256 + 1);
    // For each work request that ends, another is fetched.
    let ended = &requests[..3];
    let Driver { device, world, .. } = &mut set.driver;
    for request in ended {
        device.complete(world, request, CompStatus::Ok);
    }
    let ended = ended.iter().filter(|one| one.qp == requests[0].qp);
    assert_eq!(set.fetch_all().len(), ended.count());
}

#[test]
fn work_requests_that_cannot_be_sent_are_not_fetched() {
    let mut set = Set::new(2);
    set.send(0, 4);
    assert!(set.fetch().is_some());
    set.modify(0, QpState::Sqd);
    assert_eq!(set.fetch_all(), [0_u16; 0]);
    set.modify(0, QpState::Rts);
    assert_eq!(set.fetch_all().len(), 3);

    set.send(0, 2);
    set.modify(0, QpState::Reset);
    assert_eq!(set.fetch_all(), [0_u16; 0]);
    set.send(1, 2);
    set.destroy(1);
    let Driver { device, world, .. } = &mut set.driver;
    assert!(matches!(device.fetch(world), Fetched::Idle));
}

#[test]
fn a_flush_completes_unfetched_work_requests() {
    let mut set = Set::new(1);
    set.send(0, 3);
    assert!(set.fetch().is_some());
    set.modify(0, QpState::Err);
    assert_eq!(
        set.completions(),
        [0, 1, 2].map(|id| (id, CompStatus::Flushed))
    );
    assert_eq!(set.fetch_all(), [0_u16; 0]);
}

#[test]
fn a_dead_device_fetches_nothing() {
    let mut set = Set::new(1);
    set.send(0, 1);
    let Driver {
        device, world, now, ..
    } = &mut set.driver;
    device.die(world, *now, Death::default());
    assert_eq!(set.fetch_all(), [0_u16; 0]);
}

/// A delivery takes its receive work request when it begins.
#[test]
fn overlapping_deliveries() {
    let mut set = Set::new(1);
    let [first, second] = [(); 2].map(|()| set.receive(0));
    let arrivals = [100, 200].map(|length| set.message(0, length));
    let [a, b] = arrivals.map(|arrival| set.deliver(&arrival).unwrap());
    let third = set.message(0, 1);
    assert_eq!(set.deliver(&third).err(), Some(Refusal::NotReady));
    assert_eq!(set.completions(), []);

    // Deliveries end in any order.
    set.delivered(&arrivals[1], b).unwrap();
    let completion = set.poll().unwrap();
    assert_eq!((completion.req_id, completion.length), (second, 200));
    set.delivered(&arrivals[0], a).unwrap();
    let completion = set.poll().unwrap();
    assert_eq!((completion.req_id, completion.length), (first, 100));
    assert_eq!(set.driver.device.counters().recv_wrs, 2);
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

/// Devices check Q_Keys of SRD only with `check_srd_qkey`.
#[test]
fn a_wrong_qkey() {
    for check in [false, true] {
        let mut set = Set::new(1);
        set.driver.device.set(Overrides {
            check_srd_qkey: Some(check),
            ..Overrides::default()
        });
        set.receive(0);
        let right = set.message(0, 1);
        let wrong = Arrival { qkey: 1, ..right };
        let before = set.driver.device.counters();
        match set.deliver(&wrong) {
            Ok(delivery) => {
                assert!(!check);
                set.driver.device.cancel(delivery);
            }
            Err(refusal) => assert_eq!((refusal, check), (Refusal::Drop, true)),
        }
        let after = set.driver.device.counters();
        assert_eq!(after.qkey_viol, before.qkey_viol + u64::from(check));
        assert_eq!(after.rx_drops, before.rx_drops + u64::from(check));
        assert_eq!(set.completions(), []);

        // The receive work request is still there.
        let delivery = set.deliver(&right).unwrap();
        set.delivered(&right, delivery).unwrap();
        assert_eq!(set.completions(), [(0x8000, CompStatus::Ok)]);
    }
}

/// A long message fails even if the buffer has room, as a completion can't express its length.
#[test]
fn a_message_that_is_longer_than_a_packet() {
    let mut set = Set::new(1);
    set.driver.device.set(Overrides {
        mtu: Some(1000),
        ..Overrides::default()
    });
    set.receive(0);
    let long = set.message(0, 1001);
    let refusal = Refusal::Status(CompStatus::RemoteBadLength);
    assert_eq!(set.deliver(&long).err(), Some(refusal));
    let arrival = set.message(0, 1000);
    let delivery = set.deliver(&arrival).unwrap();
    set.delivered(&arrival, delivery).unwrap();
    assert_eq!(set.poll().map(|completion| completion.length), Some(1000));
}

/// Only SRD reads and writes remote memory.
#[test]
fn datagrams_do_not_access_memory() {
    let mut set = Set::new(0);
    set.add_qp(QpType::Ud);
    set.receive(0);
    let memory = (set.rkey, IOVA);
    let length = 8;
    for content in [
        Content::Write {
            memory,
            length,
            end: None,
        },
        Content::Read {
            memory,
            length,
            version: 0,
        },
    ] {
        let arrival = Arrival {
            transport: QpType::Ud,
            ..set.arrival(0, content)
        };
        assert_eq!(set.deliver(&arrival).err(), Some(Refusal::Drop));
    }
}

/// A receive work request in a delivery still takes up room in the ring.
#[test]
fn a_ring_is_full_until_deliveries_end() {
    let mut set = Set::new(1);
    for _ in 0..DEPTH {
        set.receive(0);
    }
    let arrival = set.message(0, 1);
    let delivery = set.deliver(&arrival).unwrap();
    set.delivered(&arrival, delivery).unwrap();
    set.receive(0);
    let _taken = set.deliver(&arrival).unwrap();
    assert_eq!(set.driver.device.state().protocol_errors, 0);
    set.receive(0);
    assert_eq!(set.driver.device.state().protocol_errors, 1);
}

#[test]
fn a_cancelled_delivery_returns_its_receive() {
    let mut set = Set::new(1);
    let ids = [(); 3].map(|()| set.receive(0));
    let arrival = set.message(0, 1);
    let [a, b] = [(); 2].map(|()| set.deliver(&arrival).unwrap());
    // They return in the order of the ring, whichever delivery is cancelled first.
    set.driver.device.cancel(b);
    set.driver.device.cancel(a);
    assert_eq!(set.completions(), []);
    for id in ids {
        let delivery = set.deliver(&arrival).unwrap();
        set.delivered(&arrival, delivery).unwrap();
        assert_eq!(set.completions(), [(id, CompStatus::Ok)]);
    }
    assert_eq!(set.deliver(&arrival).err(), Some(Refusal::NotReady));
}

#[test]
fn an_immediate_takes_a_receive_at_once() {
    let mut set = Set::new(1);
    let id = set.receive(0);
    let end = Some(WriteEnd {
        length: 8,
        immediate: Some(1),
    });
    let write = Content::Write {
        memory: (set.rkey, IOVA),
        length: 8,
        end,
    };
    let write = set.arrival(0, write);
    let delivery = set.deliver(&write).unwrap();
    assert_eq!(set.deliver(&write).err(), Some(Refusal::NotReady));
    set.delivered(&write, delivery).unwrap();
    assert_eq!(set.completions(), [(id, CompStatus::Ok)]);
}

/// A flush during deliveries completes their receive work requests once, in the order of the ring.
#[test]
fn a_flush_during_deliveries() {
    let mut set = Set::new(1);
    let ids = [(); 4].map(|()| set.receive(0));
    let arrival = set.message(0, 1);
    let [a, b, c] = [(); 3].map(|()| set.deliver(&arrival).unwrap());
    set.driver.device.cancel(b);
    set.modify(0, QpState::Err);
    assert_eq!(set.completions(), ids.map(|id| (id, CompStatus::Flushed)));

    let before = set.driver.device.counters();
    set.delivered(&arrival, a).unwrap();
    set.driver.device.cancel(c);
    assert_eq!(set.completions(), []);
    let after = set.driver.device.counters();
    assert_eq!(after.rx_pkts, before.rx_pkts + 1);
    assert_eq!(after.recv_wrs, before.recv_wrs);
}

/// A delivery whose write failed does not complete its receive work request again, either.
#[test]
fn a_flush_during_a_delivery_that_fails() {
    let mut set = Set::new(1);
    let id = set.receive(0);
    let arrival = set.message(0, 1);
    let delivery = set.deliver(&arrival).unwrap();
    set.modify(0, QpState::Err);
    assert_eq!(set.completions(), [(id, CompStatus::Flushed)]);
    let error = DmaError {
        address: set.page,
        length: 1,
    };
    let Driver { device, world, .. } = &mut set.driver;
    let refusal = device.delivered(world, &arrival, delivery, Err(error));
    assert_eq!(refusal, Err(Refusal::Status(CompStatus::RemoteBadStatus)));
    assert_eq!(set.completions(), []);
}

#[test]
fn a_reset_or_destruction_during_deliveries() {
    let mut set = Set::new(2);
    for qp in [0, 1] {
        set.receive(qp);
        set.receive(qp);
    }
    let arrivals = [0, 1].map(|qp| set.message(qp, 1));
    let deliveries = arrivals.map(|arrival| [(); 2].map(|()| set.deliver(&arrival).unwrap()));
    set.modify(0, QpState::Reset);
    set.destroy(1);
    set.start(0);
    let id = set.receive(0);
    for (arrival, [ended, cancelled]) in arrivals.iter().zip(deliveries) {
        set.delivered(arrival, ended).unwrap();
        set.driver.device.cancel(cancelled);
    }
    // The destruction flushes the receive work requests of the queue pair's deliveries, once.
    let flushed = [0x8000, 0x8001].map(|id| (id, CompStatus::Flushed));
    assert_eq!(set.completions(), flushed);

    // After the reset, the queue pair has nothing of its old deliveries.
    let delivery = set.deliver(&arrivals[0]).unwrap();
    assert_eq!(set.deliver(&arrivals[0]).err(), Some(Refusal::NotReady));
    set.delivered(&arrivals[0], delivery).unwrap();
    assert_eq!(set.completions(), [(id, CompStatus::Ok)]);
}

#[test]
fn a_reset_of_the_device_during_a_delivery() {
    let mut set = Set::new(1);
    set.receive(0);
    let arrival = set.message(0, 1);
    let delivery = set.deliver(&arrival).unwrap();
    set.driver.reset(ResetReason::Normal);
    set.driver.set_up();
    set.delivered(&arrival, delivery).unwrap();
    assert_eq!(set.completions(), []);
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

#[test]
fn commands_that_release_memory_wait_for_copies() {
    let mut set = Set::new(3);
    set.receive(0);
    set.send(0, 1);

    // Commands that release no memory, or find no object, do not wait.
    set.modify(1, QpState::Sqd);
    let missing = DestroyQp { qp_handle: 77 };
    assert_eq!(
        set.driver.execute(&missing).err(),
        Some(Status::IllegalParameter)
    );
    assert_eq!(set.quiesced(usize::MAX), 0);

    // The device reads a command of 64 bytes, and waits before it writes.
    set.waits(64, |set| set.modify(0, QpState::Err));
    assert_eq!(set.completions().len(), 2);
    set.waits(64, |set| set.modify(1, QpState::Reset));
    set.waits(64, |set| set.destroy(2));
    set.waits(64, |set| set.deregister(set.lkey));
}

/// Queue pairs that fail due to malformed work requests and doorbells.
#[test]
fn queue_pairs_that_fail_wait_for_copies() {
    let mut set = Set::new(4);
    for qp in 0..4 {
        set.receive(qp);
    }
    set.post_raw(0, &[0; 64]);
    assert_eq!(set.quiesced(usize::MAX), 0);
    set.fetch_internal();
    // The completion of the malformed work request precedes the wait.
    let bytes = set.driver.world.dma_bytes - 2 * 16;
    assert_eq!(set.quiesced(bytes), 1);

    set.waits(0, |set| set.ring(set.qps[1].doorbells[0], SQ_DEPTH + 1));
    set.waits(0, |set| set.ring(set.qps[2].doorbells[1], DEPTH + 2));

    let rq = set.qps[3].rq;
    set.driver.world.write(rq, &[0; 16]);
    let arrival = set.message(3, 1);
    assert!(set.deliver(&arrival).is_err());
    assert_eq!(set.quiesced(usize::MAX), 1);
}

#[test]
fn fast_invalidation_waits_for_copies() {
    let mut set = Set::new(1);
    let register = set.registration(1, PblMode::Inline, set.page);
    set.post(0, &Send::register(&register));
    assert_eq!(set.fetch(), None);
    assert_eq!(set.completions(), [(0, CompStatus::Ok)]);
    assert_eq!(set.quiesced(usize::MAX), 0);
    set.post(0, &Send::invalidate(register.lkey));
    set.waits(0, |set| assert_eq!(set.fetch(), None));
    assert_eq!(set.completions(), [(1, CompStatus::Ok)]);
}

/// Limit on page addresses that are read in one call.
const PAGES_PER_CALL: u64 = 1 << 14;

impl Set {
    /// As [`Self::registration`], with the pages in a list.
    fn long_registration(&mut self, pages: u64) -> FastMrRegReq {
        let addresses: Vec<_> = (1..=pages).map(|page| page * PAGE).collect();
        let list = page_list(&mut self.driver.world, &addresses);
        self.registration(pages, PblMode::Direct, list.address)
    }

    /// Fetches once. Asserts that this reads the pages of one call at most, and finds nothing for the transport.
    fn fetch_internal(&mut self) {
        let Driver { device, world, .. } = &mut self.driver;
        let before = world.dma_bytes;
        assert!(matches!(device.fetch(world), Fetched::Internal));
        assert!(world.dma_bytes - before <= PAGES_PER_CALL as usize * 8 + 128);
    }

    fn registered(&self) -> usize {
        self.driver.device.state().resources.registered_fast_mr
    }
}

/// Later work requests of its queue wait, while other queue pairs have their turns.
#[test]
fn long_fast_registrations_are_read_in_pieces() {
    let mut set = Set::new(2);
    let register = set.long_registration(3 * PAGES_PER_CALL);
    set.put(0, &Send::register(&register));
    set.send(0, 1);
    set.send(1, 2);
    let [a, b] = [0, 1].map(|qp: usize| set.qps[qp].number);
    for _ in 0..2 {
        set.fetch_internal();
        assert_eq!(set.fetch(), Some(b));
    }
    assert_eq!((set.completions(), set.registered()), (vec![], 0));
    set.fetch_internal();
    assert_eq!(set.completions(), [(0, CompStatus::Ok)]);
    assert_eq!(set.registered(), 1);
    assert_eq!(set.fetch_all(), [a]);
}

/// Registrations may all be for one region, whose pages count once. A short one does not wait.
#[test]
fn one_long_fast_registration_is_read_at_a_time() {
    let mut set = Set::new(3);
    let long = set.long_registration(2 * PAGES_PER_CALL);
    let short = set.long_registration(PAGES_PER_CALL);
    for (qp, register) in [(0, &long), (1, &long), (2, &short)] {
        set.post(qp, &Send::register(register));
    }
    let read = |set: &mut Set| {
        let before = set.driver.world.dma_bytes;
        set.fetch_internal();
        // A page address has 8 bytes. The rest is a completion or a work request.
        (set.driver.world.dma_bytes - before) as u64 / 8 / PAGES_PER_CALL
    };
    // The second registration starts only after the first has ended. Each of them has two parts.
    let parts: Vec<_> = (0..6).map(|_| read(&mut set)).collect();
    assert_eq!(parts, [1, 0, 1, 1, 1, 1]);
    let ends = [CompStatus::Ok, CompStatus::Ok, CompStatus::LocalInvalidLkey];
    let ended: Vec<_> = set.completions().iter().map(|(_, end)| *end).collect();
    assert_eq!((ended, set.registered()), (ends.into(), 2));
}

#[test]
fn long_fast_registrations_that_end_early() {
    // A flush, and a deregistration, which the queue pair detects when the pages are read.
    let mut set = Set::new(2);
    let register = set.long_registration(2 * PAGES_PER_CALL);
    for qp in [0, 1] {
        set.post(qp, &Send::register(&register));
        set.fetch_internal();
    }
    // It continues while the queue drains.
    set.modify(1, QpState::Sqd);
    set.modify(0, QpState::Err);
    assert_eq!(set.completions(), [(0, CompStatus::Flushed)]);
    set.deregister(register.lkey);
    for _ in 0..2 {
        set.fetch_internal();
    }
    assert_eq!(set.completions(), [(0, CompStatus::LocalInvalidLkey)]);
    assert_eq!(set.fetch_all(), [0_u16; 0]);

    // A reset.
    let register = set.long_registration(2 * PAGES_PER_CALL);
    set.modify(1, QpState::Rts);
    set.post(1, &Send::register(&register));
    set.fetch_internal();
    set.modify(1, QpState::Reset);
    set.start(1);
    set.send(1, 1);
    assert_eq!(set.fetch_all().len(), 1);
    assert_eq!((set.completions(), set.registered()), (vec![], 0));
}

#[test]
fn a_device_that_stops_waits_for_copies() {
    let mut set = Set::new(1);
    set.driver.start_reset(ResetReason::Normal);
    assert_eq!(set.quiesced(usize::MAX), 1);
    let Driver {
        device, world, now, ..
    } = &mut set.driver;
    device.reset(world);
    assert_eq!(std::mem::take(&mut world.quiesced).len(), 1);
    device.die(world, *now, Death::default());
    assert_eq!(std::mem::take(&mut world.quiesced).len(), 1);
    device.power_on(world);
    assert_eq!(std::mem::take(&mut world.quiesced).len(), 1);
    device.unplug(world);
    assert_eq!(std::mem::take(&mut world.quiesced).len(), 1);
}

/// Errors of programs are counted and traced.
#[test]
fn program_errors() {
    let mut set = Set::new(3);
    let lines = |set: &mut Set| {
        let lines = std::mem::take(&mut set.driver.world.trace).into_iter();
        let lines =
            lines.filter_map(|line| line.strip_prefix("program error: ").map(str::to_owned));
        lines.collect::<Vec<_>>()
    };
    // The queue overflows with more completions than entries since the last doorbell, regardless of earlier ones.
    for count in [128, 129] {
        set.send(0, count);
        set.modify(0, QpState::Err);
        set.modify(0, QpState::Reset);
        set.start(0);
        let overflows = set.driver.device.state().program_errors.cq_overflows;
        assert_eq!(overflows, u64::from(count > 128));
    }
    let overflow = "cq 1 has 128 entries and overflows: 129 completions, since the last doorbell of any of its queues";
    assert_eq!(lines(&mut set), [overflow]);

    // An id is free when its work request has ended.
    set.send(0, 1);
    let request = set.fetch_request().expect("a work request");
    let Driver { device, world, .. } = &mut set.driver;
    device.complete(world, &request, CompStatus::Ok);
    set.post_again(0);
    set.fetch().unwrap();
    assert_eq!(lines(&mut set), [""; 0]);
    set.post_again(0);
    set.fetch().unwrap();
    let line = "sq 1 has two work requests with id 0 at a time";
    assert_eq!(lines(&mut set), [line]);

    // A region is in use once the device has fetched the work request.
    let send = Send {
        buffers: vec![(IOVA, 8, set.lkey)],
        ..Send::default()
    };
    set.post(1, &send);
    set.fetch().unwrap();
    let l_key = set.lkey;
    set.deregister(l_key);
    let line = format!("mr {l_key:#x} is deregistered while work request 0 of sq 2 uses it");
    assert_eq!(lines(&mut set), [line]);

    set.post_raw(2, &[0x11; 4]);
    assert!(set.fetch().is_none());
    let bytes = format!("11111111{}", "00".repeat(28));
    let line = format!("sq 3 has a malformed work request at 0: `meta_desc` is 0: {bytes}");
    assert_eq!(lines(&mut set), [line]);
    for (fault, change) in [
        (
            "`first` is not on the first descriptor only",
            |desc: &mut RxDesc| desc.lkey_ctrl.first = false,
        ),
        ("no descriptor has `last`", |desc: &mut RxDesc| {
            desc.lkey_ctrl.last = false
        }),
    ] as [(&str, fn(&mut RxDesc)); 2]
    {
        set.modify(2, QpState::Reset);
        set.start(2);
        set.receive(2);
        let at = set.qps[2].rq;
        let mut desc = RxDesc::decode(&set.driver.world.read(at));
        change(&mut desc);
        set.driver.world.write(at, &desc.encode());
        let arrival = set.message(2, 1);
        assert!(set.deliver(&arrival).is_err());
        let bytes = desc.encode().map(|byte| format!("{byte:02x}")).concat();
        let line = format!("rq 3 has a malformed work request at 0: {fault}: {bytes}");
        assert_eq!(lines(&mut set), [line]);
    }
    let errors = set.driver.device.state().program_errors;
    assert_eq!(
        (
            errors.duplicate_ids,
            errors.regions_in_use,
            errors.malformed_requests
        ),
        (1, 1, 3)
    );
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

/// A read of more memory than one call may look up: the parts of the response look it up.
#[test]
fn a_read_looks_up_its_pages_in_parts() {
    const PAGES: u64 = 1 << 12;
    let mut set = Set::new(1);
    // No two pages are contiguous.
    let base = 0x1_0000_0000_u64;
    let pages: Vec<_> = (0..PAGES).map(|n| base + (PAGES - n) * PAGE).collect();
    let mut command = RegMr {
        permissions: ALL_PERMISSIONS,
        ..reg_mr(set.pd, IOVA, PAGES * PAGE)
    };
    let list = page_list(&mut set.driver.world, &pages);
    command.set_page_list(PageList::Direct(list));
    let key = set.driver.execute(&command).unwrap().r_key;
    let read = |length| Content::Read {
        memory: (key, IOVA),
        length,
        version: 3,
    };
    let length = (PAGES * PAGE) as u32;
    let arrival = set.arrival(0, read(length));
    let mut segments = Vec::new();
    let Driver { device, world, .. } = &mut set.driver;
    let delivery = device.deliver(world, &arrival, &mut segments).unwrap();
    device.cancel(delivery);
    assert_eq!(segments.capacity(), 0);
    let arrival = set.arrival(0, read(length + 1));
    let refusal = Refusal::Status(CompStatus::RemoteBadAddress);
    assert_eq!(set.deliver(&arrival).err(), Some(refusal));
}

#[test]
fn rules_do_not_affect_flushed_requests() {
    for then in [
        r#"{"silence":true}"#,
        r#"{"hold":"x"}"#,
        r#"{"delay_ms":1000}"#,
        r#"{"duplicate":true}"#,
    ] {
        for destroy in [false, true] {
            let mut set = Set::new(1);
            let rule = format!(r#"{{"when":{{"work":"SEND"}},"then":{then}}}"#);
            let rule = serde_json::from_str(&rule).unwrap();
            set.driver.device.inject(rule);
            set.send(0, 1);
            assert!(set.fetch().is_some());
            if destroy {
                set.destroy(0);
            } else {
                set.modify(0, QpState::Err);
            }
            let flushed = set.completions();
            assert_eq!(flushed.len(), 1, "{then} {destroy}: {flushed:?}");
            assert_eq!(set.driver.device.release("x", None), 0, "{then} {destroy}");
        }
    }
}

/// Others may read traces and snapshots.
#[test]
fn the_report_of_a_malformed_request_has_no_payload() {
    const LENGTH: usize = 20;
    let mut set = Set::new(1);
    let send = Send {
        inline: Some(vec![0x5a; LENGTH]),
        ..Send::default()
    };
    set.put(0, &send);
    let phase = set.qps[0].llq as usize + 3;
    set.driver.world.device_memory[phase] ^= 1;
    set.ring_send(0);
    set.fetch_all();
    let hex = "5a".repeat(LENGTH);
    let trace = &set.driver.world.trace;
    assert!(trace.iter().any(|line| line.contains("malformed")));
    assert!(!trace.iter().any(|line| line.contains(&hex)));
}

#[test]
fn inline_data_has_the_limit_of_the_device() {
    let mut set = Set::new(1);
    set.driver.device.set(Overrides {
        inline_buf_size: Some(8),
        ..Overrides::default()
    });
    for length in [8, 9] {
        let send = Send {
            inline: Some(vec![1; length]),
            ..Send::default()
        };
        set.post(0, &send);
        assert_eq!(set.fetch().is_some(), length == 8);
    }
}

/// No event reports that a queue pair has failed, so drivers give its last state that they know.
#[test]
fn a_failed_queue_pair_can_be_reset() {
    let mut set = Set::new(1);
    set.post_raw(0, &[0; 64]);
    set.fetch_all();
    let mut command = to_state(set.qps[0].number.into(), QpState::Reset);
    command.modify_mask.cur_qp_state = true;
    command.cur_qp_state = QpState::Rts.into();
    set.driver.execute(&command).unwrap();
}
