// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! When a fast registration ends.

use super::*;

/// An invalidated region is inaccessible until it is registered again, with other pages and another key.
#[test]
fn invalidation() {
    let mut peers = fast(2, 0);
    let first = peers.regions[1].clone();
    for round in 1..=40_u64 {
        let old = peers.regions[1].clone();
        peers.regions[1] = peers.net.elsewhere(&old);
        peers.regions[1].renew();
        register(&mut peers);
        assert_eq!(peers.state(KERNEL).fast_regs, round);

        let bytes = pattern(5000, round);
        peers.fill(0, &bytes);
        let (write, read) = (peers.write(5000), peers.read(5000));
        peers.ends(&write, OK);
        // The key of the previous generation is invalid, for peers and for the queue pair.
        let before = peers.net.content(&old, 0, 5000);
        let late = Send::write(&peers.qps[1], &peers.regions[0], &old, 5000);
        let stale = Send::write(&peers.qps[0], &old, &peers.regions[0], 16);
        peers.ends(&late, ADDRESS);
        assert_eq!(outcome(&mut peers, &stale), KEY);
        assert!(peers.net.content(&old, 0, 5000) == before);

        // Clients of Amazon's driver invalidate by the local or by the remote key.
        let Region { lkey, rkey, .. } = peers.regions[1];
        let key = if round % 2 == 0 { lkey } else { rkey };
        assert_eq!(outcome(&mut peers, &Send::invalidate(key)), OK);
        assert_eq!(peers.state(KERNEL).fast_invs, round);
        let counts = resources(&mut peers);
        assert_eq!((counts.registered_fast_mr, counts.mr_pages), (0, 0));
        peers.ends(&write, ADDRESS);
        peers.ends(&read, ADDRESS);
        let local = peers.write_back(16);
        assert_eq!(outcome(&mut peers, &local), KEY);
        assert!(peers.content(1, 0, 5000) == bytes);
    }
    // Keys repeat after 16 generations.
    (0..8).for_each(|_| peers.regions[1].renew());
    let Region { lkey, rkey, .. } = peers.regions[1];
    assert_eq!((lkey, rkey), (first.lkey, first.rkey));
    assert_eq!(peers.protocol_errors(), 0);
}

/// Posts work requests of the kernel client with one doorbell; returns their ids.
fn put(peers: &mut Peers, sends: &[Send]) -> Vec<u16> {
    let qp = &mut peers.qps[1];
    let ids = sends.iter().map(|send| peers.net.put(qp, send)).collect();
    peers.net.ring_send(qp);
    ids
}

/// These work requests take effect before later ones of the send queue.
#[test]
fn order() {
    let mut peers = fast(1, 0);
    for round in 0..20 {
        let old = peers.regions[1].clone();
        peers.regions[1] = peers.net.elsewhere(&old);
        peers.regions[1].renew();
        peers.net.fill(&peers.regions[1], 0, &pattern(4096, round));
        // Invalidate the last round's registration, register again, and write, with one doorbell.
        let mut sends = vec![Send::register(&peers.regions[1].inline()), peers.write_back(4096)];
        if round > 0 {
            sends.insert(0, Send::invalidate(old.lkey));
        }
        let posted = put(&mut peers, &sends).into_iter().map(|id| (id, OK));
        let mut ended = peers.all(1);
        ended.sort_unstable_by_key(|(id, _)| *id);
        assert!(ended.into_iter().eq(posted));
        assert!(peers.content(0, 0, 4096) == pattern(4096, round));
    }
    // An invalidation may overtake earlier work requests, as it does not wait for those in flight.
    let sends = [peers.write_back(4096), Send::invalidate(peers.regions[1].lkey)];
    let posted = put(&mut peers, &sends);
    assert_eq!(peers.all(1), [(posted[1], OK), (posted[0], KEY)]);
    assert_eq!(peers.protocol_errors(), 0);
}

