// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How the release of memory waits for copies, and how long work is done in parts.

use super::*;

#[test]
fn commands_that_release_memory_wait_for_copies() {
    let mut set = Set::new(3);
    set.receive(0);
    set.send(0, 1);
    // Commands that release no memory, or find no object, do not wait.
    set.modify(1, QpState::Sqd);
    let missing = DestroyQp { qp_handle: 77 };
    set.driver.fails(&missing, Status::IllegalParameter);
    assert_eq!(set.quiesced(usize::MAX), 0);
    // The device reads a command of 64 bytes, and waits before it writes.
    set.waits(64, |set| set.modify(0, QpState::Err));
    assert_eq!(set.completions().len(), 2);
    set.waits(64, |set| set.modify(1, QpState::Reset));
    set.waits(64, |set| set.destroy(2));
    set.waits(64, |set| set.deregister(set.region.lkey));
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
    for (qp, doorbell, value) in [(1, 0, SQ_DEPTH + 1), (2, 1, DEPTH + 2)] {
        let offset = set.qps[qp].doorbells[doorbell];
        set.waits(0, |set| set.driver.doorbell(offset, value.into()));
    }
    let rq = set.qps[3].rq;
    set.driver.world.store(rq, &[0; 16]);
    let arrival = set.message(3, 1);
    assert!(set.deliver(&arrival).is_err());
    assert_eq!(set.quiesced(usize::MAX), 1);
}

#[test]
fn a_device_that_stops_waits_for_copies() {
    let ends: [fn(&mut Driver); 5] = [
        |driver| driver.start_reset(ResetReason::Normal),
        |driver| driver.device.reset(&mut driver.world),
        |driver| driver.die("{}"),
        |driver| driver.device.power_on(&mut driver.world),
        |driver| driver.device.unplug(&mut driver.world),
    ];
    let mut set = Set::new(1);
    for end in ends {
        end(&mut set.driver);
        assert_eq!(set.quiesced(usize::MAX), 1);
    }
}

/// Limit on page addresses that are read in one call.
const PAGES_PER_CALL: u64 = 1 << 14;

impl Set {
    /// Allocates a region for fast registration; returns the request that registers this number of pages, which are in a list.
    fn long_registration(&mut self, pages: u64) -> FastMrRegReq {
        let addresses: Vec<_> = (1..=pages).map(|page| page * PAGE).collect();
        let list = page_list(&mut self.driver.world, &addresses);
        let command = AllocMr { pd: self.pd, max_pages: pages as u32 };
        let made = self.driver.execute(&command).unwrap();
        FastMrRegReq {
            lkey: made.l_key,
            permissions: RegMrPermissions::default(),
            mr_length: pages * PAGE,
            ..self.region.request(PblMode::Direct, list.address)
        }
    }

    /// Fetches once. Asserts that this reads the pages of one call at most, and finds nothing for the transport. Returns how many
    /// times as many pages it reads, as a page address has 8 bytes. The rest is a completion or a work request.
    fn fetch_internal(&mut self) -> u64 {
        let Driver { device, world, .. } = &mut self.driver;
        let before = world.dma_bytes;
        assert!(matches!(device.fetch(world), Fetched::Internal));
        let bytes = (world.dma_bytes - before) as u64;
        assert!(bytes <= PAGES_PER_CALL * 8 + 128);
        bytes / 8 / PAGES_PER_CALL
    }

    /// Returns the completions, and the number of regions that are registered.
    fn registered(&mut self) -> (Vec<(u16, CompStatus)>, usize) {
        (self.completions(), self.driver.counts().registered_fast_mr)
    }
}

#[test]
fn fast_invalidation_waits_for_copies() {
    let mut set = Set::new(1);
    let register = set.long_registration(1);
    set.post(0, &Send::register(&register));
    assert_eq!(set.fetch(), None);
    assert_eq!(set.registered(), (vec![(0, OK)], 1));
    assert_eq!(set.quiesced(usize::MAX), 0);
    set.post(0, &Send::invalidate(register.lkey));
    set.waits(0, |set| assert_eq!(set.fetch(), None));
    assert_eq!(set.registered(), (vec![(1, OK)], 0));
}

/// Later work requests of its queue wait, while other queue pairs have their turns.
#[test]
fn long_fast_registrations_are_read_in_pieces() {
    let mut set = Set::new(2);
    let register = set.long_registration(3 * PAGES_PER_CALL);
    set.put(0, &Send::register(&register));
    set.send(0, 1);
    set.send(1, 2);
    for _ in 0..2 {
        set.fetch_internal();
        assert_eq!(set.fetch(), Some(1));
    }
    assert_eq!(set.registered(), (vec![], 0));
    set.fetch_internal();
    assert_eq!(set.registered(), (vec![(0, OK)], 1));
    assert_eq!(set.fetch_all(), [0]);
}

/// Registrations may all be for one region, whose pages count once. A short one does not wait.
#[test]
fn one_long_fast_registration_is_read_at_a_time() {
    let mut set = Set::new(3);
    let [long, short] = [2, 1].map(|calls| set.long_registration(calls * PAGES_PER_CALL));
    for (qp, register) in [(0, &long), (1, &long), (2, &short)] {
        set.post(qp, &Send::register(register));
    }
    // The second registration starts only after the first has ended. Each of them has two parts.
    assert_eq!([(); 6].map(|()| set.fetch_internal()), [1, 0, 1, 1, 1, 1]);
    let ends = [OK, OK, CompStatus::LocalInvalidLkey].map(|end| (0, end));
    assert_eq!(set.registered(), (ends.into(), 2));
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
    assert_eq!(set.completions(), [(0, FLUSHED)]);
    set.deregister(register.lkey);
    [(); 2].map(|()| set.fetch_internal());
    assert_eq!(set.completions(), [(0, CompStatus::LocalInvalidLkey)]);
    assert_eq!(set.fetch_all(), [0; 0]);

    // A reset.
    let register = set.long_registration(2 * PAGES_PER_CALL);
    set.modify(1, QpState::Rts);
    set.post(1, &Send::register(&register));
    set.fetch_internal();
    set.modify(1, QpState::Reset);
    set.start(1);
    set.send(1, 1);
    assert_eq!(set.fetch_all().len(), 1);
    assert_eq!(set.registered(), (vec![], 0));
}

/// A read of more memory than one call may look up: the parts of the response look it up.
#[test]
fn a_read_looks_up_its_pages_in_parts() {
    const PAGES: u64 = 1 << 12;
    let mut set = Set::new(1);
    // No two pages are contiguous.
    let pages = (0..PAGES).map(|n| 0x1_0000_0000 + (PAGES - n) * PAGE).collect();
    let mut command = reg_mr(set.pd, IOVA, PAGES * PAGE);
    command.permissions = ALL_PERMISSIONS;
    let region = Region::new(&mut set.driver, pages, command);
    let (memory, version) = ((region.rkey, IOVA), 3);
    let most = (PAGES * PAGE) as u32;
    let [read, longer] = [most, most + 1].map(|length| set.arrival(0, Content::Read { memory, length, version }));
    let mut segments = Vec::new();
    let Driver { device, world, .. } = &mut set.driver;
    let delivery = device.deliver(world, &read, &mut segments).unwrap();
    device.cancel(delivery);
    assert_eq!(segments.capacity(), 0);
    let refusal = Refusal::Status(CompStatus::RemoteBadAddress);
    assert_eq!(set.deliver(&longer).err(), Some(refusal));
}
