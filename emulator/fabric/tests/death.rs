// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages from and to a device that dies.

use std::time::Duration;

use efa_fabric::Settings;
use efa_hw::io::CompStatus;
use efa_model::Death;
use efa_testing::{
    mock::Driver,
    net::{Net, Qp, Region, Send, pattern},
};

/// Longer than the transport retries anything.
const LONG: Duration = Duration::from_secs(60);

fn die(net: &mut Net, qp: &Qp) {
    net.driver(qp.port, |driver| {
        let Driver {
            device, world, now, ..
        } = driver;
        let silent = Death {
            silent: true,
            ..Death::default()
        };
        device.die(world, *now, silent);
    });
}

/// Returns two queue pairs and the target region, with writes in flight from the first to the second over a slow network.
fn under_way() -> (Net, Qp, Qp, Region) {
    let slow = Settings {
        delay_us: 100.0,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(slow);
    let (from, to) = (net.region(&a, 16, 0), net.region(&b, 16, 0));
    let bytes = pattern(60_000, 1);
    net.fill(&from, 0, &bytes);
    for _ in 0..4 {
        net.post(&mut a, &Send::write(&b, &from, &to, 60_000));
    }
    net.run();
    (net, a, b, to)
}

#[test]
fn a_dead_sender_sends_and_completes_nothing() {
    let (mut net, mut a, mut b, to) = under_way();
    die(&mut net, &a);
    // Only packets that were sent before the death arrive.
    net.run_for(Duration::from_secs(1));
    let before = net.content(&to, 0, 60_000);
    net.run_for(LONG);
    assert_eq!(net.content(&to, 0, 60_000), before);
    assert_eq!((net.poll(&mut a), net.poll(&mut b)), (None, None));
    assert_eq!(net.run(), None);
}

#[test]
fn a_dead_receiver_accepts_and_acknowledges_nothing() {
    let (mut net, mut a, mut b, to) = under_way();
    die(&mut net, &b);
    assert_eq!(net.status(&mut a), CompStatus::LocalUnreachRemote);
    net.run_for(LONG);
    assert_eq!(net.content(&to, 0, 60_000), [0; 60_000]);
    assert_eq!(net.poll(&mut b), None);
}

#[test]
fn a_dead_reader_reads_nothing_and_soon_gets_no_packets() {
    let slow = Settings {
        delay_us: 100.0,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(slow);
    let (to, from) = (net.region(&a, 16, 0), net.region(&b, 16, 0));
    net.fill(&from, 0, &pattern(60_000, 1));
    net.post(&mut a, &Send::read(&b, &to, &from, 60_000));
    net.run_for(Duration::from_micros(150));
    die(&mut net, &a);
    net.run_for(LONG);
    assert_eq!(net.content(&to, 0, 60_000), [0; 60_000]);
    assert_eq!(net.poll(&mut a), None);
}

#[test]
fn a_dead_responder_sends_no_failure() {
    let slow = Settings {
        delay_us: 100.0,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(slow);
    let (to, from) = (net.region(&a, 600, 0), net.region(&b, 600, 0));
    net.post(&mut a, &Send::read(&b, &to, &from, 600 * 4096));
    net.run_for(Duration::from_micros(250));
    die(&mut net, &b);
    assert_eq!(net.status(&mut a), CompStatus::LocalUnrespRemote);
}
