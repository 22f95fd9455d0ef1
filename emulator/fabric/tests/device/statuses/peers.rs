// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Peers that refuse, that are not ready, or that do not respond.

use super::*;

#[test]
fn bad_dest_qpn() {
    let expected = CompStatus::RemoteBadDestQpn;
    let unknown: [Fault; 3] = [
        ("number 0", |send| send.peer_qp = 0),
        ("an unknown queue pair", |send| send.peer_qp = 99),
        ("the last number", |send| send.peer_qp = u16::MAX),
    ];
    all_refused(expected, &unknown);
    refused(expected, "a UD queue pair", |peers, send| {
        send.peer_qp = peers.qp(1, QpType::Ud).number;
    });
    refused(expected, "a queue pair in error", |peers, send| {
        let mut other = peers.qp(1, QpType::Srd);
        peers.net.modify(&mut other, QpState::Err);
        send.peer_qp = other.number;
    });
}

#[test]
fn unknown_peer() {
    let expected = CompStatus::RemoteUnknownPeer;
    refused(expected, "a peer without a handle", |peers, _| {
        peers.net.destroy_handle(&peers.qps[1]);
    });
}

#[test]
fn receive_buffers_that_are_too_short() {
    let mut peers = ideal();
    peers.receive(&[(0, 50), (50, 49)]);
    peers.ends(&peers.message(100), CompStatus::RemoteBadLength);
    assert_eq!(peers.status(1), CompStatus::LocalBadLength);
    assert!(peers.are_untouched());
}

#[test]
fn receive_buffers_that_are_not_the_programs() {
    for key in [0, 999, (1 << 19) | 1] {
        let mut peers = ideal();
        peers.regions[1].lkey = key;
        peers.ready(100);
        peers.ends(&peers.message(100), CompStatus::RemoteBadStatus);
        assert_eq!(peers.status(1), CompStatus::LocalInvalidLkey);
        assert!(peers.are_untouched());
    }
}

#[test]
fn receivers_that_are_not_ready() {
    // The default is 7: unlimited retries, until the receiver is ready.
    for retries in [Some(0), Some(1), Some(6), Some(7), None] {
        let mut peers = ideal();
        if let Some(retries) = retries {
            let mut command = to_state(peers.qps[0].number.into(), QpState::Rts);
            command.modify_mask = ModifyQpMask::default();
            command.modify_mask.rnr_retry = true;
            command.rnr_retry = retries;
            peers.execute(PortId(0), &command).unwrap();
        }
        let start = peers.now;
        peers.post(&peers.message(100));
        let Some(retries @ 0..7) = retries else {
            assert_eq!(peers.all(0), []);
            assert!(peers.are_untouched());
            peers.ready(100);
            assert_eq!(peers.status(0), OK);
            assert_eq!(peers.wait(1).length, 100);
            let sent = peers.content(0, 0, 100);
            assert_eq!(peers.content(1, 0, 100), sent);
            continue;
        };
        assert_eq!(peers.status(0), CompStatus::RemoteRnr);
        assert!(peers.now - start >= Duration::from_micros(500) * retries.into());
        // A write with immediate data needs a receive work request, too.
        let mut write = peers.write(100);
        write.immediate = Some(1);
        peers.ends(&write, CompStatus::RemoteRnr);
    }
}

/// Asserts that a time span is a part of these seconds.
#[track_caller]
fn in_seconds(time: Duration, range: std::ops::Range<u64>) {
    assert!(range.contains(&time.as_secs()), "{time:?}");
}

#[test]
fn peers_that_do_not_respond() {
    for (silence_s, range) in [(2.0, 2..3), (15.0, 15..16)] {
        // A peer that has never responded.
        let settings = Settings { loss: 1.0, silence_s, ..Settings::default() };
        let mut peers = Peers::of(settings.clone(), QpType::Srd, 256);
        for send in [peers.message(100), peers.read(100)] {
            let start = peers.now;
            peers.ends(&send, CompStatus::LocalUnreachRemote);
            in_seconds(peers.now - start, range.clone());
        }
        // A peer that has responded long before, however many packets are in flight.
        for _ in 0..2 {
            peers.fabric.set(delay(20.0));
            peers.ends(&peers.write(1 << 20), OK);
            peers.run_for(Duration::from_secs(600));
            for _ in 0..32 {
                peers.post(&peers.write(1 << 20));
            }
            peers.run_for(Duration::from_micros(30));
            peers.fabric.set(settings.clone());
            let start = peers.now;
            // Some acknowledgements may be under way.
            let (mut last, mut ended) = (OK, 0);
            while last == OK {
                (last, ended) = (peers.status(0), ended + 1);
            }
            assert_eq!(last, CompStatus::LocalUnrespRemote);
            in_seconds(peers.now - start, range.clone());
            // The peer expires, not a packet: all work requests to it end together.
            assert_eq!(peers.polled(0).len(), 32 - ended);
        }
    }
}

