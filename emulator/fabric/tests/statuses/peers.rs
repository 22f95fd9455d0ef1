// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Peers that refuse, that are not ready, or that do not respond.

use std::time::Duration;

use efa_fabric::{Denied, PathSettings, Settings};
use efa_hw::{
    admin::qp::{QpState, QpType},
    io::CompStatus,
};
use efa_model::Overrides;
use efa_testing::net::{Net, QKEY, Qp, Region, Send, pattern};

use super::{assert_untouched, deregister, destroy_handle, refused, refused_send, set};

#[test]
fn bad_dest_qpn() {
    let expected = CompStatus::RemoteBadDestQpn;
    for number in [0, 99, u16::MAX] {
        refused_send("an unknown queue pair", expected, |send| {
            send.peer_qp = number;
        });
    }
    refused("a UD queue pair", expected, |net, _, b, send| {
        send.peer_qp = net.qp(b.port.0, QpType::Ud).number;
    });
    refused("a queue pair in error", expected, |net, _, b, send| {
        let mut other = net.qp(b.port.0, QpType::Srd);
        net.modify(&mut other, QpState::Err);
        send.peer_qp = other.number;
    });
}

#[test]
fn unknown_peer() {
    let expected = CompStatus::RemoteUnknownPeer;
    refused("a peer without a handle", expected, |net, _, b, _| {
        destroy_handle(net, b);
    });
}

#[test]
fn receive_buffers_that_are_too_short() {
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(
        &mut b,
        &[(to.iova, 50, to.lkey), (to.iova + 50, 49, to.lkey)],
    );
    net.post(&mut a, &Send::message(&b, &from, 100));
    assert_eq!(net.status(&mut a), CompStatus::RemoteBadLength);
    assert_eq!(net.status(&mut b), CompStatus::LocalBadLength);
    assert_untouched(&mut net, &from, &to);
}

#[test]
fn receive_buffers_that_are_not_the_programs() {
    for key in [0, 999, (1 << 19) | 1] {
        let (mut net, mut a, mut b, from, to) = set();
        net.receive(&mut b, &[(to.iova, 100, key)]);
        net.post(&mut a, &Send::message(&b, &from, 100));
        assert_eq!(net.status(&mut a), CompStatus::RemoteBadStatus);
        assert_eq!(net.status(&mut b), CompStatus::LocalInvalidLkey);
        assert_untouched(&mut net, &from, &to);
    }
}

#[test]
fn receivers_that_are_not_ready() {
    let (mut net, mut a, b, from, to) = set();
    for retries in [0, 1, 6] {
        net.set_rnr_retry(&a, retries);
        let start = net.now;
        net.post(&mut a, &Send::message(&b, &from, 100));
        assert_eq!(net.status(&mut a), CompStatus::RemoteRnr);
        assert!(net.now - start >= Duration::from_micros(500) * retries.into());
    }
    // Unlimited retries, until the receiver is ready. This is the default, too.
    for retries in [Some(7), None] {
        let (mut net, mut a, mut b, from, to) = set();
        if let Some(retries) = retries {
            net.set_rnr_retry(&a, retries);
        }
        net.post(&mut a, &Send::message(&b, &from, 100));
        net.run_for(Duration::from_secs(20));
        assert_eq!(net.poll(&mut a), None);
        assert_untouched(&mut net, &from, &to);
        net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
        assert_eq!(net.status(&mut a), CompStatus::Ok);
        assert_eq!(net.wait(&mut b).length, 100);
        assert_eq!(net.content(&to, 0, 100), pattern(4 * 4096, 10)[..100]);
    }
    // A write with immediate data needs a receive work request, too.
    net.set_rnr_retry(&a, 0);
    let mut write = Send::write(&b, &from, &to, 100);
    write.immediate = Some(1);
    assert_eq!(net.outcome(&mut a, &write), CompStatus::RemoteRnr);
}

/// A network that loses everything.
fn lossy() -> Settings {
    let lost = PathSettings {
        loss: Some(1.0),
        ..PathSettings::default()
    };
    Settings {
        path: vec![lost; 4],
        ..Settings::default()
    }
}

#[test]
fn peers_that_do_not_respond() {
    // A peer that has never responded.
    let (mut net, mut a, b) = Net::pair(lossy());
    let from = net.region(&a, 1, 0);
    let sends = [
        Send::message(&b, &from, 100),
        Send::read(&b, &from, &from, 100),
    ];
    for send in &sends {
        assert_eq!(net.outcome(&mut a, send), CompStatus::LocalUnreachRemote);
    }
    // A peer that has responded before.
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    let message = Send::message(&b, &from, 100);
    assert_eq!(net.outcome(&mut a, &message), CompStatus::Ok);
    net.fabric.set(lossy());
    assert_eq!(net.outcome(&mut a, &message), CompStatus::LocalUnrespRemote);
}

/// A message that its receiver drops without an answer fails alone, even if it keeps its queue pair from sending for a while.
#[test]
fn a_message_that_is_always_dropped() {
    let (mut net, mut a, b, from, to) = set();
    let check = Overrides {
        check_srd_qkey: Some(true),
        ..Overrides::default()
    };
    net.set(b.port, check);
    let write = Send::write(&b, &from, &to, 100);
    let wrong = Send {
        qkey: Some(QKEY + 1),
        ..write.clone()
    };
    let dropped = net.post(&mut a, &wrong);
    let mut failed = 0;
    for _ in 0..5000 {
        let request = net.post(&mut a, &write);
        let mut completion = net.wait(&mut a);
        if completion.req_id == dropped && failed == 0 {
            let status = u8::from(CompStatus::LocalUnrespRemote);
            assert_eq!(completion.status, status);
            failed += 1;
            completion = net.wait(&mut a);
        }
        assert_eq!((completion.req_id, completion.status), (request, 0));
    }
    assert_eq!(failed, 1);
}

