// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions of kernel clients: those registered by work requests, and those of bus addresses.

use std::time::Duration;

use efa_fabric::Settings;
use efa_hw::{
    admin::{
        Status,
        mr::{AllocMr, DeregMr, RegMrPermissions},
        qp::{QpState, QpType},
    },
    io::{CompStatus, FastMrRegReq, OpType, PblMode},
    regs::ResetReason,
};
use efa_model::{Death, Overrides, Profile, ResourceCounts, State};
use efa_testing::net::{ALL_PERMISSIONS, Net, PAGE, Qp, Region, Send, pattern};

const OK: CompStatus = CompStatus::Ok;
const KEY: CompStatus = CompStatus::LocalInvalidLkey;
const LENGTH: CompStatus = CompStatus::LocalBadLength;
const UNSUPPORTED: CompStatus = CompStatus::LocalUnsupportedOp;
const MALFORMED: CompStatus = CompStatus::LocalQpInternalError;
const ADDRESS: CompStatus = CompStatus::RemoteBadAddress;

fn resources(net: &mut Net, qp: &Qp) -> ResourceCounts {
    net.state(qp.port).resources
}

/// Returns two queue pairs, and a region for fast registration in the domain of the first one.
fn fast_pair(pages: u64) -> (Net, Qp, Qp, Region) {
    let (mut net, a, b) = Net::pair(Settings::default());
    let fast = net.fast_region(&a, pages, 0);
    (net, a, b, fast)
}

/// Returns a region with the same keys that starts at another address.
fn starting_at(region: &Region, iova: u64) -> Region {
    let mut other = region.clone();
    other.iova = iova;
    other
}

fn deregister(net: &mut Net, qp: &Qp, l_key: u32) -> Result<(), Status> {
    let result = net.driver(qp.port, |driver| driver.execute(&DeregMr { l_key }));
    result.map(|_| ())
}

/// Tries a peer's write to a region; returns whether it has succeeded.
fn is_writable(net: &mut Net, a: &Qp, b: &mut Qp, region: &Region) -> bool {
    let from = net.region(b, 1, 0);
    let bytes = pattern(16, from.lkey.into());
    net.fill(&from, 0, &bytes);
    let status = net.outcome(b, &Send::write(a, &from, region, 16));
    let written = net.content(region, 0, 16) == bytes;
    assert_eq!((status == OK, status == ADDRESS), (written, !written));
    written
}

/// Posts a work request, which must end with this status and change no region.
fn refused(net: &mut Net, a: &mut Qp, send: &Send, expected: CompStatus, what: &str) {
    let before = net.state(a.port);
    assert_eq!(net.outcome(a, send), expected, "{what}");
    let after = net.state(a.port);
    assert_eq!(after.resources, before.resources, "{what}");
    let changes = |state: &State| (state.fast_regs, state.fast_invs);
    assert_eq!(changes(&after), changes(&before), "{what}");
}

