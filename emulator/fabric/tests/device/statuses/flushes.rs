// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs and regions that end before their work requests.

use super::*;

#[test]
fn queue_pairs_in_error_flush() {
    let mut peers = ideal();
    peers.receive(&[(0, 8), (0, 8)]);
    peers.ready(8);
    // A third queue pair is not ready to receive.
    let mut third = peers.qp(1, QpType::Srd);
    let Peers { net, qps, regions } = &mut peers;
    net.introduce(&mut qps[0], &mut third);
    let place = (0, 8, regions[1].lkey);
    let message = Send::message(&third, &regions[0], 8);
    for _ in 0..3 {
        peers.post(&message);
    }
    peers.run();
    assert_eq!(peers.polled(0), []);
    [0, 1].map(|at| peers.modify(at, QpState::Err));
    assert_eq!(peers.all(0), [0, 1, 2].map(|id| (id, FLUSHED)));
    assert_eq!(peers.all(1), [0x8000, 0x8002].map(|id| (id, FLUSHED)));
    // Later work requests are flushed, too.
    peers.ends(&message, FLUSHED);
    peers.ready(8);
    assert_eq!(peers.status(1), FLUSHED);
    // The receiver is ready now, but no message arrives.
    peers.net.receive(&mut third, &[place]);
    assert_eq!(peers.all(0), []);
    assert_eq!(peers.net.poll(&mut third), None);
    assert!(peers.are_untouched());
}

#[test]
fn a_queue_pair_that_is_destroyed_is_flushed() {
    for flush in [true, false] {
        let mut peers = ideal();
        peers.set(PortId(0), &format!(r#"{{"flush_on_destroy":{flush}}}"#));
        for _ in 0..2 {
            peers.post(&peers.message(8));
            peers.run();
        }
        let Peers { net, qps, .. } = &mut peers;
        let received = net.receive(&mut qps[0], &[(0, 0, 0)]);
        net.destroy(&qps[0]);
        // The completions precede that of the command.
        let flushed = [0, 1, received].map(|id| (id, FLUSHED));
        assert_eq!(peers.polled(0), flushed[..if flush { 3 } else { 0 }]);
        assert_eq!(peers.all(0), []);
        assert!(peers.are_untouched());
    }
}

/// Memory of neither side is used after the device has completed its deregistration.
#[test]
fn regions_of_running_transfers_can_be_deregistered() {
    const LENGTH: usize = 600 * PAGE as usize;
    for (at, expected) in [CompStatus::LocalInvalidLkey, CompStatus::RemoteBadAddress].into_iter().enumerate() {
        let mut peers = Peers::of(delay(50.0), QpType::Srd, 600);
        peers.post(&peers.write(LENGTH as u32));
        peers.run_for(Duration::from_micros(120));
        let lkey = peers.regions[at].lkey;
        peers.deregister(PortId(at), lkey).unwrap();
        let before = peers.content(1, 0, LENGTH);
        assert_eq!(peers.status(0), expected);
        assert_eq!(peers.content(1, 0, LENGTH), before);
    }
}
