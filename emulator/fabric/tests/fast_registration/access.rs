// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Regions of others, of programs without privileges, and of bus addresses.

use efa_fabric::Settings;
use efa_hw::{
    admin::{mr::RegMrPermissions, qp::QpType},
    io::FastMrRegReq,
};
use efa_model::{Overrides, Profile};
use efa_testing::net::{ALL_PERMISSIONS, Net, PAGE, Send, pattern};

use super::{
    ADDRESS, KEY, OK, UNSUPPORTED, deregister, fast_pair, is_writable, refused, resources,
    starting_at,
};

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
    let start = format!("sq {qp} FAST_REG(lkey={key:#x}, ");
    let all = "permissions=local_write_enable+remote_write_enable+remote_read_enable, ";
    let rest = "iova=0x7f0000000005, mr_length";
    let lines = [
        format!(
            "{start}phys_page_size_shift=12, pbl_mode=INLINE_PBL, {rest}=100, pbl={page:#x}) = OK"
        ),
        format!(
            "{start}{all}phys_page_size_shift=12, pbl_mode=DIRECT_PBL, {rest}=8187, pbl={:#x}) = LOCAL_ERROR_INVALID_LKEY",
            direct.pbl
        ),
        format!("sq {qp} FAST_INV(lkey={key:#x}) = OK"),
        format!(
            "{start}phys_page_size_shift=12, pbl_mode=3, {rest}=100, pbl={page:#x}) = LOCAL_ERROR_UNSUPPORTED_OP"
        ),
    ];
    let trace = net.world(a.port, |world| world.trace.clone());
    assert_eq!(trace, lines);
}
