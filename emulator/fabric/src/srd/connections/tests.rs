// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Bounds, and turns to send.

use super::*;
use crate::{
    packet::{Subject, Verdict},
    srd::connection::tests::{self, qp, response},
};

const LIMITS: Limits = Limits { paths: 1, has_rate: false, ..tests::LIMITS };

#[test]
fn responses_to_peers_are_bounded_and_shared() {
    let (mut connections, now) = (Connections::default(), Duration::from_secs(1));
    let qp = qp();
    let most = |connections: &mut Connections, port| {
        let number = connections.open(now, qp, PortId(port), || 0).unwrap();
        let mut count = 0;
        while connections.can_respond(qp, PortId(port)) {
            connections.push(number, response(0), 1);
            count += 1;
        }
        count
    };
    // A single peer gets the maximum, which leaves a share for each later peer.
    assert_eq!(most(&mut connections, 0), MAX_RESPONSES);
    let counts: Vec<_> = (1..1000).map(|port| most(&mut connections, port)).collect();
    assert_eq!(counts[998], SHARED_RESPONSES / 1000);
    assert!(counts.iter().sum::<usize>() < 8 * SHARED_RESPONSES);
    // A peer that exceeds its reduced share has to wait.
    assert!(!connections.can_respond(qp, PortId(0)));
    // Without another connection, only peers that have one get responses.
    let last = MAX_CONNECTIONS - 1;
    for port in 1000..MAX_CONNECTIONS {
        assert!(connections.can_respond(qp, PortId(port)));
        connections.open(now, qp, PortId(port), || 0).unwrap();
    }
    let can_respond = [last, last + 1].map(|port| connections.can_respond(qp, PortId(port)));
    assert_eq!(can_respond, [true, false]);
}

/// Returns the numbers of responses, of responses by queue pair, and of packets in flight.
fn reads(connections: &Connections) -> (usize, usize, usize) {
    let responses = connections.responses.values().sum();
    let serving = connections.serving.values().sum();
    (responses, serving, connections.in_flight)
}

#[test]
fn a_failure_counts_as_a_response_until_the_peer_has_it() {
    let (mut connections, now) = (Connections::default(), Duration::from_secs(1));
    let peer = PortId(0);
    let number = connections.open(now, qp(), peer, || 0).unwrap();
    for request in 0..3 {
        connections.push(number, response(request), 2000);
    }
    for _ in 0..4 {
        connections.next(now, LIMITS).unwrap();
    }
    assert_eq!(reads(&connections), (3, 3, 4));
    // A failed response, then the end of the queue pair.
    connections.fail(now, number, 1, CompStatus::RemoteBadAddress);
    assert_eq!(reads(&connections), (3, 2, 2));
    connections.end_all(|_| true);
    assert_eq!(reads(&connections), (3, 2, 2));
    connections.end_all(|_| false);
    assert_eq!(reads(&connections), (3, 0, 0));
    let mut failures = Vec::new();
    while let Some((number, ..)) = connections.turn() {
        let Some(outgoing) = connections.next(now, LIMITS) else {
            continue;
        };
        let data = outgoing.data;
        let (_, header, _) = connections.find([0; 16], &data).unwrap();
        match header.subject {
            Subject::Failure { reader, status } => failures.push((reader.request, status)),
            other => panic!("{other:?}"),
        }
        assert!(connections.end(number));
        assert!(acknowledge(&mut connections, now, peer, (number, data.psn)).is_none());
    }
    let abort = u8::from(CompStatus::RemoteAbort);
    let bad = u8::from(CompStatus::RemoteBadAddress);
    assert_eq!(failures, [(1, bad), (0, abort), (2, abort)]);
    assert_eq!(reads(&connections), (0, 0, 0));
    connections.sweep(now, |_| false);
    assert_eq!(connections.len(), 0);
}

/// Sends what is possible; returns the numbers of new packets and of retransmissions.
fn send(connections: &mut Connections, now: Duration) -> (usize, usize) {
    let mut sent = (0, 0);
    while connections.has_work() && connections.turn().is_some() {
        match connections.next(now, LIMITS) {
            Some(outgoing) if outgoing.again => sent.1 += 1,
            Some(_) => sent.0 += 1,
            None => {}
        }
    }
    sent
}

/// Opens a connection to the device at `port`, with a message of many packets. Returns its number.
fn open(connections: &mut Connections, now: Duration, port: usize) -> u64 {
    let number = connections.open(now, qp(), PortId(port), || 0).unwrap();
    connections.push(number, response(0), 256_000);
    number
}

/// Acknowledges a packet of a connection.
fn acknowledge(
    connections: &mut Connections,
    now: Duration,
    peer: PortId,
    (connection, psn): (u64, u64),
) -> Option<Ended> {
    let verdict = Verdict::Delivered;
    let ack = Ack { connection, psn, verdict };
    connections.acknowledge(now, peer, &ack)
}

#[test]
fn peers_that_do_not_respond_leave_room_for_others() {
    const PEERS: usize = 1000;
    let (mut connections, mut now) = (Connections::default(), Duration::from_secs(1));
    let mut sent = 0;
    for port in 0..PEERS {
        open(&mut connections, now, port);
        let (new, again) = send(&mut connections, now);
        assert!(new > 0 && again == 0, "{port}");
        sent += new;
    }
    assert!((MAX_IN_FLIGHT..MAX_IN_FLIGHT + PEERS).contains(&sent));
    // Retransmissions need no room.
    for _ in 0..2 {
        now = connections.next_due().unwrap();
        assert_eq!(connections.expire(now).len(), PEERS);
        assert_eq!(send(&mut connections, now), (0, sent));
    }
    // The last one has no other packet in flight.
    let last = PEERS - 1;
    acknowledge(&mut connections, now, PortId(last), (last as u64, 0));
    assert_eq!(send(&mut connections, now), (1, 0));
}

#[test]
fn closed_connections_without_a_turn_are_forgotten() {
    let (mut connections, now) = (Connections::default(), Duration::from_secs(1));
    let mut port = 0;
    while connections.in_flight < MAX_IN_FLIGHT {
        open(&mut connections, now, port);
        port += 1;
        send(&mut connections, now);
    }
    let last = open(&mut connections, now, port);
    for port in port + 1..port + 4 * MAX_CONNECTIONS {
        let number = open(&mut connections, now, port);
        connections.close(number);
        assert!(connections.active.len() <= 2 * MAX_CONNECTIONS + 1);
    }
    acknowledge(&mut connections, now, PortId(0), (0, 0));
    assert_eq!(connections.turn().map(|(number, ..)| number), Some(last));
}

#[test]
fn closed_connection_has_no_turn() {
    let (mut connections, now) = (Connections::default(), Duration::from_secs(1));
    let numbers = [0, 1, 2].map(|port| open(&mut connections, now, port));
    connections.next(now, LIMITS).unwrap();
    connections.close(numbers[0]);
    connections.close(numbers[2]);
    // The turn of the remaining connection has just begun.
    for _ in 0..2 * TURN {
        let turn = connections.turn().map(|(number, ..)| number);
        assert_eq!(turn, Some(numbers[1]));
        connections.next(now, LIMITS).unwrap();
    }
    assert_eq!(connections.active.len(), 1);
    connections.close(numbers[1]);
    assert_eq!(connections.turn(), None);
    assert!(!connections.has_work());
}
