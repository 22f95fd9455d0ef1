// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event counters count each event once, on networks of all kinds.

use std::time::Duration;

use efa_fabric::Settings;
use efa_hw::{
    admin::{
        cq::CqCaps1,
        qp::{CreateQpFlags, QpState, QpType},
    },
    io::{CompStatus, OpType},
};
use efa_model::{Overrides, Profile};
use efa_testing::net::{ALL_PERMISSIONS, DEPTH, MOST, Net, PAGE, Qp, Region, Send, networks};

const SEND_COMP: usize = 0;
const SEND_ERR: usize = 1;
const RECV_COMP: usize = 2;
const RECV_ERR: usize = 3;
const READ_COMP: usize = 4;
const READ_ERR: usize = 5;
const WRITE_COMP: usize = 6;
const WRITE_ERR: usize = 7;
const REMOTE_READ: usize = 8;
const REMOTE_WRITE: usize = 9;

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

/// A queue pair with an event counter for each event.
struct End {
    qp: Qp,
    places: Vec<u64>,
    region: Region,
}

impl End {
    fn new(net: &mut Net, mut qp: Qp) -> Self {
        let events: Vec<_> = (0..10).map(|bit| 1 << bit).collect();
        let places = net.count(&mut qp, &events);
        let region = net.region(&qp, 4, 0);
        Self { qp, places, region }
    }

    fn values(&self, net: &mut Net) -> Counts {
        let values = net.values(self.qp.port, &self.places);
        values.try_into().unwrap()
    }

    fn receive(&mut self, net: &mut Net, length: u16) {
        let (iova, lkey) = (self.region.iova, self.region.lkey);
        net.receive(&mut self.qp, &[(iova, length, lkey)]);
    }
}

fn pair_of(settings: Settings, qp_type: QpType, flags: CreateQpFlags) -> (Net, End, End) {
    let mut net = Net::new(&[Profile::Efa3; 2], settings);
    let [mut a, mut b] =
        [0, 1].map(|port| net.qp_with(port, qp_type, flags, CqCaps1::default(), 128));
    net.introduce(&mut a, &mut b);
    let [a, b] = [a, b].map(|qp| End::new(&mut net, qp));
    (net, a, b)
}

fn pair(settings: Settings) -> (Net, End, End) {
    pair_of(settings, QpType::Srd, CreateQpFlags::default())
}

/// Returns two ends, with work requests of all kinds in flight from the first to the second.
fn under_way() -> (Net, End, End) {
    let slow = Settings {
        delay_us: 1000.0,
        ..Settings::default()
    };
    let (mut net, mut a, b) = pair(slow);
    let [mut ours, mut theirs] = [Counts::default(); 2];
    post_all_kinds(&mut net, &mut a, &b, [&mut ours, &mut theirs]);
    (net, a, b)
}

/// Advances time until both queue pairs have these counts, for at most 4 s; checks them.
fn settle(net: &mut Net, ends: [&End; 2], expected: [Counts; 2]) {
    let wrapped = expected.map(|counts| counts.map(|count| count % (MOST + 1)));
    for _ in 0..4000 {
        net.run_for(Duration::from_millis(1));
        if ends.map(|end| end.values(net)) == wrapped {
            break;
        }
    }
    assert_eq!(ends.map(|end| end.values(net)), wrapped);
}

/// Fills the send queue with work requests of all kinds; adds the events at both ends to their counts.
fn post_all_kinds(net: &mut Net, from: &mut End, to: &End, [ours, theirs]: [&mut Counts; 2]) {
    for number in 0..u32::from(DEPTH) {
        let kind = number % 6;
        // Some writes and reads have no bytes.
        let length = if kind < 4 { number * 37 % 1000 } else { 0 };
        let write = Send::write(&to.qp, &from.region, &to.region, length);
        let (mut send, own, remote): (_, _, &[usize]) = match kind {
            0 => {
                let message = Send::message(&to.qp, &from.region, length % 256);
                (message, SEND_COMP, &[RECV_COMP])
            }
            1 | 5 => (write, WRITE_COMP, &[REMOTE_WRITE]),
            2 => {
                let immediate = Some(number);
                let write = Send { immediate, ..write };
                (write, WRITE_COMP, &[REMOTE_WRITE, RECV_COMP])
            }
            _ => {
                let read = Send::read(&to.qp, &from.region, &to.region, length);
                (read, READ_COMP, &[REMOTE_READ])
            }
        };
        send.silent = number % 2 == 0;
        net.put(&mut from.qp, &send);
        ours[own] += 1;
        for event in remote {
            theirs[*event] += 1;
        }
    }
    net.ring_send(&from.qp);
}

