// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How the release of memory waits for copies, and how long work is done in parts.

use efa_hw::{
    admin::{
        Status,
        mr::{PageList, RegMr},
        qp::{DestroyQp, QpState},
    },
    io::{CompStatus, FastMrRegReq, PblMode},
    regs::ResetReason,
};
use efa_model::{Content, Death, Fetched, Refusal};
use efa_testing::{
    bus::PAGE,
    commands::reg_mr,
    mock::Driver,
    qp::Send,
    region::{ALL_PERMISSIONS, page_list},
};

use super::{DEPTH, IOVA, SQ_DEPTH, Set};

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
