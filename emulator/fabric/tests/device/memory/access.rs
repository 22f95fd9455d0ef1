// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Regions of others, of programs without privileges, and of bus addresses.

use super::*;

/// These work requests can't use regions of other protection domains, nor other kinds of regions.
#[test]
fn regions_of_others() {
    let mut peers = fast(1, 0);
    let own = peers.regions[1].clone();
    let other = peers.qp(1, QpType::Srd);
    let foreign = peers.fast_region(&other, 1, 0);
    let Peers { net, qps: [a, b], .. } = &mut peers;
    let listed = net.region(b, 1, 0);
    let physical = net.physical_region(b, own.pages[0], PAGE, ALL_PERMISSIONS);
    let reader = net.region(a, 1, 0);
    for (region, what) in
        [(&foreign, "a region of another domain"), (&listed, "a region of REG_MR"), (&physical, "a physical region")]
    {
        let mut request = own.inline();
        request.lkey = region.lkey;
        refused(&mut peers, &Send::register(&request), KEY, what);
        for key in [region.lkey, region.rkey] {
            refused(&mut peers, &Send::invalidate(key), KEY, what);
        }
    }
    peers.regions[1] = listed;
    assert!(is_writable(&mut peers));
    peers.regions[1] = own;
    register(&mut peers);
    // A queue pair of another domain can't invalidate the region, but another one of the same domain can use and invalidate it.
    let invalidation = Send::invalidate(peers.regions[1].lkey);
    let first = std::mem::replace(&mut peers.qps[1], other);
    refused(&mut peers, &invalidation, KEY, "another domain");
    peers.qps[1] = peers.net.sibling(&first, QpType::Srd);
    assert!(is_writable(&mut peers));
    let bytes = peers.content(1, 0, 100);
    let write = Send::write(&peers.qps[0], &peers.regions[1], &reader, 100);
    assert_eq!(outcome(&mut peers, &write), OK);
    assert_eq!(peers.net.content(&reader, 0, 100), bytes);
    invalidate(&mut peers);
    assert!(!is_writable(&mut peers));
    assert_eq!(peers.protocol_errors(), 0);
}