/// A message that its receiver drops without an answer fails alone: while the peer answers others, which takes long, or as soon as it
/// keeps its queue pair from sending for a while.
#[test]
fn a_message_that_is_always_dropped() {
    for (pause, count, range) in [(0, 5000, 2..4), (1, 45, 20..40)] {
        let mut peers = ideal();
        peers.set(PortId(1), r#"{"check_srd_qkey":true}"#);
        let write = peers.write(100);
        let mut wrong = write.clone();
        wrong.qkey = Some(QKEY + 1);
        let (dropped, start) = (peers.post(&wrong), peers.now);
        let mut failed = vec![];
        for _ in 0..count {
            let request = (peers.post(&write), OK);
            loop {
                let one = peers.wait(0);
                match (one.req_id, status(&one)) {
                    ended if ended == request => break,
                    ended => failed.push((ended, peers.now - start)),
                }
            }
            peers.run_for(Duration::from_secs(pause));
        }
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].0, (dropped, CompStatus::LocalUnrespRemote));
        in_seconds(failed[0].1, range);
    }
}

/// Security groups, in one direction or both, drop packets that they do not permit, including acknowledgements.
#[test]
fn security_groups() {
    for (both, way_out) in [(true, true), (false, true), (false, false)] {
        let mut peers = ideal();
        peers.ready(100);
        let from = usize::from(!way_out);
        let mut settings = denying(&Settings::default(), &mut peers, from, both);
        peers.fabric.set(settings.clone());
        peers.ends(&peers.message(100), CompStatus::LocalUnreachRemote);
        assert_eq!(peers.poll(1).is_some(), !way_out);
        // Rules for other addresses have no effect, and a new setting replaces the last one.
        settings.deny[0].to = "::1".parse().unwrap();
        peers.fabric.set(settings);
        peers.ready(100);
        peers.ends(&peers.message(100), OK);
    }
}

#[test]
fn unreachable_peers() {
    let mut peers = Peers::new(network(r#"{"paths":1,"path":[{"down":true}]}"#));
    peers.ends(&peers.message(100), CompStatus::LocalUnreachRemote);
    // No device has this address.
    peers.fabric.set(Settings::default());
    let mut send = peers.message(100);
    send.ah = Some(peers.net.handle_of(&peers.qps[0], [7; 16]));
    peers.ends(&send, CompStatus::LocalUnreachRemote);
}

/// The memory to be read is deregistered, or its queue pair stops, before all of it was sent.
#[test]
fn peers_that_give_up() {
    let abort = CompStatus::RemoteAbort;
    let ends: [(CompStatus, Change<Peers>); 4] = [
        (CompStatus::RemoteBadAddress, |peers| {
            let lkey = peers.regions[1].lkey;
            peers.deregister(PortId(1), lkey).unwrap();
        }),
        (abort, |peers| peers.net.destroy(&peers.qps[1])),
        (abort, |peers| peers.modify(1, QpState::Reset)),
        (abort, |peers| peers.modify(1, QpState::Err)),
    ];
    for (status, end) in ends {
        let mut peers = Peers::of(delay(100.0), QpType::Srd, 600);
        for length in [600 * PAGE as u32, 8] {
            peers.post(&peers.read(length));
        }
        peers.run_for(Duration::from_micros(250));
        assert_eq!(peers.polled(0), []);
        end(&mut peers);
        // This is long before a timeout would expire.
        peers.run_for(Duration::from_millis(5));
        let ended = peers.polled(0).into_iter().map(|(_, status)| status);
        assert!(ended.eq([status; 2]));
        // Other queue pairs of the devices keep working, and no state of these is left.
        let mut others = Peers::on(peers.net, [Shape::new(QpType::Srd, 128); 2], [(1, 0); 2]);
        others.ends(&others.read(4096), OK);
        assert_eq!(others.net.poll(&mut peers.qps[0]), None);
        assert_eq!(others.protocol_errors(), 0);
    }
    // The receive queue has a malformed descriptor.
    let mut peers = ideal();
    peers.ready(8);
    assert_eq!(peers.state(PortId(1)).doorbells, 1);
    peers.net.corrupt_receive(&peers.qps[1]);
    peers.ends(&peers.message(8), abort);
    assert_eq!(peers.status(1), CompStatus::LocalQpInternalError);
    assert!(peers.are_untouched());
}