/// A peer writes to and reads from a region, and the queue pair sends from it and receives into it.
#[test]
fn contents() {
    for (pages, offset) in [(1, 0), (1, 100), (2, 0), (3, 4000), (600, 8)] {
        let (mut net, mut a, mut b) = Net::pair(Settings::default());
        let mut fast = net.fast_region(&a, pages, offset);
        let length = pages * PAGE - offset;
        let other = net.region(&b, pages, 0);
        let bytes = pattern(length as usize, 1);
        let length = length as u32;
        net.fill(&other, 0, &bytes);
        fast.renew();
        let request = if pages == 1 {
            fast.inline()
        } else {
            net.listed(&fast)
        };

        let write = Send::write(&a, &other, &fast, length);
        assert_eq!(net.outcome(&mut b, &write), ADDRESS);
        assert_eq!(net.outcome(&mut a, &Send::register(&request)), OK);
        assert_eq!(net.outcome(&mut b, &write), OK);
        assert!(net.content(&fast, 0, bytes.len()) == bytes);

        let back = net.region(&b, pages, 0);
        let read = Send::read(&a, &back, &fast, length);
        assert_eq!(net.outcome(&mut b, &read), OK);
        assert!(net.content(&back, 0, bytes.len()) == bytes);

        // The same by work requests of the queue pair itself.
        let third = net.region(&b, pages, 0);
        let write = Send::write(&b, &fast, &third, length);
        assert_eq!(net.outcome(&mut a, &write), OK);
        assert!(net.content(&third, 0, bytes.len()) == bytes);
        net.fill(&third, 0, &pattern(64, 2));
        net.receive(&mut a, &[(fast.iova + 8, 64, fast.lkey)]);
        net.post(&mut b, &Send::message(&a, &third, 64));
        assert_eq!(net.status(&mut a), OK);
        assert_eq!(net.content(&fast, 8, 64), pattern(64, 2));
        assert_eq!(net.status(&mut b), OK);
        // Access beyond the region's end fails.
        let mut beyond = Send::write(&a, &other, &fast, 1);
        beyond.remote = Some((fast.iova + u64::from(length), 1, fast.rkey));
        assert_eq!(net.outcome(&mut b, &beyond), ADDRESS);

        let counts = resources(&mut net, &a);
        assert_eq!((counts.fast_mr, counts.registered_fast_mr), (1, 1));
        assert_eq!(counts.mr_pages as u64, pages);
        assert_eq!(net.protocol_errors(), 0);
    }
}

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

/// A registration with one fault ends with an error status, and leaves the region unchanged.
#[test]
fn bad_registrations() {
    type Change = fn(&mut FastMrRegReq);
    fn page_size(request: &mut FastMrRegReq, shift: u8) {
        request.flags.phys_page_size_shift = shift;
    }
    let wrong: &[(&str, CompStatus, Change)] = &[
        ("key zero", KEY, |r| r.lkey = 0),
        ("an unused key", KEY, |r| r.lkey = 999),
        ("an unknown key with bit 16", KEY, |r| r.lkey |= 1 << 16),
        ("a remote key", KEY, |r| r.lkey |= 1 << 19),
        ("a key of more than 24 bits", KEY, |r| r.lkey |= 1 << 24),
        ("no length", LENGTH, |r| r.mr_length = 0),
        ("a page too many", LENGTH, |r| r.mr_length += 1),
        ("a page too many by its offset", LENGTH, |r| r.iova += 1),
        ("far too many pages", LENGTH, |r| r.mr_length = 1 << 40),
        ("a length beyond all addresses", LENGTH, |r| {
            r.mr_length = u64::MAX;
        }),
        ("an end beyond all addresses", LENGTH, |r| {
            (r.iova, r.mr_length) = (u64::MAX - PAGE + 1, 2 * PAGE);
        }),
        ("an inline list of several pages", LENGTH, |r| {
            r.flags.pbl_mode = PblMode::Inline.into();
        }),
        ("an unknown list mode", UNSUPPORTED, |r| {
            r.flags.pbl_mode = 2;
        }),
        ("another unknown list mode", UNSUPPORTED, |r| {
            r.flags.pbl_mode = 3
        }),
        ("pages of one byte", UNSUPPORTED, |r| page_size(r, 0)),
        ("pages of 2 KiB", UNSUPPORTED, |r| page_size(r, 11)),
        ("pages of 2 GiB", UNSUPPORTED, |r| page_size(r, 31)),
        ("unaligned pages", KEY, |r| page_size(r, 20)),
        ("a list without its first entry", KEY, |r| r.pbl += 8),
    ];
    for (what, status, change) in wrong {
        let (mut net, mut a, mut b, fast) = fast_pair(4);
        // The list is followed by zeroed memory.
        let good = net.listed(&fast);
        let mut bad = good;
        change(&mut bad);
        refused(&mut net, &mut a, &Send::register(&bad), *status, what);
        assert!(!is_writable(&mut net, &a, &mut b, &fast), "{what}");
        // The good registration still succeeds. Then the bad one fails as the region is registered, without effect.
        assert_eq!(net.outcome(&mut a, &Send::register(&good)), OK, "{what}");
        refused(&mut net, &mut a, &Send::register(&bad), KEY, what);
        assert!(is_writable(&mut net, &a, &mut b, &fast), "{what}");
        assert_eq!(net.protocol_errors(), 0, "{what}");
    }
}

