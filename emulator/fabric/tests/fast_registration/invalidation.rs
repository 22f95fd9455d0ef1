// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! When a region ends.

use std::time::Duration;

use efa_fabric::Settings;
use efa_hw::{
    admin::{
        Status,
        qp::{QpState, QpType},
    },
    io::CompStatus,
    regs::ResetReason,
};
use efa_model::{Death, ResourceCounts};
use efa_testing::net::{ALL_PERMISSIONS, Net, PAGE, Send, pattern};

use super::{
    ADDRESS, KEY, OK, UNSUPPORTED, deregister, fast_pair, is_writable, refused, resources,
};

/// An invalidated region is inaccessible until it is registered again, with other pages and another key.
#[test]
fn invalidation() {
    let (mut net, mut a, mut b, mut fast) = fast_pair(2);
    let first = fast.clone();
    let other = net.region(&b, 2, 0);
    for round in 1..=40_u64 {
        let old = fast.clone();
        fast = net.elsewhere(&fast);
        fast.renew();
        let request = net.listed(&fast);
        assert_eq!(net.outcome(&mut a, &Send::register(&request)), OK);
        assert_eq!(net.state(a.port).fast_regs, round);

        let bytes = pattern(5000, round);
        net.fill(&other, 0, &bytes);
        let write = Send::write(&a, &other, &fast, 5000);
        assert_eq!(net.outcome(&mut b, &write), OK);
        assert!(net.content(&fast, 0, 5000) == bytes);
        // The key of the previous generation is invalid, for peers and for the queue pair.
        let before = net.content(&old, 0, 5000);
        let late = Send::write(&a, &other, &old, 5000);
        assert_eq!(net.outcome(&mut b, &late), ADDRESS);
        assert_eq!(net.outcome(&mut a, &Send::write(&b, &old, &other, 16)), KEY);
        assert!(net.content(&fast, 0, 5000) == bytes);
        assert!(net.content(&old, 0, 5000) == before);

        // Clients of Amazon's driver invalidate by the local or by the remote key.
        let key = if round % 2 == 0 { fast.lkey } else { fast.rkey };
        assert_eq!(net.outcome(&mut a, &Send::invalidate(key)), OK);
        assert_eq!(net.state(a.port).fast_invs, round);
        let counts = resources(&mut net, &a);
        assert_eq!((counts.registered_fast_mr, counts.mr_pages), (0, 0));
        assert_eq!(net.outcome(&mut b, &write), ADDRESS);
        let read = Send::read(&a, &other, &fast, 5000);
        assert_eq!(net.outcome(&mut b, &read), ADDRESS);
        let write = Send::write(&b, &fast, &other, 100);
        assert_eq!(net.outcome(&mut a, &write), KEY);
        assert!(net.content(&fast, 0, 5000) == bytes);
    }
    // Keys repeat after 16 generations.
    for _ in 0..8 {
        fast.renew();
    }
    assert_eq!((fast.lkey, fast.rkey), (first.lkey, first.rkey));
    assert_eq!(net.protocol_errors(), 0);
}

/// These work requests take effect before later ones of the send queue.
#[test]
fn order() {
    let (mut net, mut a, b, mut fast) = fast_pair(1);
    let to = net.region(&b, 4, 0);
    for round in 0..20 {
        fast = net.elsewhere(&fast);
        fast.renew();
        net.fill(&fast, 0, &pattern(4096, round));
        // Invalidate the last round's registration, register again, and write, with one doorbell.
        let mut posted = Vec::new();
        if round > 0 {
            let mut old = fast.clone();
            (0..15).for_each(|_| old.renew());
            posted.push((net.put(&mut a, &Send::invalidate(old.lkey)), OK));
        }
        posted.push((net.put(&mut a, &Send::register(&fast.inline())), OK));
        let write = Send::write(&b, &fast, &to, 4096);
        posted.push((net.put(&mut a, &write), OK));
        net.ring_send(&a);
        for _ in 0..posted.len() {
            let completion = net.wait(&mut a);
            let (_, status) = posted
                .iter()
                .find(|(id, _)| *id == completion.req_id)
                .unwrap();
            assert_eq!(completion.status, u8::from(*status));
        }
        assert!(net.content(&to, 0, 4096) == pattern(4096, round));
    }
    // An invalidation may overtake earlier work requests, as it does not wait for those in flight.
    let write = Send::write(&b, &fast, &to, 4096);
    let write = net.put(&mut a, &write);
    let invalidate = net.put(&mut a, &Send::invalidate(fast.lkey));
    net.ring_send(&a);
    for (req_id, status) in [(invalidate, OK), (write, KEY)] {
        let completion = net.wait(&mut a);
        let ended = (completion.req_id, completion.status);
        assert_eq!(ended, (req_id, u8::from(status)));
    }
    assert_eq!(net.protocol_errors(), 0);
}

/// A peer's write in flight depends on the state of the region when it arrives.
#[test]
fn invalidation_while_a_peer_writes() {
    let settings = Settings {
        delay_us: 1000.0,
        ..Settings::default()
    };
    let (mut net, mut a, mut b) = Net::pair(settings);
    let fast = net.fast_region(&a, 8, 0);
    let request = net.listed(&fast);
    assert_eq!(net.outcome(&mut a, &Send::register(&request)), OK);
    let from = net.region(&b, 8, 0);
    net.fill(&from, 0, &pattern(8 * 4096, 1));
    net.post(&mut b, &Send::write(&a, &from, &fast, 8 * 4096));
    net.run_for(Duration::from_micros(500));
    assert_eq!(net.outcome(&mut a, &Send::invalidate(fast.lkey)), OK);
    let before = net.content(&fast, 0, 8 * 4096);
    assert_eq!(net.status(&mut b), ADDRESS);
    assert!(net.content(&fast, 0, 8 * 4096) == before);
}

