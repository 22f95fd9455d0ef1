// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Losses, silent peers, and the end of messages.

use efa_hw::io::CompStatus;

use super::*;
use crate::packet::Reader;

pub(in crate::srd) const LIMITS: Limits =
    Limits { paths: 2, multipath: true, has_rate: true, mtu: 1000, silence: Duration::from_secs(2) };

const ROUND_TRIP: Duration = Duration::from_micros(20);

/// Returns a connection with a message of `packets` packets.
fn connection(packets: u32) -> Connection {
    let mut connection = Connection::new(7, PortId(3), qp(), 0);
    connection.push(response(0), packets * LIMITS.mtu);
    connection
}

pub(in crate::srd) fn qp() -> QpId {
    serde_json::from_str(r#"{"number":1,"incarnation":1}"#).unwrap()
}

pub(in crate::srd) fn response(request: u64) -> Content {
    let (reader, memory) = (Reader { qp: qp(), request }, (0, 0));
    Content::Response { reader, memory }
}

fn send(connection: &mut Connection, now: Duration) -> Vec<(u64, u16)> {
    let next = || connection.next(now, LIMITS, usize::MAX);
    let sent = std::iter::from_fn(next);
    sent.map(|outgoing| (outgoing.data.psn, outgoing.path)).collect()
}

#[test]
fn a_failure_that_the_peer_refuses_is_sent_again_after_the_end() {
    let mut connection = connection(1);
    let now = Duration::from_secs(1);
    let reader = Reader { qp: connection.qp, request: 0 };
    let status = CompStatus::RemoteBadAddress;
    connection.push(Content::Failure { reader, status }, 0);
    assert_eq!(send(&mut connection, now).len(), 2);
    connection.not_ready(now, 1);
    assert_eq!(connection.end().len(), 1);
    let due = connection.next_due().unwrap();
    connection.expire(due, LIMITS.silence);
    assert_eq!(send(&mut connection, due).len(), 1);
}

#[test]
fn a_packet_overtaken_on_its_path_is_retransmitted_early() {
    let mut connection = connection(100);
    let mut shortest = None;
    let start = Duration::from_secs(1);
    let first = send(&mut connection, start);
    assert_eq!(first, [(0, 1), (1, 0), (2, 1), (3, 0)]);
    // The first packet on path 1 is lost. Acknowledgements of packets on path 0 do not show this.
    let mut now = start + ROUND_TRIP;
    connection.delivered(now, 1, &mut shortest);
    connection.delivered(now, 2, &mut shortest);
    connection.delivered(now, 3, &mut shortest);
    // All were sent at the same time, so none was overtaken.
    assert!(connection.next_due().unwrap() > now + Duration::from_millis(1));
    let next = send(&mut connection, now);
    let other = next.iter().find(|(_, path)| *path == 0).unwrap().0;
    let same = next.iter().find(|(_, path)| *path == 1).unwrap().0;
    now += ROUND_TRIP;
    connection.delivered(now, other, &mut shortest);
    assert!(connection.next_due().unwrap() > now + Duration::from_millis(1));
    connection.delivered(now, same, &mut shortest);
    let due = connection.next_due().unwrap();
    assert!(due <= start + 5 * ROUND_TRIP, "{due:?}");
    let expired = connection.expire(due, LIMITS.silence);
    assert_eq!((expired.timeouts, expired.impaired), (1, 0));
    assert_eq!(send(&mut connection, due)[0].0, 0);
}

#[test]
fn lost_packets_are_retransmitted_within_the_window() {
    let mut connection = connection(100);
    let mut now = Duration::from_secs(1);
    let first = send(&mut connection, now);
    for (psn, _) in &first {
        connection.delivered(now + ROUND_TRIP, *psn, &mut None);
    }
    now += ROUND_TRIP;
    let lost = send(&mut connection, now).len();
    assert!(lost > first.len());
    now += 100 * ROUND_TRIP;
    assert_eq!(connection.expire(now, LIMITS.silence).timeouts as usize, lost);
    let again = send(&mut connection, now);
    assert!((1..lost).contains(&again.len()), "{again:?}");
    // Packets that arrive make room for others.
    for (psn, _) in &again[..2] {
        connection.delivered(now + ROUND_TRIP, *psn, &mut None);
    }
    let next = send(&mut connection, now + ROUND_TRIP);
    assert_eq!(next[0].0, again.last().unwrap().0 + 1);
}

#[test]
fn an_idle_connection_has_no_memory() {
    let mut connection = connection(3);
    let now = Duration::from_secs(1);
    for (psn, _) in send(&mut connection, now) {
        connection.delivered(now + ROUND_TRIP, psn, &mut None);
    }
    assert!(connection.is_idle());
    assert_eq!(connection.in_flight.in_transit(), 0);
    assert_eq!(connection.unsent.capacity(), 0);
    assert_eq!(connection.next_due(), None);
}

#[test]
fn a_window_below_a_packet_is_paced() {
    let mut connection = connection(100);
    let mut now = Duration::from_secs(1);
    for (psn, _) in send(&mut connection, now) {
        connection.delivered(now + ROUND_TRIP, psn, &mut None);
    }
    now += ROUND_TRIP;
    for _ in 0..20 {
        now += 2 * ROUND_TRIP;
        connection.window.lost(now);
    }
    let sent = send(&mut connection, now);
    assert_eq!(sent.len(), 1);
    connection.delivered(now + ROUND_TRIP, sent[0].0, &mut None);
    now += ROUND_TRIP;
    assert!(send(&mut connection, now).is_empty());
    let due = connection.next_due().unwrap();
    assert!(due > now);
    connection.expire(due, LIMITS.silence);
    assert_eq!(connection.next_due(), None);
    assert_eq!(send(&mut connection, due).len(), 1);
}
