// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How work requests fail, for each status that exists. None of them moves a byte.

mod flushes;
mod peers;
mod requests;

use efa_fabric::{PortId, Settings};
use efa_hw::{
    admin::{ah::DestroyAh, mr::DeregMr},
    io::CompStatus,
};
use efa_testing::net::{Net, Qp, Region, Send, pattern};

/// Returns two queue pairs with a region each, filled with different patterns.
fn set() -> (Net, Qp, Qp, Region, Region) {
    let (mut net, a, b) = Net::pair(Settings::default());
    let (from, to) = (net.region(&a, 4, 0), net.region(&b, 4, 0));
    net.fill(&to, 0, &pattern(4 * 4096, 9));
    net.fill(&from, 0, &pattern(4 * 4096, 10));
    (net, a, b, from, to)
}

fn assert_untouched(net: &mut Net, from: &Region, to: &Region) {
    assert_eq!(net.content(to, 0, 4 * 4096), pattern(4 * 4096, 9));
    assert_eq!(net.content(from, 0, 4 * 4096), pattern(4 * 4096, 10));
}

/// Posts a faulty work request. It must end with this status, change no memory, and leave the queue pair usable.
fn refused(what: &str, expected: CompStatus, change: impl FnOnce(&mut Net, &Qp, &Qp, &mut Send)) {
    let (mut net, mut a, mut b, from, to) = set();
    let mut send = Send::write(&b, &from, &to, 100);
    change(&mut net, &a, &b, &mut send);
    net.post(&mut a, &send);
    assert_eq!(net.status(&mut a), expected, "{what}");
    assert_eq!(net.poll(&mut b), None, "{what}");
    assert_untouched(&mut net, &from, &to);
    let again = net.region(&b, 1, 0);
    a.ah = net.handle(&a, b.port);
    net.handle(&b, a.port);
    net.post(&mut a, &Send::write(&b, &from, &again, 100));
    assert_eq!(net.status(&mut a), CompStatus::Ok, "after {what}");
    assert_eq!(net.protocol_errors(), 0, "{what}");
}

/// As [`refused`], if the change is one of the work request.
fn refused_send(what: &str, expected: CompStatus, change: impl FnOnce(&mut Send)) {
    refused(what, expected, |_, _, _, send| change(send));
}

fn deregister(net: &mut Net, port: PortId, l_key: u32) {
    net.driver(port, |driver| driver.execute(&DeregMr { l_key }))
        .unwrap();
}

/// Destroys the address handle that a queue pair uses.
fn destroy_handle(net: &mut Net, qp: &Qp) {
    let (ah, pd) = (qp.ah, qp.pd);
    net.driver(qp.port, |driver| driver.execute(&DestroyAh { ah, pd }))
        .unwrap();
}

/// The guide lists all statuses, with the test of each.
#[test]
fn every_status_has_a_source_and_a_test() {
    let tests = concat!(
        include_str!("flushes.rs"),
        include_str!("peers.rs"),
        include_str!("requests.rs"),
    );
    let guide = include_str!("../../../../Documentation/emulator.md");
    let statuses = (0..=u8::MAX).filter_map(|code| Some((code, CompStatus::try_from(code).ok()?)));
    for (code, status) in statuses.filter(|(code, _)| *code > 0) {
        let start = format!("| {code} | `{status}` |");
        let mut rows = guide.lines().filter(|line| line.starts_with(&start));
        let row = rows
            .next()
            .unwrap_or_else(|| panic!("no row begins with {start}"));
        let test = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
        let test = format!("fn {}()", test.trim_matches('`'));
        assert!(tests.contains(&test), "{row}");
        assert_eq!(rows.count(), 0, "{start}");
    }
}