/// Invalid page addresses, in the work request and in a list.
#[test]
fn bad_pages() {
    for page in [0, 1, PAGE / 2, 3 * PAGE + 8, 1 << 48, u64::MAX - PAGE + 1] {
        let (mut net, mut a, _, fast) = fast_pair(1);
        let bad = fast.request(PblMode::Inline, page);
        refused(&mut net, &mut a, &Send::register(&bad), KEY, "a bad page");
        // The same in a list.
        let request = net.listed(&fast);
        net.world(a.port, |world| {
            world.write(request.pbl, &page.to_le_bytes());
        });
        let bad = Send::register(&request);
        refused(&mut net, &mut a, &bad, KEY, "a list with a bad page");
        assert_eq!(net.protocol_errors(), 0);
    }
}

/// Lists must be aligned to 8 bytes, but may start at any such address.
#[test]
fn places_of_lists() {
    let (mut net, mut a, _, fast) = fast_pair(2);
    let good = net.listed(&fast);
    let list: [u8; 16] = net.world(a.port, |world| world.read(good.pbl));
    for offset in 1..=16 {
        let pbl = good.pbl + PAGE / 2 + offset;
        net.world(a.port, |world| world.write(pbl, &list));
        let register = Send::register(&FastMrRegReq { pbl, ..good });
        if offset % 8 == 0 {
            assert_eq!(net.outcome(&mut a, &register), OK);
            assert_eq!(net.outcome(&mut a, &Send::invalidate(fast.lkey)), OK);
        } else {
            refused(&mut net, &mut a, &register, KEY, "an unaligned list");
        }
    }
    assert_eq!(net.protocol_errors(), 0);
}

/// Lists in memory that is not mapped, or only partly.
#[test]
fn lists_in_unmapped_memory() {
    let (mut net, mut a, mut b, fast) = fast_pair(2);
    let good = net.listed(&fast);
    for (errors, pbl) in (1..).zip([0, 0xdead_0000, good.pbl + PAGE - 8, !7]) {
        let bad = Send::register(&FastMrRegReq { pbl, ..good });
        refused(&mut net, &mut a, &bad, KEY, "a list in unmapped memory");
        assert_eq!(net.protocol_errors(), errors, "{pbl:#x}");
    }
    assert_eq!(net.outcome(&mut a, &Send::register(&good)), OK);
    assert!(is_writable(&mut net, &a, &mut b, &fast));
    // The list is not needed after the registration.
    net.world(a.port, |world| world.unmap(good.pbl & !(PAGE - 1)));
    assert!(is_writable(&mut net, &a, &mut b, &fast));
}

/// A registered region can't be registered again, nor an unregistered one invalidated, nor any by a key of another generation.
#[test]
fn twice() {
    let (mut net, mut a, mut b, mut fast) = fast_pair(1);
    fast.renew();
    let invalidate = |key| Send::invalidate(key);
    let never = "an invalidation of a region that was never registered";
    refused(&mut net, &mut a, &invalidate(fast.lkey), KEY, never);
    let good = fast.inline();
    assert_eq!(net.outcome(&mut a, &Send::register(&good)), OK);

    let elsewhere = net.elsewhere(&fast);
    for generation in 0..16 {
        let mut again = elsewhere.inline();
        again.lkey ^= generation << 20;
        let what = "a second registration";
        refused(&mut net, &mut a, &Send::register(&again), KEY, what);
    }
    assert!(is_writable(&mut net, &a, &mut b, &fast));
    for generation in 1..16 {
        for key in [fast.lkey, fast.rkey] {
            let key = key ^ (generation << 20);
            let what = "an invalidation with the key of another generation";
            refused(&mut net, &mut a, &invalidate(key), KEY, what);
        }
    }
    for key in [
        0,
        999,
        fast.lkey | (1 << 16),
        fast.lkey | (1 << 24),
        u32::MAX,
    ] {
        let what = "an invalidation with an unused key";
        refused(&mut net, &mut a, &invalidate(key), KEY, what);
    }
    assert!(is_writable(&mut net, &a, &mut b, &fast));
    assert_eq!(net.outcome(&mut a, &invalidate(fast.lkey)), OK);
    let again = "a second invalidation";
    refused(&mut net, &mut a, &invalidate(fast.lkey), KEY, again);
    refused(&mut net, &mut a, &invalidate(fast.rkey), KEY, again);
    assert!(!is_writable(&mut net, &a, &mut b, &fast));
    // A registration may reuse the key of the previous one.
    assert_eq!(net.outcome(&mut a, &Send::register(&good)), OK);
    assert!(is_writable(&mut net, &a, &mut b, &fast));
    assert_eq!(net.protocol_errors(), 0);
}