/// A queue pair in a state in which it does not send does not register either.
#[test]
fn states() {
    let (mut net, mut a, mut b, fast) = fast_pair(1);
    net.modify(&mut a, QpState::Sqd);
    net.post(&mut a, &Send::register(&fast.inline()));
    net.run_for(Duration::from_millis(10));
    assert_eq!(net.poll(&mut a), None);
    assert!(!is_writable(&mut net, &a, &mut b, &fast));
    net.modify(&mut a, QpState::Rts);
    assert_eq!(net.status(&mut a), OK);
    assert!(is_writable(&mut net, &a, &mut b, &fast));
    net.modify(&mut a, QpState::Err);
    net.post(&mut a, &Send::invalidate(fast.lkey));
    assert_eq!(net.status(&mut a), CompStatus::Flushed);
    // The region does not depend on the state of the queue pair that registered it.
    net.modify(&mut a, QpState::Reset);
    let sibling = net.sibling(&a, QpType::Srd);
    assert!(is_writable(&mut net, &sibling, &mut b, &fast));
    assert_eq!(net.protocol_errors(), 0);
}

/// A success is not reported if no completion was requested. Event counters do not count these work requests.
#[test]
fn completions() {
    let (mut net, mut a, _) = Net::pair(Settings::default());
    let places = net.count(&mut a, &[0x3ff]);
    let fast = net.fast_region(&a, 1, 0);
    let mut silent = Send::register(&fast.inline());
    silent.silent = true;
    net.post(&mut a, &silent);
    net.run();
    assert_eq!(resources(&mut net, &a).registered_fast_mr, 1);
    assert_eq!(net.poll(&mut a), None);
    // A failure is reported.
    assert_eq!(net.outcome(&mut a, &silent), KEY);
    assert_eq!(net.outcome(&mut a, &Send::invalidate(fast.lkey)), OK);
    assert_eq!(net.values(a.port, &places), [0]);
    let counters = net.driver(a.port, |driver| driver.device.counters());
    assert_eq!((counters.send_wrs, counters.write_wr_err), (0, 0));
}

/// DEREG_MR ignores the generation of a key, which the driver may have advanced without a registration.
#[test]
fn deregistration() {
    let (mut net, mut a, mut b) = Net::pair(Settings::default());
    let illegal = Err(Status::IllegalParameter);
    for registered in [false, true] {
        let mut fast = net.fast_region(&a, 1, 0);
        if registered {
            assert_eq!(net.outcome(&mut a, &Send::register(&fast.inline())), OK);
        }
        let old = fast.clone();
        fast.renew();
        for l_key in [fast.rkey, fast.lkey | (1 << 16), fast.lkey | (1 << 24)] {
            assert_eq!(deregister(&mut net, &a, l_key), illegal);
        }
        assert_eq!(is_writable(&mut net, &a, &mut b, &old), registered);
        deregister(&mut net, &a, fast.lkey).unwrap();
        assert!(!is_writable(&mut net, &a, &mut b, &old));
        assert_eq!(resources(&mut net, &a).mr, 0);
        let what = "a deregistered region";
        refused(&mut net, &mut a, &Send::register(&old.inline()), KEY, what);
        refused(&mut net, &mut a, &Send::invalidate(old.lkey), KEY, what);
    }
    // Keys of other regions have no generations.
    let listed = net.region(&a, 1, 0);
    let l_key = listed.lkey | (1 << 20);
    assert_eq!(deregister(&mut net, &a, l_key), illegal);
    assert!(is_writable(&mut net, &a, &mut b, &listed));
}

/// A dead device writes to registered memory, and not to that of an invalidated region.
#[test]
fn death() {
    for invalidated in [false, true] {
        let (mut net, mut a, _, fast) = fast_pair(1);
        assert_eq!(net.outcome(&mut a, &Send::register(&fast.inline())), OK);
        if invalidated {
            assert_eq!(net.outcome(&mut a, &Send::invalidate(fast.lkey)), OK);
        }
        net.driver(a.port, |driver| {
            let death = Death {
                dma: true,
                ..Death::default()
            };
            driver.device.die(&mut driver.world, driver.now, death);
        });
        net.run_for(Duration::from_millis(100));
        let untouched = net.content(&fast, 0, 4096).iter().all(|byte| *byte == 0);
        assert_eq!(untouched, invalidated);
    }
}

/// A reset ends regions and the privilege of domains.
#[test]
fn reset() {
    let (mut net, mut a, b, fast) = fast_pair(1);
    net.physical_region(&a, PAGE, PAGE, ALL_PERMISSIONS);
    assert_eq!(net.outcome(&mut a, &Send::register(&fast.inline())), OK);
    net.driver(a.port, |driver| {
        driver.reset(ResetReason::Normal);
        driver.set_up();
    });
    assert_eq!(resources(&mut net, &a), ResourceCounts::default());
    let (mut a, mut b) = (net.qp(0, QpType::Srd), b);
    net.introduce(&mut a, &mut b);
    assert!(!is_writable(&mut net, &a, &mut b, &fast));
    let register = Send::register(&fast.inline());
    refused(&mut net, &mut a, &register, UNSUPPORTED, "a new domain");
}
