// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs that end: the transport holds little on their behalf, however many there are.

use std::{sync::Arc, time::Duration};

use efa_fabric::{Denied, PortId, Settings};
use efa_hw::admin::qp::{QpState, QpType};
use efa_model::Overrides;
use efa_testing::net::{Arrivals, DEPTH, Net, Qp, Region, Send};

/// Number of times that queue pairs end.
const CYCLES: usize = 20;

/// Messages and reads of a queue pair whose queue is full: half of the work requests are reads, which are both.
const OF_QUEUE: usize = DEPTH as usize * 3 / 2;

/// Returns two devices whose packets are lost, and a queue pair and a region of each.
fn denied() -> (Net, [(Qp, Region); 2]) {
    let (mut net, a, b) = Net::pair(Settings::default());
    let [from, to] = [a.port, b.port].map(|port| net.address(port).into());
    let both = true;
    net.fabric.set(Settings {
        deny: vec![Denied { from, to, both }],
        ..Settings::default()
    });
    let ends = [a, b].map(|qp| {
        let region = net.region(&qp, 1, 0);
        (qp, region)
    });
    (net, ends)
}

/// Fills the send queue with writes and reads, which the device fetches.
fn fill(net: &mut Net, qp: &mut Qp, own: &Region, (peer, theirs): &(Qp, Region)) {
    let sends = [
        Send::write(peer, own, theirs, 64),
        Send::read(peer, own, theirs, 64),
    ];
    for send in sends.iter().cycle().take(DEPTH.into()) {
        net.put(qp, send);
    }
    net.ring_send(qp);
    net.run();
}

#[test]
fn queue_pairs_that_are_reset() {
    let (mut net, [(mut qp, own), peer]) = denied();
    for cycle in 0..CYCLES {
        fill(&mut net, &mut qp, &own, &peer);
        assert_eq!(net.fabric.held(qp.port), OF_QUEUE, "after {cycle} cycles");
        net.modify(&mut qp, QpState::Reset);
        net.driver(qp.port, |driver| qp.start(driver));
    }
}

#[test]
fn queue_pairs_that_are_destroyed() {
    const MOST: usize = 3;
    let (mut net, [(first, own), peer]) = denied();
    let limit = Overrides {
        max_qp: Some(MOST as u32),
        ..Overrides::default()
    };
    net.set(first.port, limit);
    for cycle in 0..CYCLES {
        let mut qp = net.sibling(&first, QpType::Srd);
        fill(&mut net, &mut qp, &own, &peer);
        net.destroy(&qp);
        let held = net.fabric.held(PortId(0));
        assert!(held <= MOST * OF_QUEUE, "{held} after {cycle} cycles");
    }
}

#[test]
fn queue_pairs_with_packets_in_a_slow_network() {
    const MOST: usize = 32 << 10;
    let slow = Settings {
        delay_us: 10e6,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(slow);
    let arrived = Arc::new(Arrivals::default());
    net.fabric.set_tap(Arc::clone(&arrived) as _);
    let (own, theirs) = (net.region(&a, 64, 0), net.region(&b, 64, 0));
    let write = Send::write(&b, &own, &theirs, 256 << 10);
    for _ in 0..MOST / 200 {
        for _ in 0..DEPTH {
            net.put(&mut a, &write);
        }
        net.ring_send(&a);
        net.run();
        net.modify(&mut a, QpState::Reset);
        net.driver(a.port, |driver| a.start(driver));
    }
    net.run_for(Duration::from_secs(11));
    assert_eq!(arrived.take(), MOST);
}
