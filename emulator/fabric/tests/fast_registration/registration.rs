// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which registrations are executed, and what a region then has.

use efa_fabric::Settings;
use efa_hw::{
    admin::{
        Status,
        mr::{AllocMr, RegMrPermissions},
        qp::QpType,
    },
    io::{CompStatus, FastMrRegReq, OpType, PblMode},
};
use efa_model::Overrides;
use efa_testing::net::{Net, PAGE, Send, pattern};

use super::{
    ADDRESS, KEY, LENGTH, MALFORMED, OK, UNSUPPORTED, fast_pair, is_writable, refused, resources,
    starting_at,
};

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