/// A peer's write in flight depends on the state of the region when it arrives.
#[test]
fn invalidation_while_a_peer_writes() {
    let mut peers = fast(8, 0);
    peers.fabric.set(delay(1000.0));
    register(&mut peers);
    peers.post(&peers.write(8 * 4096));
    peers.run_for(Duration::from_micros(500));
    invalidate(&mut peers);
    let before = peers.content(1, 0, 8 * 4096);
    assert_eq!(peers.status(0), ADDRESS);
    assert!(peers.content(1, 0, 8 * 4096) == before);
}

/// A success is not reported if no completion was requested. Event counters do not count these work requests.
#[test]
fn completions() {
    let mut peers = fast(1, 0);
    let places = peers.net.count(&mut peers.qps[1], &[0x3ff]);
    let mut silent = Send::register(&registration(&mut peers));
    silent.silent = true;
    peers.net.post(&mut peers.qps[1], &silent);
    assert_eq!(peers.all(1), []);
    assert_eq!(resources(&mut peers).registered_fast_mr, 1);
    // A failure is reported.
    assert_eq!(outcome(&mut peers, &silent), KEY);
    invalidate(&mut peers);
    assert_eq!(peers.values(KERNEL, &places), [0]);
    let counters = peers.driver(KERNEL, |driver| driver.device.counters());
    assert_eq!((counters.send_wrs, counters.write_wr_err), (0, 0));
}

/// DEREG_MR ignores the generation of a key, which the driver may have advanced without a registration.
#[test]
fn deregistration() {
    let illegal = Err(Status::IllegalParameter);
    for registered in [false, true] {
        let mut peers = fast(1, 0);
        let send = Send::register(&registration(&mut peers));
        if registered {
            register(&mut peers);
        }
        let Region { lkey, rkey, .. } = peers.regions[1];
        let next = 1 << 20;
        for l_key in [rkey | next, lkey | next | (1 << 16), lkey | next | (1 << 24)] {
            assert_eq!(peers.deregister(KERNEL, l_key), illegal);
        }
        assert_eq!(is_writable(&mut peers), registered);
        let regions = resources(&mut peers).mr;
        peers.deregister(KERNEL, lkey | next).unwrap();
        assert!(!is_writable(&mut peers));
        assert_eq!(resources(&mut peers).mr, regions - 1);
        for send in [send, Send::invalidate(lkey)] {
            refused(&mut peers, &send, KEY, "a deregistered region");
        }
        // Keys of other regions have no generations.
        peers.regions[1] = peers.net.region(&peers.qps[1], 1, 0);
        let l_key = peers.regions[1].lkey | next;
        assert_eq!(peers.deregister(KERNEL, l_key), illegal);
        assert!(is_writable(&mut peers));
    }
}

/// A dead device writes to registered memory, and not to that of an invalidated region.
#[test]
fn death() {
    for invalidated in [false, true] {
        let mut peers = fast(1, 0);
        register(&mut peers);
        if invalidated {
            invalidate(&mut peers);
        }
        peers.driver(KERNEL, |driver| driver.die(r#"{"dma":true}"#));
        peers.run_for(Duration::from_millis(100));
        let untouched = peers.content(1, 0, 4096).iter().all(|byte| *byte == 0);
        assert_eq!(untouched, invalidated);
    }
}

/// A reset ends regions and the privilege of domains.
#[test]
fn reset() {
    let mut peers = fast(1, 0);
    peers.net.physical_region(&peers.qps[1], PAGE, PAGE, ALL_PERMISSIONS);
    register(&mut peers);
    peers.driver(KERNEL, Driver::start_over);
    assert_eq!(resources(&mut peers), ResourceCounts::default());
    peers.qps[1] = peers.qp(1, QpType::Srd);
    peers.introduce();
    assert!(!is_writable(&mut peers));
    let register = Send::register(&registration(&mut peers));
    refused(&mut peers, &register, UNSUPPORTED, "a new domain");
}
