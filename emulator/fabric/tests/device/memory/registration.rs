// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which fast registrations are executed, and what a region then has.

use super::*;

/// A peer writes to and reads from a region, and its queue pair sends from it and receives into it.
#[test]
fn contents() {
    for (pages, offset) in [(1, 0), (1, 100), (2, 0), (3, 4000), (600, 8)] {
        let mut peers = fast(pages, offset);
        let bytes = peers.regions[1].length();
        let (bytes, length) = (pattern(bytes, 1), bytes as u32);
        peers.fill(0, &bytes);
        peers.regions[1].renew();
        let (write, read) = (peers.write(length), peers.read(length));
        peers.ends(&write, ADDRESS);
        register(&mut peers);
        peers.ends(&write, OK);
        assert!(peers.content(1, 0, bytes.len()) == bytes);
        peers.fill(0, &vec![0; bytes.len()]);
        peers.ends(&read, OK);
        assert!(peers.content(0, 0, bytes.len()) == bytes);

        // The same by work requests of the queue pair itself.
        peers.fill(0, &vec![0; bytes.len()]);
        let write = peers.write_back(length);
        assert_eq!(outcome(&mut peers, &write), OK);
        assert!(peers.content(0, 0, bytes.len()) == bytes);
        peers.receive(&[(8, 64)]);
        peers.fill(0, &pattern(64, 2));
        peers.ends(&peers.message(64), OK);
        assert_eq!(peers.status(1), OK);
        assert_eq!(peers.content(1, 8, 64), pattern(64, 2));
        // Access beyond the region's end fails.
        let mut beyond = peers.write(1);
        beyond.remote.as_mut().unwrap().0 += u64::from(length);
        peers.ends(&beyond, ADDRESS);

        let counts = resources(&mut peers);
        assert_eq!((counts.fast_mr, counts.registered_fast_mr), (1, 1));
        assert_eq!(counts.mr_pages as u64, pages);
        // Its pages count against the limit from its allocation on, and only once.
        peers.set(KERNEL, &format!(r#"{{"max_total_pages":{}}}"#, pages + 1));
        let one = AllocMr { pd: peers.qps[1].pd, max_pages: 1 };
        let [first, second] = [(); 2].map(|()| peers.execute(KERNEL, &one).err());
        let full = Some(Status::ResourceAllocationFailure);
        assert_eq!((first, second), (None, full));
        assert_eq!(peers.protocol_errors(), 0);
    }
}

/// A registration of four pages in a list, which zeroed memory follows. With one fault, it ends with an error status, and leaves the
/// region unchanged.
#[test]
fn bad_registrations() {
    let peers = || fast(4, 0);
    for line in include_str!("bad_registrations.txt").lines() {
        let (changes, name) = line.split_once(": ").expect(line);
        let status = named(CompStatus::ALL, name);
        let good = registration(&mut peers()).encode();
        for bad in changed(FastMrRegReq::FIELDS, good, changes) {
            let mut peers = peers();
            let good = Send::register(&registration(&mut peers));
            let bad = Send::register(&FastMrRegReq::decode(&bad));
            refused(&mut peers, &bad, status, line);
            assert!(!is_writable(&mut peers), "{line}");
            // The good registration still succeeds. Then the bad one fails as the region is registered, without effect.
            assert_eq!(outcome(&mut peers, &good), OK, "{line}");
            refused(&mut peers, &bad, KEY, line);
            assert!(is_writable(&mut peers), "{line}");
            assert_eq!(peers.protocol_errors(), 0, "{line}");
        }
    }
}

/// Lists must be aligned to 8 bytes, but may start at any such address in memory that is mapped.
#[test]
fn places_of_lists() {
    let mut peers = fast(2, 0);
    let good = registration(&mut peers);
    let list: [u8; 16] = peers.world(KERNEL, |world| world.entry(good.pbl));
    for offset in 1..=16 {
        let pbl = good.pbl + PAGE / 2 + offset;
        peers.world(KERNEL, |world| world.store(pbl, &list));
        let send = Send::register(&FastMrRegReq { pbl, ..good });
        if offset % 8 == 0 {
            assert_eq!(outcome(&mut peers, &send), OK);
            invalidate(&mut peers);
        } else {
            refused(&mut peers, &send, KEY, "an unaligned list");
        }
    }
    assert_eq!(peers.protocol_errors(), 0);
    for (errors, pbl) in (1..).zip([0, 0xdead_0000, good.pbl + PAGE - 8, !7]) {
        let bad = Send::register(&FastMrRegReq { pbl, ..good });
        refused(&mut peers, &bad, KEY, "a list in unmapped memory");
        assert_eq!(peers.protocol_errors(), errors, "{pbl:#x}");
    }
    assert_eq!(outcome(&mut peers, &Send::register(&good)), OK);
    assert!(is_writable(&mut peers));
    // The list is not needed after the registration.
    peers.world(KERNEL, |world| world.unmap(good.pbl & !(PAGE - 1)));
    assert!(is_writable(&mut peers));
}

/// A registered region can't be registered again, nor an unregistered one invalidated, nor any by a key of another generation.
#[test]
fn twice() {
    let mut peers = fast(1, 0);
    peers.regions[1].renew();
    let Region { lkey, rkey, .. } = peers.regions[1];
    let bad_keys = |peers: &mut Peers, keys: &[u32], what| {
        for key in keys {
            refused(peers, &Send::invalidate(*key), KEY, what);
        }
    };
    bad_keys(&mut peers, &[lkey], "an invalidation before any registration");
    register(&mut peers);
    let elsewhere = peers.net.elsewhere(&peers.regions[1]);
    for generation in 0..16 {
        let mut again = elsewhere.inline();
        again.lkey ^= generation << 20;
        refused(&mut peers, &Send::register(&again), KEY, "a second registration");
    }
    let others = (1..16).flat_map(|generation| [lkey, rkey].map(|key| key ^ (generation << 20)));
    let unused = [0, 999, lkey | (1 << 16), lkey | (1 << 24), u32::MAX];
    bad_keys(&mut peers, &others.collect::<Vec<_>>(), "a key of another generation");
    bad_keys(&mut peers, &unused, "an unused key");
    assert!(is_writable(&mut peers));
    invalidate(&mut peers);
    bad_keys(&mut peers, &[lkey, rkey], "a second invalidation");
    assert!(!is_writable(&mut peers));
    // A registration may reuse the key of the previous one.
    register(&mut peers);
    assert!(is_writable(&mut peers));
    assert_eq!(peers.protocol_errors(), 0);
}

/// A reserved bit that is not zero moves the queue pair to the error state, which flushes later work requests.
#[test]
fn malformed() {
    let reserved = [(4, 0x08), (4, 0x80), (5, 0x80), (6, 1), (7, 0x80)];
    let register_ = reserved.map(|(at, bit)| (OpType::FastReg, at, bit));
    let invalidate_ = [4, 5, 15, 31].map(|at| (OpType::FastInv, at, 1));
    for (operation, at, bit) in register_.into_iter().chain(invalidate_) {
        let mut peers = fast(1, 0);
        let invalidates = operation == OpType::FastInv;
        let good = Send::register(&registration(&mut peers));
        let invalidation = Send::invalidate(peers.regions[1].lkey);
        let mut bad = if invalidates { invalidation.clone() } else { good.clone() };
        if invalidates {
            register(&mut peers);
        }
        bad.body.as_mut().unwrap()[at] |= bit;
        let before = resources(&mut peers);
        for send in [bad, good, invalidation] {
            peers.net.put(&mut peers.qps[1], &send);
        }
        peers.net.ring_send(&peers.qps[1]);
        for (operation, expected) in [
            (operation, CompStatus::LocalQpInternalError),
            (OpType::FastReg, CompStatus::Flushed),
            (OpType::FastInv, CompStatus::Flushed),
        ] {
            let one = peers.wait(1);
            assert_eq!(one.flags.op_type, u8::from(operation));
            assert_eq!(status(&one), expected);
        }
        assert_eq!(resources(&mut peers), before);
        peers.qps[1] = peers.net.sibling(&peers.qps[1], QpType::Srd);
        assert_eq!(is_writable(&mut peers), invalidates);
        assert_eq!(peers.protocol_errors(), 0);
    }
}

#[test]
fn permissions() {
    for bits in 0..8 {
        let mut peers = fast(1, 0);
        let permissions = RegMrPermissions::from_raw(bits);
        let mut request = registration(&mut peers);
        request.permissions = permissions;
        let register = Send::register(&request);
        assert_eq!(outcome(&mut peers, &register), OK);
        assert_eq!(is_writable(&mut peers), permissions.remote_write_enable);
        let status = peers.outcome(&peers.read(8));
        assert_eq!(status == OK, permissions.remote_read_enable);
        let write = peers.write_back(8);
        let read = Send { operation: OpType::RdmaRead.into(), ..write.clone() };
        let status = outcome(&mut peers, &read);
        assert_eq!(status == OK, permissions.local_write_enable);
        // Sending from it needs none.
        assert_eq!(outcome(&mut peers, &write), OK);
        // A device without RDMA rejects permissions for it.
        invalidate(&mut peers);
        peers.set(KERNEL, r#"{"rdma_read":false,"rdma_write":false}"#);
        let expected = if bits & 6 == 0 { OK } else { UNSUPPORTED };
        assert_eq!(outcome(&mut peers, &register), expected);
    }
}

/// Pages larger than the host's.
#[test]
fn large_pages() {
    const SIZE: u64 = 4 * PAGE;
    let mut peers = fast(8, 0);
    // Two pages of 16 KiB: the region begins in the first and ends in the second.
    let (pages, list) = peers.world(KERNEL, |world| {
        let pages = [(); 2].map(|()| world.map(8).next_multiple_of(SIZE));
        (pages, page_list(world, &[pages[1], pages[0]]).address)
    });
    let offset = 12_000;
    let mut request = peers.regions[1].request(PblMode::Direct, list);
    request.flags.phys_page_size_shift = 14;
    request.iova += offset;
    request.mr_length = 20_000;
    assert_eq!(outcome(&mut peers, &Send::register(&request)), OK);
    peers.regions[1].iova = request.iova;
    peers.ends(&peers.write(20_000), OK);
    let (first, second) = ((SIZE - offset) as usize, (20_000 - (SIZE - offset)) as usize);
    let mut found = vec![0; 20_000];
    peers.world(KERNEL, |world| {
        world.load(pages[1] + offset, &mut found[..first]);
        world.load(pages[0], &mut found[first..][..second]);
    });
    assert!(found == peers.content(0, 0, 20_000));
}