#[test]
fn each_event_is_counted_once() {
    /// Number of rounds. In each, both ends fill their send queues.
    const ROUNDS: u32 = 80;

    let perfect = ("an ideal network", Settings::default());
    for (name, settings) in networks().into_iter().chain([perfect]) {
        let (mut net, mut a, mut b) = pair(settings);
        for port in [a.qp.port, b.qp.port] {
            // With a small MTU, short transfers have several packets.
            let overrides = Overrides {
                mtu: Some(256),
                ..Overrides::default()
            };
            net.set(port, overrides);
        }
        let (mut of_a, mut of_b) = (Counts::default(), Counts::default());
        for round in 0..ROUNDS {
            post_all_kinds(&mut net, &mut a, &b, [&mut of_a, &mut of_b]);
            post_all_kinds(&mut net, &mut b, &a, [&mut of_b, &mut of_a]);
            if round % 8 == 0 {
                // The receivers are not ready at first.
                net.run_for(Duration::from_micros(700));
            }
            for _ in 0..22 {
                a.receive(&mut net, 256);
                b.receive(&mut net, 256);
            }
            settle(&mut net, [&a, &b], [of_a, of_b]);
        }
        net.run_for(Duration::from_secs(10));
        settle(&mut net, [&a, &b], [of_a, of_b]);
        // Both ends have the same counts, and the counters have wrapped.
        assert_eq!(of_a, of_b, "{name}");
        let total = of_a[SEND_COMP] + of_a[READ_COMP] + of_a[WRITE_COMP];
        assert_eq!(total, u64::from(ROUNDS) * u64::from(DEPTH), "{name}");
        assert!(
            of_a[REMOTE_READ] > MOST && of_a[REMOTE_WRITE] > MOST,
            "{name}"
        );
        assert_eq!(net.protocol_errors(), 0, "{name}");
    }
}

#[test]
fn failures_are_counted_as_such() {
    let (mut net, mut a, mut b) = pair(Settings::default());
    let region = a.region.clone();
    // The destination queue pair does not exist.
    let mut send = Send::message(&b.qp, &region, 8);
    send.peer_qp = 99;
    let status = net.outcome(&mut a.qp, &send);
    assert_eq!(status, CompStatus::RemoteBadDestQpn);
    assert_eq!(a.values(&mut net), counts(&[(SEND_ERR, 1)]));
    // The receive buffer is too short: both work requests fail.
    b.receive(&mut net, 4);
    let status = net.outcome(&mut a.qp, &Send::message(&b.qp, &region, 8));
    assert_eq!(status, CompStatus::RemoteBadLength);
    assert_eq!(a.values(&mut net), counts(&[(SEND_ERR, 2)]));
    assert_eq!(b.values(&mut net), counts(&[(RECV_ERR, 1)]));
    // The region ends before the write and the read do.
    let short = net.region_cut(&b.qp, 4, 0, 100, ALL_PERMISSIONS);
    let length = 4 * PAGE as u32;
    let write = Send::write(&b.qp, &region, &short, length);
    assert_eq!(net.outcome(&mut a.qp, &write), CompStatus::RemoteBadAddress);
    let read = Send::read(&b.qp, &region, &short, length);
    assert_eq!(net.outcome(&mut a.qp, &read), CompStatus::RemoteBadAddress);
    // The memory to be read is unmapped before the peer sends it.
    net.unmap(&short);
    let read = Send::read(&b.qp, &region, &short, 3 * PAGE as u32);
    assert_eq!(net.outcome(&mut a.qp, &read), CompStatus::LocalInvalidLkey);
    net.run_for(Duration::from_secs(10));
    assert_eq!(
        a.values(&mut net),
        counts(&[(SEND_ERR, 2), (WRITE_ERR, 1), (READ_ERR, 2)])
    );
    assert_eq!(b.values(&mut net), counts(&[(RECV_ERR, 1)]));
}

#[test]
fn work_requests_in_flight_are_flushed_when_a_queue_pair_fails() {
    let (mut net, mut a, b) = under_way();
    a.receive(&mut net, 8);
    net.modify(&mut a.qp, QpState::Err);
    let flushed = counts(&[
        (SEND_ERR, 11),
        (READ_ERR, 21),
        (WRITE_ERR, 32),
        (RECV_ERR, 1),
    ]);
    assert_eq!(a.values(&mut net), flushed);
    net.run_for(Duration::from_secs(10));
    assert_eq!(a.values(&mut net), flushed);
    // The peer has executed none of these requests.
    assert_eq!(b.values(&mut net), Counts::default());
}

