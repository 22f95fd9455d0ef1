// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs that end: the transport holds little on their behalf, however many there are.

use super::*;

/// Number of times that queue pairs end.
const CYCLES: usize = 20;

/// Messages and reads of a queue pair whose queue is full: half of the work requests are reads, which are both.
const OF_QUEUE: usize = DEPTH as usize * 3 / 2;

/// Returns peers whose packets are lost.
fn denied() -> Peers {
    let mut peers = Peers::of(Settings::default(), QpType::Srd, 1);
    let settings = denying(&Settings::default(), &mut peers, 0, true);
    peers.fabric.set(settings);
    peers
}

/// Fills the send queue with writes and reads, which the device fetches.
fn fill(peers: &mut Peers) {
    for _ in 0..DEPTH / 2 {
        peers.put(&peers.write(64));
        peers.put(&peers.read(64));
    }
    peers.ring();
    peers.run();
}

#[test]
fn queue_pairs_that_are_reset() {
    let mut peers = denied();
    for cycle in 0..CYCLES {
        fill(&mut peers);
        let held = peers.fabric.held(PortId(0));
        assert_eq!(held, OF_QUEUE, "after {cycle} cycles");
        peers.modify(0, QpState::Reset);
        peers.start(0);
    }
}

#[test]
fn queue_pairs_that_are_destroyed() {
    const MOST: usize = 3;
    let mut peers = denied();
    peers.set(PortId(0), &format!(r#"{{"max_qp":{MOST}}}"#));
    for cycle in 0..CYCLES {
        let next = peers.net.sibling(&peers.qps[0], QpType::Srd);
        let last = std::mem::replace(&mut peers.qps[0], next);
        peers.net.destroy(&last);
        fill(&mut peers);
        let held = peers.fabric.held(PortId(0));
        assert!(held <= MOST * OF_QUEUE, "{held} after {cycle} cycles");
    }
}

#[test]
fn queue_pairs_with_packets_in_a_slow_network() {
    const MOST: usize = 32 << 10;
    let mut peers = Peers::of(delay(10e6), QpType::Srd, 64);
    let arrived = Arc::new(Arrivals::default());
    peers.fabric.set_tap(Arc::clone(&arrived) as _);
    let write = peers.write(256 << 10);
    for _ in 0..MOST / 200 {
        for _ in 0..DEPTH {
            peers.put(&write);
        }
        peers.ring();
        peers.run();
        peers.modify(0, QpState::Reset);
        peers.start(0);
    }
    peers.run_for(Duration::from_secs(11));
    assert_eq!(arrived.take(), MOST);
}