/// These work requests can't use regions of other protection domains, nor other kinds of regions.
#[test]
fn regions_of_others() {
    let (mut net, mut a, mut b, own) = fast_pair(1);
    let other = net.qp(0, QpType::Srd);
    let foreign = net.fast_region(&other, 1, 0);
    let (listed, physical) = (
        net.region(&a, 1, 0),
        net.physical_region(&a, own.pages()[0], PAGE, ALL_PERMISSIONS),
    );
    for (region, what) in [
        (&foreign, "a region of another domain"),
        (&listed, "a region of REG_MR"),
        (&physical, "a physical region"),
    ] {
        let request = FastMrRegReq {
            lkey: region.lkey,
            ..own.inline()
        };
        refused(&mut net, &mut a, &Send::register(&request), KEY, what);
        for key in [region.lkey, region.rkey] {
            refused(&mut net, &mut a, &Send::invalidate(key), KEY, what);
        }
    }
    assert!(is_writable(&mut net, &a, &mut b, &listed));
    // A queue pair of another domain can't invalidate the region.
    assert_eq!(net.outcome(&mut a, &Send::register(&own.inline())), OK);
    let mut other = other;
    refused(&mut net, &mut other, &Send::invalidate(own.lkey), KEY, "");
    assert!(is_writable(&mut net, &a, &mut b, &own));
    // Another queue pair of the same domain can use and invalidate it.
    let mut sibling = net.sibling(&a, QpType::Srd);
    let to = net.region(&b, 1, 0);
    net.fill(&own, 0, &pattern(100, 5));
    let write = Send::write(&b, &own, &to, 100);
    assert_eq!(net.outcome(&mut sibling, &write), OK);
    assert_eq!(net.content(&to, 0, 100), pattern(100, 5));
    let invalidate = Send::invalidate(own.lkey);
    assert_eq!(net.outcome(&mut sibling, &invalidate), OK);
    assert!(!is_writable(&mut net, &a, &mut b, &own));
    assert_eq!(net.protocol_errors(), 0);
}

/// Queue pairs of programs, and others that do not support fast registration.
#[test]
fn unprivileged() {
    let (mut net, mut a, mut b) = Net::pair(Settings::default());
    // A program's domain has no region except those of REG_MR.
    let listed = net.region(&a, 1, 0);
    assert_eq!(resources(&mut net, &a).privileged_pd, 0);
    let kernel = net.qp(0, QpType::Srd);
    let fast = net.fast_region(&kernel, 1, 0);
    assert_eq!(resources(&mut net, &a).privileged_pd, 1);
    let mut registration = fast.inline();
    for key in [fast.lkey, listed.lkey, 0] {
        registration.lkey = key;
        for send in [Send::register(&registration), Send::invalidate(key)] {
            let what = "a program's queue pair";
            refused(&mut net, &mut a, &send, UNSUPPORTED, what);
        }
    }
    // Malformed work requests have this status, too.
    let mut invalid = Send::register(&registration);
    invalid.body = Some([0xff; 32]);
    let what = "a malformed work request";
    refused(&mut net, &mut a, &invalid, UNSUPPORTED, what);
    assert!(is_writable(&mut net, &a, &mut b, &listed));

    // Either kind of region makes its domain privileged, which remains so after the region's deregistration.
    let region = net.physical_region(&a, PAGE, PAGE, ALL_PERMISSIONS);
    deregister(&mut net, &a, region.lkey).unwrap();
    assert_eq!(resources(&mut net, &a).privileged_pd, 2);
    let what = "the kernel's queue pair";
    refused(&mut net, &mut a, &Send::invalidate(1), KEY, what);

    // UD queue pairs, and devices without fast registration.
    let own = net.fast_region(&a, 1, 0);
    let register = Send::register(&own.inline());
    let mut datagrams = net.sibling(&a, QpType::Ud);
    refused(&mut net, &mut datagrams, &register, UNSUPPORTED, "UD");
    let mut unsupported = register.clone();
    unsupported.immediate = Some(1);
    let what = "immediate data";
    refused(&mut net, &mut a, &unsupported, UNSUPPORTED, what);
    unsupported.immediate = None;
    unsupported.inline = Some(Vec::new());
    refused(&mut net, &mut a, &unsupported, UNSUPPORTED, "inline data");
    let without = Overrides {
        fast_mr: Some(false),
        ..Overrides::default()
    };
    net.set(a.port, without);
    let what = "a device without fast registration";
    refused(&mut net, &mut a, &register, UNSUPPORTED, what);
    net.driver(a.port, |driver| driver.device.clear());
    assert_eq!(net.outcome(&mut a, &register), OK);
    assert_eq!(net.protocol_errors(), 0);
}

