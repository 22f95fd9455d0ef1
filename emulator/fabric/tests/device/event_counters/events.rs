// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Each event is counted once, on networks of all kinds, before its completion is visible.

use super::*;

/// Number of occurrences of each event.
type Counts = [u64; 10];

/// Returns counts in which only these events are not zero.
fn counts(events: &[(usize, u64)]) -> Counts {
    let mut counts = Counts::default();
    for (event, count) in events {
        counts[*event] += count;
    }
    counts
}

/// Two queue pairs with an event counter for each event.
struct Counted {
    peers: Peers,
    places: [Vec<u64>; 2],
}

impl Counted {
    fn new(settings: Settings) -> Self {
        Self::of(settings, Shape::new(QpType::Srd, 128))
    }

    fn of(settings: Settings, shape: Shape) -> Self {
        let mut peers = Peers::with(settings, [shape; 2], [(4, 0); 2]);
        let events: Vec<_> = (0..10).map(|bit| 1 << bit).collect();
        let places = [0, 1].map(|at| peers.net.count(&mut peers.qps[at], &events));
        Self { peers, places }
    }

    /// Returns two ends, with work requests of all kinds in flight from the first to the second.
    fn under_way() -> Self {
        let mut ends = Self::new(delay(1000.0));
        ends.post_all_kinds(0, &mut [Counts::default(); 2]);
        ends
    }

    fn values(&mut self, at: usize) -> Counts {
        let port = self.peers.qps[at].port;
        let values = self.peers.net.values(port, &self.places[at]);
        values.try_into().unwrap()
    }

    /// Advances time until both queue pairs have these counts, for at most 4 s; checks them.
    #[track_caller]
    fn settle(&mut self, expected: [Counts; 2]) {
        let wrapped = expected.map(|counts| counts.map(|count| count % (MOST + 1)));
        for _ in 0..4000 {
            self.peers.run_for(Duration::from_millis(1));
            if [0, 1].map(|at| self.values(at)) == wrapped {
                break;
            }
        }
        assert_eq!([0, 1].map(|at| self.values(at)), wrapped);
    }

    fn receive(&mut self, at: usize, length: u16) {
        let Peers { net, qps, regions } = &mut self.peers;
        let (iova, lkey) = (regions[at].iova, regions[at].lkey);
        net.receive(&mut qps[at], &[(iova, length, lkey)]);
    }

    /// Fills a send queue with work requests of all kinds; adds the events at both ends to their counts.
    fn post_all_kinds(&mut self, from: usize, counts: &mut [Counts; 2]) {
        let to = 1 - from;
        let Peers { net, qps, regions } = &mut self.peers;
        for number in 0..u32::from(DEPTH) {
            let kind = number % 6;
            // Some writes and reads have no bytes.
            let length = if kind < 4 { number * 37 % 1000 } else { 0 };
            let write = Send::write(&qps[to], &regions[from], &regions[to], length);
            let (mut send, own, remote): (_, _, &[usize]) = match kind {
                0 => {
                    let message = Send::message(&qps[to], &regions[from], length % 256);
                    (message, SEND_COMP, &[RECV_COMP])
                }
                1 | 5 => (write, WRITE_COMP, &[REMOTE_WRITE]),
                2 => (write, WRITE_COMP, &[REMOTE_WRITE, RECV_COMP]),
                _ => {
                    let read = Send::read(&qps[to], &regions[from], &regions[to], length);
                    (read, READ_COMP, &[REMOTE_READ])
                }
            };
            send.immediate = (kind == 2).then_some(number);
            send.silent = number % 2 == 0;
            net.put(&mut qps[from], &send);
            counts[from][own] += 1;
            remote.iter().for_each(|event| counts[to][*event] += 1);
        }
        net.ring_send(&qps[from]);
    }
}