/// A malformed descriptor in the receive queue moves its queue pair to the error state.
#[test]
fn a_malformed_receive_is_counted() {
    let (mut net, mut a, mut b) = pair(Settings::default());
    b.receive(&mut net, 100);
    net.corrupt_receive(&b.qp);
    let send = Send::message(&b.qp, &a.region, 8);
    net.post(&mut a.qp, &send);
    settle(
        &mut net,
        [&a, &b],
        [counts(&[(SEND_ERR, 1)]), counts(&[(RECV_ERR, 1)])],
    );
}

#[test]
fn work_requests_that_a_reset_drops_are_not_counted() {
    let (mut net, mut a, b) = under_way();
    net.modify(&mut a.qp, QpState::Reset);
    net.run_for(Duration::from_secs(10));
    assert_eq!(a.values(&mut net), Counts::default());
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        net.modify(&mut a.qp, state);
    }
    net.post(&mut a.qp, &Send::write(&b.qp, &a.region, &b.region, 8));
    settle(
        &mut net,
        [&a, &b],
        [counts(&[(WRITE_COMP, 1)]), counts(&[(REMOTE_WRITE, 1)])],
    );
}

#[test]
fn a_write_with_immediate_that_needs_no_receive_is_received() {
    let flags = CreateQpFlags {
        unsolicited_write_recv: true,
        ..CreateQpFlags::default()
    };
    let (mut net, mut a, b) = pair_of(Settings::default(), QpType::Srd, flags);
    let mut write = Send::write(&b.qp, &a.region, &b.region, 100);
    write.immediate = Some(1);
    net.post(&mut a.qp, &write);
    let theirs = counts(&[(REMOTE_WRITE, 1), (RECV_COMP, 1)]);
    settle(&mut net, [&a, &b], [counts(&[(WRITE_COMP, 1)]), theirs]);
}

/// A datagram counts as sent, whether or not it arrives.
#[test]
fn datagrams() {
    let flags = CreateQpFlags::default();
    let (mut net, mut a, mut b) = pair_of(Settings::default(), QpType::Ud, flags);
    let send = Send::message(&b.qp, &a.region, 8);
    net.post(&mut a.qp, &send);
    settle(
        &mut net,
        [&a, &b],
        [counts(&[(SEND_COMP, 1)]), Counts::default()],
    );
    b.receive(&mut net, 8);
    b.receive(&mut net, 100);
    net.post(&mut a.qp, &send);
    net.post(&mut a.qp, &send);
    let theirs = counts(&[(RECV_COMP, 1), (RECV_ERR, 1)]);
    settle(&mut net, [&a, &b], [counts(&[(SEND_COMP, 3)]), theirs]);
    // An operation that UD does not support.
    let read = Send {
        operation: OpType::RdmaRead.into(),
        ..Send::write(&b.qp, &a.region, &b.region, 8)
    };
    net.post(&mut a.qp, &read);
    let ours = counts(&[(SEND_COMP, 3), (READ_ERR, 1)]);
    settle(&mut net, [&a, &b], [ours, theirs]);
}

/// An event is counted before its completion is visible.
#[test]
fn events_are_counted_before_their_completion() {
    /// Stands for a completion among the events.
    const DONE: usize = usize::MAX;

    let (mut net, mut a, mut b) = pair(Settings::default());
    b.receive(&mut net, 100);
    b.receive(&mut net, 100);
    for end in [&a, &b] {
        net.world(end.qp.port, |world| world.writes = Some(Vec::new()));
    }
    net.post(&mut a.qp, &Send::message(&b.qp, &a.region, 8));
    let mut write = Send::write(&b.qp, &a.region, &b.region, 8);
    write.immediate = Some(1);
    net.post(&mut a.qp, &write);
    net.post(&mut a.qp, &Send::read(&b.qp, &a.region, &b.region, 8));
    net.run_for(Duration::from_secs(1));
    let mut order = |end: &End| -> Vec<_> {
        let writes = net.world(end.qp.port, |world| world.writes.take().unwrap());
        let name = |at| end.places.iter().position(|place| *place == at);
        let is_completion = |at| end.qp.completion_queue().contains(&at);
        let name = |at| name(at).or_else(|| is_completion(at).then_some(DONE));
        writes.into_iter().filter_map(name).collect()
    };
    assert_eq!(
        order(&a),
        [SEND_COMP, DONE, WRITE_COMP, DONE, READ_COMP, DONE]
    );
    assert_eq!(
        order(&b),
        [RECV_COMP, DONE, REMOTE_WRITE, RECV_COMP, DONE, REMOTE_READ]
    );
}