/// The peer expires, not a packet: all work requests to it end together.
#[test]
fn all_requests_to_a_peer_that_does_not_respond_end_at_once() {
    let (mut net, mut a, b) = Net::pair(lossy());
    let from = net.region(&a, 1, 0);
    for _ in 0..32 {
        net.post(&mut a, &Send::message(&b, &from, 100));
    }
    assert_eq!(net.status(&mut a), CompStatus::LocalUnreachRemote);
    for number in 1..32 {
        let completion = net.poll(&mut a);
        assert!(completion.is_some(), "{number} have ended");
    }
}

/// Security groups, in one direction or both, drop packets that they do not permit, including acknowledgements.
#[test]
fn security_groups() {
    for (both, way_out) in [(true, true), (false, true), (false, false)] {
        let (mut net, mut a, mut b, from, to) = set();
        net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
        let [ours, theirs] = [&a, &b].map(|qp| net.address(qp.port).into());
        let denied = |from, to| Settings {
            deny: vec![Denied { from, to, both }],
            ..Settings::default()
        };
        net.fabric.set(if way_out {
            denied(ours, theirs)
        } else {
            denied(theirs, ours)
        });
        let message = Send::message(&b, &from, 100);
        net.post(&mut a, &message);
        assert_eq!(net.status(&mut a), CompStatus::LocalUnreachRemote);
        assert_eq!(net.poll(&mut b).is_some(), !way_out);
        // Rules for other addresses have no effect, and a new setting replaces the last one.
        net.fabric.set(denied(ours, "::1".parse().unwrap()));
        net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
        assert_eq!(net.outcome(&mut a, &message), CompStatus::Ok);
    }
}

#[test]
fn unreachable_peers() {
    let down = PathSettings {
        down: true,
        ..PathSettings::default()
    };
    let (mut net, mut a, b) = Net::pair(Settings {
        path: vec![down; 4],
        ..Settings::default()
    });
    let from = net.region(&a, 1, 0);
    net.post(&mut a, &Send::message(&b, &from, 100));
    assert_eq!(net.status(&mut a), CompStatus::LocalUnreachRemote);
    // No device has this address.
    net.fabric.set(Settings::default());
    let mut send = Send::message(&b, &from, 100);
    send.ah = Some(net.handle_of(&a, [7; 16]));
    assert_eq!(net.outcome(&mut a, &send), CompStatus::LocalUnreachRemote);
}

#[test]
fn peers_that_give_up() {
    // The memory to be read is deregistered, or its queue pair stops, before all of it was sent.
    let settings = Settings {
        delay_us: 100.0,
        ..Settings::default()
    };
    type End = fn(&mut Net, &mut Qp, &Region);
    let ends: [(CompStatus, End); 4] = [
        (CompStatus::RemoteBadAddress, |net, b, from| {
            deregister(net, b.port, from.lkey);
        }),
        (CompStatus::RemoteAbort, |net, b, _| net.destroy(b)),
        (CompStatus::RemoteAbort, |net, b, _| {
            net.modify(b, QpState::Reset);
        }),
        (CompStatus::RemoteAbort, |net, b, _| {
            net.modify(b, QpState::Err);
        }),
    ];
    for (status, end) in ends {
        let (mut net, mut a, mut b) = Net::pair(settings.clone());
        let (to, from) = (net.region(&a, 600, 0), net.region(&b, 600, 0));
        net.post(&mut a, &Send::read(&b, &to, &from, 600 * 4096));
        net.post(&mut a, &Send::read(&b, &to, &from, 8));
        net.run_for(Duration::from_micros(250));
        assert_eq!(net.poll(&mut a), None);
        end(&mut net, &mut b, &from);
        // This is long before a timeout would expire.
        net.run_for(Duration::from_millis(5));
        for _ in 0..2 {
            let completion = net.poll(&mut a).expect("a read has ended");
            assert_eq!(CompStatus::try_from(completion.status), Ok(status));
        }
        // Other queue pairs of the devices keep working, and no state of these is left.
        let (mut other, mut peer) = (net.qp(0, QpType::Srd), net.qp(1, QpType::Srd));
        net.introduce(&mut other, &mut peer);
        let (to, from) = (net.region(&other, 1, 0), net.region(&peer, 1, 0));
        net.post(&mut other, &Send::read(&peer, &to, &from, 4096));
        assert_eq!(net.status(&mut other), CompStatus::Ok);
        assert_eq!((net.poll(&mut a), net.protocol_errors()), (None, 0));
    }
    // The receive queue has a malformed descriptor.
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
    let doorbell = net.state(b.port).doorbells;
    assert_eq!(doorbell, 1);
    net.corrupt_receive(&b);
    net.post(&mut a, &Send::message(&b, &from, 8));
    assert_eq!(net.status(&mut a), CompStatus::RemoteAbort);
    assert_eq!(net.status(&mut b), CompStatus::LocalQpInternalError);
    assert_untouched(&mut net, &from, &to);
}