#[test]
fn each_event_is_counted_once() {
    /// Number of rounds. In each, both ends fill their send queues.
    const ROUNDS: u32 = 80;

    let perfect = ("an ideal network", Settings::default());
    for (name, settings) in networks().into_iter().chain([perfect]) {
        let mut ends = Counted::new(settings);
        // With a small MTU, short transfers have several packets.
        [0, 1].map(|port| ends.peers.set(PortId(port), r#"{"mtu":256}"#));
        let mut expected = [Counts::default(); 2];
        for round in 0..ROUNDS {
            [0, 1].map(|at| ends.post_all_kinds(at, &mut expected));
            if round % 8 == 0 {
                // The receivers are not ready at first.
                ends.peers.run_for(Duration::from_micros(700));
            }
            for _ in 0..22 {
                [0, 1].map(|at| ends.receive(at, 256));
            }
            ends.settle(expected);
        }
        ends.peers.run_for(Duration::from_secs(10));
        ends.settle(expected);
        // Both ends have the same counts, and the counters have wrapped.
        let [own, others] = expected;
        assert_eq!(own, others, "{name}");
        let total = own[SEND_COMP] + own[READ_COMP] + own[WRITE_COMP];
        assert_eq!(total, u64::from(ROUNDS) * u64::from(DEPTH), "{name}");
        assert!(own[REMOTE_READ] > MOST && own[REMOTE_WRITE] > MOST, "{name}");
        assert_eq!(ends.peers.protocol_errors(), 0, "{name}");
    }
}

#[test]
fn failures_are_counted_as_such() {
    let mut ends = Counted::new(Settings::default());
    // An address handle, and a destination queue pair, that do not exist.
    for send in failing() {
        ends.peers.ends(&send, CompStatus::LocalInvalidAh);
    }
    let mut send = ends.peers.message(8);
    send.peer_qp = 99;
    ends.peers.ends(&send, CompStatus::RemoteBadDestQpn);
    // The receive buffer is too short: both work requests fail.
    ends.peers.ready(4);
    let send = ends.peers.message(8);
    ends.peers.ends(&send, CompStatus::RemoteBadLength);
    // The region ends before the write and the read do, or is unmapped before the peer sends it.
    let length = 4 * PAGE as u32;
    for mut send in [ends.peers.write(length), ends.peers.read(length)] {
        send.remote.as_mut().unwrap().0 += 100;
        ends.peers.ends(&send, CompStatus::RemoteBadAddress);
    }
    let theirs = ends.peers.regions[1].clone();
    ends.peers.unmap(&theirs);
    let read = ends.peers.read(3 * PAGE as u32);
    ends.peers.ends(&read, CompStatus::LocalInvalidLkey);
    ends.peers.run_for(Duration::from_secs(10));
    let mut ours = counts(&[(SEND_ERR, 3), (WRITE_ERR, 2), (READ_ERR, 3)]);
    ends.settle([ours, counts(&[(RECV_ERR, 1)])]);
    // Flushed work requests are errors, too, also those that are posted later.
    ends.receive(0, 8);
    ends.peers.modify(0, QpState::Err);
    ends.peers.polled(0);
    for send in failing() {
        ends.peers.ends(&send, CompStatus::Flushed);
    }
    for (event, count) in [(SEND_ERR, 1), (WRITE_ERR, 1), (READ_ERR, 1), (RECV_ERR, 1)] {
        ours[event] += count;
    }
    ends.settle([ours, counts(&[(RECV_ERR, 1)])]);
    assert_eq!(ends.peers.protocol_errors(), 0);
}

/// A malformed descriptor of a receive queue, or work request of a send queue, moves its queue pair to the error state.
#[test]
fn malformed_work_requests_are_counted() {
    let mut ends = Counted::new(Settings::default());
    ends.receive(1, 100);
    let Peers { net, qps, .. } = &mut ends.peers;
    net.corrupt_receive(&qps[1]);
    let send = ends.peers.message(8);
    ends.peers.post(&send);
    let theirs = counts(&[(RECV_ERR, 1)]);
    ends.settle([counts(&[(SEND_ERR, 1)]), theirs]);
    ends.receive(0, 100);
    let Peers { net, qps, .. } = &mut ends.peers;
    net.put_raw(&mut qps[0], &[]);
    net.put_raw(&mut qps[0], &[]);
    ends.peers.ring();
    ends.settle([counts(&[(SEND_ERR, 3), (RECV_ERR, 1)]), theirs]);
}

#[test]
fn work_requests_in_flight_are_flushed_when_a_queue_pair_fails() {
    let mut ends = Counted::under_way();
    ends.receive(0, 8);
    ends.peers.modify(0, QpState::Err);
    let sent = [(SEND_ERR, 11), (READ_ERR, 21), (WRITE_ERR, 32)];
    let flushed = counts(&[&sent[..], &[(RECV_ERR, 1)]].concat());
    assert_eq!(ends.values(0), flushed);
    ends.peers.run_for(Duration::from_secs(10));
    // The peer has executed none of these requests.
    ends.settle([flushed, Counts::default()]);
}

#[test]
fn work_requests_that_a_reset_drops_are_not_counted() {
    let mut ends = Counted::under_way();
    ends.peers.modify(0, QpState::Reset);
    ends.peers.run_for(Duration::from_secs(10));
    assert_eq!(ends.values(0), Counts::default());
    ends.peers.start(0);
    let write = ends.peers.write(8);
    ends.peers.post(&write);
    ends.settle([counts(&[(WRITE_COMP, 1)]), counts(&[(REMOTE_WRITE, 1)])]);
}

#[test]
fn a_write_with_immediate_that_needs_no_receive_is_received() {
    let mut shape = Shape::new(QpType::Srd, 128);
    shape.flags.unsolicited_write_recv = true;
    let mut ends = Counted::of(Settings::default(), shape);
    let mut write = ends.peers.write(100);
    write.immediate = Some(1);
    ends.peers.post(&write);
    let theirs = counts(&[(REMOTE_WRITE, 1), (RECV_COMP, 1)]);
    ends.settle([counts(&[(WRITE_COMP, 1)]), theirs]);
}

/// A datagram counts as sent, whether or not it arrives.
#[test]
fn datagrams() {
    let mut ends = Counted::of(Settings::default(), Shape::new(QpType::Ud, 128));
    let send = ends.peers.message(8);
    ends.peers.post(&send);
    ends.settle([counts(&[(SEND_COMP, 1)]), Counts::default()]);
    for length in [8, 100] {
        ends.receive(1, length);
        ends.peers.post(&send);
    }
    let theirs = counts(&[(RECV_COMP, 1), (RECV_ERR, 1)]);
    ends.settle([counts(&[(SEND_COMP, 3)]), theirs]);
    // An operation that UD does not support.
    let read = ends.peers.read(8);
    ends.peers.post(&read);
    ends.settle([counts(&[(SEND_COMP, 3), (READ_ERR, 1)]), theirs]);
}

#[test]
fn events_are_counted_before_their_completion() {
    /// Stands for a completion among the events.
    const DONE: usize = usize::MAX;

    let mut ends = Counted::new(Settings::default());
    [100, 100, 100].map(|length| ends.receive(1, length));
    for port in [0, 1] {
        ends.peers.world(PortId(port), |world| world.writes = Some(Vec::new()));
    }
    let mut write = ends.peers.write(8);
    write.immediate = Some(1);
    for send in [ends.peers.message(8), write, ends.peers.read(8)] {
        ends.peers.post(&send);
    }
    ends.peers.run_for(Duration::from_secs(1));
    ends.peers.polled(0);
    let [failing, ..] = failing();
    ends.peers.outcome(&Send { silent: false, ..failing });
    ends.peers.modify(1, QpState::Err);
    let mut order = |at: usize| -> Vec<_> {
        let port = ends.peers.qps[at].port;
        let writes = ends.peers.world(port, |world| world.writes.take().unwrap());
        let name = |at_: u64| ends.places[at].iter().position(|place| *place == at_);
        let cq = ends.peers.qps[at].cq.base;
        let is_completion = |at_| (cq..cq + PAGE).contains(&at_);
        let name = |at_| name(at_).or_else(|| is_completion(at_).then_some(DONE));
        writes.into_iter().filter_map(name).collect()
    };
    let own = [SEND_COMP, WRITE_COMP, READ_COMP, SEND_ERR];
    assert_eq!(order(0), own.map(|event| [event, DONE]).as_flattened());
    let message = [RECV_COMP, DONE];
    let write = [REMOTE_WRITE, RECV_COMP, DONE];
    let read_and_flush = [REMOTE_READ, RECV_ERR, DONE];
    assert_eq!(order(1), [&message[..], &write, &read_and_flush].concat());
}