/// A reserved bit that is not zero moves the queue pair to the error state, which flushes later work requests.
#[test]
fn malformed() {
    let reserved = [(4, 0x08), (4, 0x80), (5, 0x80), (6, 1), (7, 0x80)];
    let register = reserved.map(|(at, bit)| (OpType::FastReg, at, bit));
    let invalidate = [4, 5, 15, 31].map(|at| (OpType::FastInv, at, 1));
    for (operation, at, bit) in register.into_iter().chain(invalidate) {
        let (mut net, mut a, mut b, fast) = fast_pair(1);
        let good = Send::register(&fast.inline());
        let mut bad = good.clone();
        if operation == OpType::FastInv {
            assert_eq!(net.outcome(&mut a, &good), OK);
            bad = Send::invalidate(fast.lkey);
        }
        bad.body.as_mut().unwrap()[at] |= bit;
        let before = resources(&mut net, &a);
        net.put(&mut a, &bad);
        net.put(&mut a, &good);
        net.put(&mut a, &Send::invalidate(fast.lkey));
        net.ring_send(&a);
        for (operation, status) in [
            (operation, MALFORMED),
            (OpType::FastReg, CompStatus::Flushed),
            (OpType::FastInv, CompStatus::Flushed),
        ] {
            let completion = net.wait(&mut a);
            assert_eq!(completion.flags.op_type, u8::from(operation));
            assert_eq!(completion.status, u8::from(status));
        }
        assert_eq!(resources(&mut net, &a), before);
        let sibling = net.sibling(&a, QpType::Srd);
        let expected = operation == OpType::FastInv;
        assert_eq!(is_writable(&mut net, &sibling, &mut b, &fast), expected);
        assert_eq!(net.protocol_errors(), 0);
    }
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

#[test]
fn permissions() {
    for bits in 0..8 {
        let (mut net, mut a, mut b, fast) = fast_pair(1);
        let other = net.region(&b, 1, 0);
        let permissions = RegMrPermissions::from_raw(bits);
        let request = FastMrRegReq {
            permissions,
            ..fast.inline()
        };
        assert_eq!(net.outcome(&mut a, &Send::register(&request)), OK);
        let allowed = permissions.remote_write_enable;
        assert_eq!(is_writable(&mut net, &a, &mut b, &fast), allowed);
        let status = net.outcome(&mut b, &Send::read(&a, &other, &fast, 8));
        assert_eq!(status == OK, permissions.remote_read_enable);
        let status = net.outcome(&mut a, &Send::read(&b, &fast, &other, 8));
        assert_eq!(status == OK, permissions.local_write_enable);
        let status = net.outcome(&mut a, &Send::write(&b, &fast, &other, 8));
        assert_eq!(status, OK, "sending from it needs none");

        // A device without RDMA rejects permissions for it.
        let without = Overrides {
            rdma_read: Some(false),
            rdma_write: Some(false),
            ..Overrides::default()
        };
        assert_eq!(net.outcome(&mut a, &Send::invalidate(fast.lkey)), OK);
        net.set(a.port, without);
        let status = net.outcome(&mut a, &Send::register(&request));
        let supported = bits & 6 == 0;
        assert_eq!(status, if supported { OK } else { UNSUPPORTED });
    }
}

/// Pages larger than the host's.
#[test]
fn large_pages() {
    let (mut net, mut a, mut b, fast) = fast_pair(2);
    let from = net.region(&b, 8, 0);
    net.fill(&from, 0, &pattern(8 * 4096, 4));
    // Two pages of 16 KiB: the region begins in the first and ends in the second.
    let (pages, list) = net.world(a.port, |world| {
        let mut aligned = || (world.map(8) + 4 * PAGE - 1) & !(4 * PAGE - 1);
        let pages = [aligned(), aligned()];
        let list = world.map(1);
        world.write(
            list,
            &[pages[1].to_le_bytes(), pages[0].to_le_bytes()].concat(),
        );
        (pages, list)
    });
    let offset = 12_000;
    let mut request = fast.request(PblMode::Direct, list);
    request.flags.phys_page_size_shift = 14;
    request.iova += offset;
    request.mr_length = 20_000;
    assert_eq!(net.outcome(&mut a, &Send::register(&request)), OK);
    let write = Send::write(&a, &from, &starting_at(&fast, request.iova), 20_000);
    assert_eq!(net.outcome(&mut b, &write), OK);
    let (mut first, mut second) = (
        vec![0; 16_384 - 12_000],
        vec![0; 20_000 - (16_384 - 12_000)],
    );
    net.world(a.port, |world| {
        world.peek(pages[1] + offset, &mut first).unwrap();
        world.peek(pages[0], &mut second).unwrap();
    });
    assert!([first, second].concat() == pattern(8 * 4096, 4)[..20_000]);
}

/// A region's pages count against the limits from its allocation on, not only while they are registered.
#[test]
fn room() {
    let (mut net, mut a, mut b) = Net::pair(Settings::default());
    let few = Overrides {
        max_mr_pages: Some(4),
        max_total_pages: Some(6),
        ..Overrides::default()
    };
    net.set(a.port, few);
    let fast = net.fast_region(&a, 4, 0);
    let more = AllocMr {
        pd: a.pd,
        max_pages: 3,
    };
    let full = Err(Status::ResourceAllocationFailure);
    let result = net.driver(a.port, |driver| driver.execute(&more));
    assert_eq!(result, full);
    let request = net.listed(&fast);
    assert_eq!(net.outcome(&mut a, &Send::register(&request)), OK);
    assert!(is_writable(&mut net, &a, &mut b, &fast));
    let result = net.driver(a.port, |driver| driver.execute(&more));
    assert_eq!(result, full);
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

/// Regions of bus addresses, used by queue pairs and by peers.
#[test]
fn physical_regions() {
    let (mut net, mut a, mut b) = Net::pair(Settings::default());
    let (memory, theirs) = (net.region(&a, 3, 0), net.region(&b, 3, 0));
    let dma = net.physical_region(&a, 0, 1 << 48, ALL_PERMISSIONS);
    assert_eq!(resources(&mut net, &a).physical_mr, 1);
    let page = memory.pages()[1];
    net.fill(&memory, 4096, &pattern(4096, 1));
    let write = Send::write(&b, &starting_at(&dma, page), &theirs, 4096);
    assert_eq!(net.outcome(&mut a, &write), OK);
    assert!(net.content(&theirs, 0, 4096) == pattern(4096, 1));

    net.fill(&theirs, 0, &pattern(4000, 2));
    let write = Send::write(&a, &theirs, &starting_at(&dma, page + 96), 4000);
    assert_eq!(net.outcome(&mut b, &write), OK);
    assert!(net.content(&memory, 4096 + 96, 4000) == pattern(4000, 2));
    let read = Send::read(&a, &theirs, &starting_at(&dma, page), 96);
    assert_eq!(net.outcome(&mut b, &read), OK);
    assert!(net.content(&theirs, 0, 96) == pattern(4096, 1)[..96]);

    // Addresses without memory.
    let nowhere = starting_at(&dma, 0xdead_0000);
    let write = Send::write(&b, &nowhere, &theirs, 100);
    assert_eq!(net.outcome(&mut a, &write), KEY);
    let write = Send::write(&a, &theirs, &nowhere, 100);
    assert_eq!(net.outcome(&mut b, &write), ADDRESS);

    // A region of one page, and one without permissions.
    let small = net.physical_region(&a, page, PAGE, ALL_PERMISSIONS);
    let before = net.content(&memory, 0, 3 * 4096);
    for (address, length) in [(page - 1, 2), (page + PAGE - 1, 2), (page + PAGE, 1)] {
        let beyond = Send::write(&a, &theirs, &starting_at(&small, address), length);
        assert_eq!(net.outcome(&mut b, &beyond), ADDRESS);
    }
    let inaccessible = net.physical_region(&a, page, PAGE, RegMrPermissions::default());
    let write = Send::write(&a, &theirs, &inaccessible, 16);
    assert_eq!(net.outcome(&mut b, &write), ADDRESS);
    let read = Send::read(&b, &inaccessible, &theirs, 16);
    assert_eq!(net.outcome(&mut a, &read), KEY);
    // Queue pairs of programs can't use their keys.
    let mut program = net.qp(0, QpType::Srd);
    program.ah = net.handle(&program, b.port);
    let write = Send::write(&b, &starting_at(&dma, page), &theirs, 16);
    assert_eq!(net.outcome(&mut program, &write), KEY);
    assert!(net.content(&memory, 0, 3 * 4096) == before);
}

/// The newest devices also support work requests of 64 bytes.
#[test]
fn profiles() {
    for profile in [Profile::Efa2, Profile::Efa3, Profile::Efa4] {
        let mut net = Net::new(&[profile; 2], Settings::default());
        let (mut a, mut b) = (net.narrow_qp(0, QpType::Srd), net.narrow_qp(1, QpType::Srd));
        net.introduce(&mut a, &mut b);
        let fast = net.fast_region(&a, 1, 0);
        assert_eq!(net.outcome(&mut a, &Send::register(&fast.inline())), OK);
        assert!(is_writable(&mut net, &a, &mut b, &fast));
        assert_eq!(net.outcome(&mut a, &Send::invalidate(fast.lkey)), OK);
        assert!(!is_writable(&mut net, &a, &mut b, &fast));
        assert_eq!(net.protocol_errors(), 0);
    }
}

/// The trace has a line for each of these work requests, also for those without effect.
#[test]
fn trace() {
    let (mut net, mut a, _) = Net::pair(Settings::default());
    let mut fast = net.fast_region(&a, 2, 5);
    fast.renew();
    let direct = net.listed(&fast);
    let inline = FastMrRegReq {
        permissions: RegMrPermissions::default(),
        mr_length: 100,
        ..fast.inline()
    };
    let mut unsupported = inline;
    unsupported.flags.pbl_mode = 3;
    net.world(a.port, |world| world.trace.clear());
    net.outcome(&mut a, &Send::register(&inline));
    net.outcome(&mut a, &Send::register(&direct));
    net.outcome(&mut a, &Send::invalidate(fast.lkey));
    net.outcome(&mut a, &Send::register(&unsupported));
    let (qp, key, page) = (a.number, fast.lkey, fast.pages()[0]);
    let start = format!("sq {qp} FAST_REG(lkey={key:#x}, iova=0x7f0000000005, length=");
    let all = ", local_write, remote_write, remote_read";
    let lines = [
        format!("{start}100, page_shift=12, page={page:#x}) = OK"),
        format!(
            "{start}8187, page_shift=12, direct={:#x}{all}) = LOCAL_ERROR_INVALID_LKEY",
            direct.pbl
        ),
        format!("sq {qp} FAST_INV(lkey={key:#x}) = OK"),
        format!(
            "{start}100, page_shift=12, pbl_mode=3, pbl={page:#x}) = LOCAL_ERROR_UNSUPPORTED_OP"
        ),
    ];
    let trace = net.world(a.port, |world| world.trace.clone());
    assert_eq!(trace, lines);
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