/// Queue pairs of programs, and others that do not support fast registration.
#[test]
fn unprivileged() {
    let mut peers = Peers::new(Settings::default());
    // A program's domain has no region except those of REG_MR.
    let kernel = peers.qp(1, QpType::Srd);
    let fast = peers.fast_region(&kernel, 1, 0);
    assert_eq!(resources(&mut peers).privileged_pd, 1);
    let mut request = fast.inline();
    for key in [fast.lkey, peers.regions[1].lkey, 0] {
        request.lkey = key;
        for send in [Send::register(&request), Send::invalidate(key)] {
            refused(&mut peers, &send, UNSUPPORTED, "a program's queue pair");
        }
    }
    // Malformed work requests have this status, too.
    let mut invalid = Send::register(&request);
    invalid.body = Some([0xff; 32]);
    refused(&mut peers, &invalid, UNSUPPORTED, "a malformed work request");
    assert!(is_writable(&mut peers));

    // Either kind of region makes its domain privileged, which remains so after the region's deregistration.
    let Peers { net, qps: [_, b], .. } = &mut peers;
    let region = net.physical_region(b, PAGE, PAGE, ALL_PERMISSIONS);
    net.deregister(KERNEL, region.lkey).unwrap();
    let own = net.fast_region(b, 1, 0);
    let datagrams = net.sibling(b, QpType::Ud);
    assert_eq!(resources(&mut peers).privileged_pd, 2);
    refused(&mut peers, &Send::invalidate(1), KEY, "the kernel's queue pair");

    // UD queue pairs, and devices without fast registration.
    let register = Send::register(&own.inline());
    let reliable = std::mem::replace(&mut peers.qps[1], datagrams);
    refused(&mut peers, &register, UNSUPPORTED, "UD");
    peers.qps[1] = reliable;
    let (mut with_immediate, mut inline) = (register.clone(), register.clone());
    with_immediate.immediate = Some(1);
    refused(&mut peers, &with_immediate, UNSUPPORTED, "immediate data");
    inline.inline = Some(Vec::new());
    refused(&mut peers, &inline, UNSUPPORTED, "inline data");
    peers.set(KERNEL, r#"{"fast_mr":false}"#);
    refused(&mut peers, &register, UNSUPPORTED, "a device without fast registration");
    peers.driver(KERNEL, |driver| driver.device.clear());
    assert_eq!(outcome(&mut peers, &register), OK);
    assert_eq!(peers.protocol_errors(), 0);
}

/// Regions of bus addresses, used by queue pairs and by peers.
#[test]
fn physical_regions() {
    let mut peers = Peers::of(Settings::default(), QpType::Srd, 3);
    let memory = peers.regions[1].clone();
    let Peers { net, qps: [a, b], regions: [theirs, _] } = &mut peers;
    let dma = net.physical_region(b, 0, 1 << 48, ALL_PERMISSIONS);
    let page = memory.pages[1];
    let small = net.physical_region(b, page, PAGE, ALL_PERMISSIONS);
    let inaccessible = net.physical_region(b, page, PAGE, RegMrPermissions::default());
    // The middle page of the memory is at these bus addresses.
    let starting_at = |region: &Region, iova| Region { iova, ..region.clone() };
    let (at, nowhere) = (|offset| starting_at(&dma, page + offset), starting_at(&dma, 0xdead_0000));
    let back = Send::write(a, &at(0), theirs, 4096);
    let nothing = Send::write(a, &nowhere, theirs, 100);
    let into = Send::read(a, &inaccessible, theirs, 16);
    let counts = resources(&mut peers);
    assert_eq!((counts.physical_mr, counts.mr_pages), (3, 3));
    assert_eq!(outcome(&mut peers, &back), OK);
    let content = peers.net.content(&memory, 4096, 4096);
    assert!(peers.content(0, 0, 4096) == content);

    peers.fill(0, &pattern(4000, 2));
    peers.regions[1] = at(96);
    peers.ends(&peers.write(4000), OK);
    assert!(peers.net.content(&memory, 4096 + 96, 4000) == pattern(4000, 2));
    peers.regions[1] = at(0);
    peers.ends(&peers.read(96), OK);
    assert!(peers.content(0, 0, 96) == content[..96]);

    // Addresses without memory, beyond a region of one page, and of one without permissions.
    let before = peers.net.content(&memory, 0, 3 * 4096);
    for (region, length) in [
        (nowhere, 100),
        (starting_at(&small, page - 1), 2),
        (starting_at(&small, page + PAGE - 1), 2),
        (starting_at(&small, page + PAGE), 1),
        (inaccessible, 16),
    ] {
        peers.regions[1] = region;
        peers.ends(&peers.write(length), ADDRESS);
    }
    assert_eq!(outcome(&mut peers, &nothing), KEY);
    assert_eq!(outcome(&mut peers, &into), KEY);
    // Queue pairs of programs can't use their keys.
    let mut program = peers.qp(1, QpType::Srd);
    program.ah = peers.handle(&program, PortId(0));
    assert_eq!(peers.net.outcome(&mut program, &back), KEY);
    assert!(peers.net.content(&memory, 0, 3 * 4096) == before);
}

/// The newest devices also support work requests of 64 bytes.
#[test]
fn profiles() {
    for profile in [Profile::Efa2, Profile::Efa3, Profile::Efa4] {
        let net = Net::new(&[profile; 2], Settings::default());
        let mut peers = Peers::on(net, [Shape::new(QpType::Srd, 64); 2], [(1, 0); 2]);
        peers.regions[1] = peers.net.fast_region(&peers.qps[1], 1, 0);
        register(&mut peers);
        assert!(is_writable(&mut peers));
        invalidate(&mut peers);
        assert!(!is_writable(&mut peers));
        assert_eq!(peers.protocol_errors(), 0);
    }
}

/// The trace has a line for each of these work requests, also for those without effect.
#[test]
fn trace() {
    let mut peers = fast(2, 5);
    peers.regions[1].renew();
    let direct = registration(&mut peers);
    let mut inline = peers.regions[1].inline();
    (inline.permissions, inline.mr_length) = (RegMrPermissions::default(), 100);
    let mut unsupported = inline;
    unsupported.flags.pbl_mode = 3;
    let key = peers.regions[1].lkey;
    peers.world(KERNEL, |world| world.trace.clear());
    for send in [Send::register(&inline), Send::register(&direct), Send::invalidate(key), Send::register(&unsupported)]
    {
        outcome(&mut peers, &send);
    }
    let (qp, page, pbl) = (peers.qps[1].number, inline.pbl, direct.pbl);
    let start = format!("sq {qp} FAST_REG(lkey={key:#x}, ");
    let all = "permissions=local_write_enable+remote_write_enable+remote_read_enable, ";
    let rest = "iova=0x7f0000000005, mr_length";
    let size = "phys_page_size_shift=12";
    let lines = [
        format!("{start}{size}, pbl_mode=INLINE_PBL, {rest}=100, pbl={page:#x}) = OK"),
        format!("{start}{all}{size}, pbl_mode=DIRECT_PBL, {rest}=8187, pbl={pbl:#x}) = LOCAL_ERROR_INVALID_LKEY"),
        format!("sq {qp} FAST_INV(lkey={key:#x}) = OK"),
        format!("{start}{size}, pbl_mode=3, {rest}=100, pbl={page:#x}) = LOCAL_ERROR_UNSUPPORTED_OP"),
    ];
    assert_eq!(peers.world(KERNEL, |world| world.trace.clone()), lines);
}
