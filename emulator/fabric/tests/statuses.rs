// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How work requests fail, for each status that exists. None of them moves a byte.

use std::time::Duration;

use efa_fabric::{Denied, PathSettings, PortId, Settings};
use efa_hw::{
    admin::{
        ah::DestroyAh,
        mr::{DeregMr, RegMrPermissions},
        qp::{QpState, QpType},
    },
    io::{CompStatus, OpType, RxDesc, RxLkeyCtrl},
};
use efa_model::{Instance, Overrides, Profile};
use efa_testing::net::{DEPTH, Net, QKEY, Qp, Region, Send, pattern};

/// Returns two queue pairs with a region each, filled with different patterns.
fn set() -> (Net, Qp, Qp, Region, Region) {
    let (mut net, a, b) = Net::pair(Settings::default());
    let (from, to) = (net.region(&a, 4, 0), net.region(&b, 4, 0));
    net.fill(&to, 0, &pattern(4 * 4096, 9));
    net.fill(&from, 0, &pattern(4 * 4096, 10));
    (net, a, b, from, to)
}

fn assert_untouched(net: &mut Net, from: &Region, to: &Region) {
    assert_eq!(net.content(to, 0, 4 * 4096), pattern(4 * 4096, 9));
    assert_eq!(net.content(from, 0, 4 * 4096), pattern(4 * 4096, 10));
}

/// Posts a faulty work request. It must end with this status, change no memory, and leave the queue pair usable.
fn refused(what: &str, expected: CompStatus, change: impl FnOnce(&mut Net, &Qp, &Qp, &mut Send)) {
    let (mut net, mut a, mut b, from, to) = set();
    let mut send = Send::write(&b, &from, &to, 100);
    change(&mut net, &a, &b, &mut send);
    net.post(&mut a, &send);
    assert_eq!(net.status(&mut a), expected, "{what}");
    assert_eq!(net.poll(&mut b), None, "{what}");
    assert_untouched(&mut net, &from, &to);
    let again = net.region(&b, 1, 0);
    a.ah = net.handle(&a, b.port);
    net.handle(&b, a.port);
    net.post(&mut a, &Send::write(&b, &from, &again, 100));
    assert_eq!(net.status(&mut a), CompStatus::Ok, "after {what}");
    assert_eq!(net.protocol_errors(), 0, "{what}");
}

/// As [`refused`], if the change is one of the work request.
fn refused_send(what: &str, expected: CompStatus, change: impl FnOnce(&mut Send)) {
    refused(what, expected, |_, _, _, send| change(send));
}

fn deregister(net: &mut Net, port: PortId, l_key: u32) {
    net.driver(port, |driver| driver.execute(&DeregMr { l_key }))
        .unwrap();
}

/// Destroys the address handle that a queue pair uses.
fn destroy_handle(net: &mut Net, qp: &Qp) {
    let (ah, pd) = (qp.ah, qp.pd);
    net.driver(qp.port, |driver| driver.execute(&DestroyAh { ah, pd }))
        .unwrap();
}

#[test]
fn unsupported_op() {
    let expected = CompStatus::LocalUnsupportedOp;
    for operation in [5, 7, 15] {
        refused_send("an unknown operation", expected, |send| {
            send.operation = operation;
        });
    }
    refused_send("a read with immediate data", expected, |send| {
        send.operation = OpType::RdmaRead.into();
        send.immediate = Some(1);
    });
    refused_send("an inline read", expected, |send| {
        send.operation = OpType::RdmaRead.into();
        send.inline = Some(vec![1; 16]);
    });
    // RDMA on a device or a queue pair that does not support it.
    for (profile, qp_type) in [(Profile::Efa0, QpType::Srd), (Profile::Efa3, QpType::Ud)] {
        for operation in [OpType::RdmaRead, OpType::RdmaWrite] {
            let mut net = Net::new(&[profile], Settings::default());
            let mut a = net.narrow_qp(0, qp_type);
            a.ah = net.handle(&a, a.port);
            let none = RegMrPermissions {
                local_write_enable: true,
                ..RegMrPermissions::default()
            };
            let region = net.region_with(&a, 1, 0, none);
            let mut send = Send::write(&a, &region, &region, 8);
            send.operation = operation.into();
            assert_eq!(net.outcome(&mut a, &send), expected);
        }
    }
}

#[test]
fn invalid_ah() {
    let expected = CompStatus::LocalInvalidAh;
    for ah in [0, 77, u16::MAX] {
        refused_send("an unknown handle", expected, |send| send.ah = Some(ah));
    }
    refused("a destroyed handle", expected, |net, a, _, send| {
        send.ah = Some(a.ah);
        destroy_handle(net, a);
    });
    refused("a handle of another domain", expected, |net, a, _, send| {
        let other = net.qp(a.port.0, QpType::Srd);
        send.ah = Some(net.handle(&other, a.port));
    });
}

#[test]
fn invalid_lkey() {
    let expected = CompStatus::LocalInvalidLkey;
    for (what, address, length, key) in [
        ("a key of all ones", 0, 100, 0xff_ffff),
        ("key zero", 0, 100, 0),
        ("an unknown key", 0, 100, 999),
        ("a byte before the start", u64::MAX, 100, 1),
        ("a byte beyond the end", 4 * 4096 - 99, 100, 1),
        ("far beyond the end", 1 << 40, 100, 1),
        (
            "wrapping addresses",
            u64::MAX - 0x7f00_0000_0000 - 50,
            100,
            1,
        ),
    ] {
        refused_send(what, expected, |send| {
            let iova = send.buffers[0].0;
            send.buffers = vec![(iova.wrapping_add(address), length, key)];
        });
    }
    refused_send("a remote key", expected, |send| {
        send.buffers[0].2 |= 1 << 19;
    });
    for generation in [1, 8, 15] {
        refused_send("a key of another generation", expected, |send| {
            send.buffers[0].2 |= generation << 20;
        });
    }
    refused("a key of another domain", expected, |net, a, _, send| {
        let other = net.qp(a.port.0, QpType::Srd);
        send.buffers[0].2 = net.region(&other, 1, 0).lkey;
    });
    refused("a deregistered key", expected, |net, a, _, send| {
        let region = net.region(a, 1, 0);
        deregister(net, a.port, region.lkey);
        send.buffers[0].2 = region.lkey;
    });
    refused(
        "a read into memory without write permission",
        expected,
        |net, a, _, send| {
            let region = net.region_with(a, 1, 0, RegMrPermissions::default());
            send.operation = OpType::RdmaRead.into();
            send.buffers[0].2 = region.lkey;
        },
    );
}

#[test]
fn accesses_beyond_the_end_of_a_region_fail() {
    // The page extends beyond the region's end.
    let (mut net, mut a, b, _, to) = set();
    let region = net.region_cut(&a, 1, 0, 96, RegMrPermissions::default());
    for (length, expected) in [(4000, CompStatus::Ok), (4001, CompStatus::LocalInvalidLkey)] {
        net.post(&mut a, &Send::write(&b, &region, &to, length));
        assert_eq!(net.status(&mut a), expected);
    }
}

#[test]
fn bad_length() {
    let expected = CompStatus::LocalBadLength;
    refused_send("a message longer than a packet", expected, |send| {
        send.operation = OpType::Send.into();
        send.remote = None;
        send.buffers[0].1 = 8929;
    });
    refused_send("more than the limit of an operation", expected, |send| {
        send.buffers[0].1 = u32::MAX;
        if let Some(remote) = &mut send.remote {
            remote.1 = u32::MAX;
        }
    });
    refused_send("unequal lengths", expected, |send| send.buffers[0].1 = 99);
    refused_send("two buffers of a write", expected, |send| {
        send.buffers.push(send.buffers[0]);
    });
    refused_send("lengths whose sum overflows", expected, |send| {
        send.operation = OpType::Send.into();
        send.remote = None;
        send.buffers = vec![(send.buffers[0].0, u32::MAX, 1); 2];
    });
    refused_send(
        "more inline data than a work request can have",
        expected,
        |send| {
            send.inline = Some(vec![1; 81]);
            send.buffers.clear();
        },
    );
}

#[test]
fn bad_address() {
    let expected = CompStatus::RemoteBadAddress;
    for operation in [OpType::RdmaWrite, OpType::RdmaRead] {
        for (what, offset, key) in [
            ("an unknown key", 0, Some(999 | (1 << 19))),
            ("a local key", 0, Some(1)),
            ("a byte before the start", u64::MAX, None),
            ("a byte beyond the end", 4 * 4096 - 99, None),
            ("wrapping addresses", u64::MAX - 0x7f00_0000_0000 - 50, None),
        ] {
            refused_send(what, expected, |send| {
                send.operation = operation.into();
                if let Some((address, _, rkey)) = &mut send.remote {
                    *address = address.wrapping_add(offset);
                    *rkey = key.unwrap_or(*rkey);
                }
            });
        }
        refused_send("a key of another generation", expected, |send| {
            send.operation = operation.into();
            if let Some((_, _, rkey)) = &mut send.remote {
                *rkey |= 1 << 20;
            }
        });
        refused("a key of another domain", expected, |net, _, b, send| {
            let other = net.qp(b.port.0, QpType::Srd);
            let region = net.region(&other, 1, 0);
            send.operation = operation.into();
            send.remote = Some((region.iova, 100, region.rkey));
        });
        refused(
            "memory without permission for peers",
            expected,
            |net, _, b, send| {
                // Each region permits only the other operation.
                let permissions = RegMrPermissions {
                    local_write_enable: true,
                    remote_write_enable: operation == OpType::RdmaRead,
                    remote_read_enable: operation == OpType::RdmaWrite,
                };
                let region = net.region_with(b, 1, 0, permissions);
                send.operation = operation.into();
                send.remote = Some((region.iova, 100, region.rkey));
            },
        );
    }
}

/// Whether the key of a write or read of no bytes matters is a guess: see `strict=guesses`.
#[test]
fn keys_of_no_bytes() {
    for check in [false, true] {
        for operation in [OpType::RdmaWrite, OpType::RdmaRead] {
            let (mut net, mut a, b, from, to) = set();
            let overrides = Overrides {
                check_empty_keys: Some(check),
                ..Overrides::default()
            };
            net.set(b.port, overrides);
            let mut send = Send::write(&b, &from, &to, 0);
            send.operation = operation.into();
            assert_eq!(net.outcome(&mut a, &send), CompStatus::Ok);
            send.remote = Some((to.iova, 0, to.rkey ^ 1));
            let expected = if check {
                CompStatus::RemoteBadAddress
            } else {
                CompStatus::Ok
            };
            assert_eq!(net.outcome(&mut a, &send), expected);
        }
    }
}

/// The guide lists all statuses, with the test of each.
#[test]
fn every_status_has_a_source_and_a_test() {
    let guide = include_str!("../../../Documentation/emulator.md");
    let statuses = (0..=u8::MAX).filter_map(|code| Some((code, CompStatus::try_from(code).ok()?)));
    for (code, status) in statuses.filter(|(code, _)| *code > 0) {
        let start = format!("| {code} | `{status}` |");
        let mut rows = guide.lines().filter(|line| line.starts_with(&start));
        let row = rows
            .next()
            .unwrap_or_else(|| panic!("no row begins with {start}"));
        let test = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
        let test = format!("fn {}()", test.trim_matches('`'));
        assert!(include_str!("statuses.rs").contains(&test), "{row}");
        assert_eq!(rows.count(), 0, "{start}");
    }
}

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
fn feature_mismatch() {
    let mut net = Net::new(
        &[Profile::Efa3, Profile::Efa1, Profile::Efa0],
        Settings::default(),
    );
    let mut a = net.qp(0, QpType::Srd);
    let from = net.region(&a, 1, 0);
    for (port, operation) in [(1, OpType::RdmaWrite), (2, OpType::RdmaRead)] {
        let b = net.narrow_qp(port, QpType::Srd);
        let mut send = Send::write(&b, &from, &from, 8);
        send.operation = operation.into();
        send.ah = Some(net.handle(&a, b.port));
        net.post(&mut a, &send);
        assert_eq!(net.status(&mut a), CompStatus::RemoteFeatureMismatch);
    }
}

/// Whether devices of the first version and others read from each other is a guess: see `strict=guesses`.
#[test]
fn reads_between_versions() {
    let profiles = [Profile::Efa0, Profile::Efa1, Profile::Efa2];
    let permissions = RegMrPermissions {
        local_write_enable: true,
        remote_read_enable: true,
        ..RegMrPermissions::default()
    };
    for (reader, peer) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let mut net = Net::new(&[profiles[reader], profiles[peer]], Settings::default());
        // A p4d has the first version, and supports RDMA reads.
        let mut overrides = Instance::find("p4d.24xlarge").unwrap().overrides();
        (0..2).for_each(|port| net.set(PortId(port), overrides.clone()));
        let (mut a, mut b) = (net.narrow_qp(0, QpType::Srd), net.narrow_qp(1, QpType::Srd));
        net.introduce(&mut a, &mut b);
        let to = net.region_with(&a, 1, 0, permissions);
        let from = net.region_with(&b, 1, 0, permissions);
        for check in [false, true] {
            overrides.check_read_version = Some(check);
            net.set(b.port, overrides.clone());
            net.post(&mut a, &Send::read(&b, &to, &from, 8));
            let expected = if check && (reader == 0) != (peer == 0) {
                CompStatus::RemoteFeatureMismatch
            } else {
                CompStatus::Ok
            };
            assert_eq!(net.status(&mut a), expected, "{reader} {peer} {check}");
        }
    }
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

#[test]
fn garbage_in_the_receive_queue() {
    // Descriptors, by their flags `first` and `last`.
    for descriptors in [
        &[(false, true)][..],
        &[(true, false), (true, true)],
        &[(true, false), (false, false)],
    ] {
        let (mut net, mut a, mut b, from, to) = set();
        for (first, last) in descriptors {
            let desc = RxDesc {
                buf_addr: to.iova,
                req_id: 7,
                length: 8,
                lkey_ctrl: RxLkeyCtrl {
                    lkey: to.lkey,
                    first: *first,
                    last: *last,
                },
            };
            net.put_receive(&mut b, &desc);
        }
        net.post(&mut a, &Send::message(&b, &from, 8));
        assert_eq!(net.status(&mut a), CompStatus::RemoteAbort);
        let completion = net.wait(&mut b);
        assert_eq!(
            (completion.req_id, completion.status),
            (7, CompStatus::LocalQpInternalError.into()),
            "{descriptors:?}"
        );
        assert_untouched(&mut net, &from, &to);
    }
}

#[test]
fn garbage_in_the_send_queue() {
    let (mut net, mut a, mut b, from, to) = set();
    let good = Send::write(&b, &from, &to, 100);
    net.put_raw(&mut a, &[0xff; 128]);
    net.put(&mut a, &good);
    net.ring_send(&a);
    assert_eq!(net.status(&mut a), CompStatus::LocalQpInternalError);
    assert_eq!(net.status(&mut a), CompStatus::Flushed);
    assert_untouched(&mut net, &from, &to);
    assert_eq!(net.poll(&mut b), None);
}

#[test]
fn work_requests_of_the_round_before() {
    let (mut net, mut a, _, from, to) = set();
    // An address handle that does not exist, so that each work request ends by itself.
    let mut send = Send::message(&a, &from, 8);
    send.ah = Some(77);
    for _ in 0..2 * DEPTH {
        assert_eq!(net.outcome(&mut a, &send), CompStatus::LocalInvalidAh);
    }
    // The doorbell is rung without a new work request.
    net.skip(&mut a);
    net.ring_send(&a);
    assert_eq!(net.status(&mut a), CompStatus::LocalQpInternalError);
    assert_untouched(&mut net, &from, &to);
}

#[test]
fn more_work_requests_than_there_is_room_for() {
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
    for _ in 0..=DEPTH {
        net.put(&mut a, &Send::message(&b, &from, 8));
    }
    net.ring_send(&a);
    net.run();
    assert_eq!((net.poll(&mut a), net.protocol_errors()), (None, 1));
    // The peer's receive queue has one work request. Its doorbell then announces more than the queue has room for.
    let (_, _) = (to, from);
    net.overrun_receive(&b);
    assert_eq!(net.status(&mut b), CompStatus::Flushed);
    assert_eq!(net.protocol_errors(), 2);
}

#[test]
fn queue_pairs_in_error_flush() {
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(&mut b, &[(to.iova, 8, to.lkey), (to.iova, 8, to.lkey)]);
    net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
    net.set_rnr_retry(&a, 7);
    let mut c = net.qp(1, QpType::Srd);
    net.introduce(&mut a, &mut c);
    for _ in 0..3 {
        net.post(&mut a, &Send::message(&c, &from, 8));
    }
    net.run();
    assert_eq!(net.poll(&mut a), None);
    net.modify(&mut a, QpState::Err);
    net.modify(&mut b, QpState::Err);
    for expected in 0..3 {
        let completion = net.wait(&mut a);
        assert_eq!(completion.status, u8::from(CompStatus::Flushed));
        assert_eq!(completion.req_id, expected);
    }
    for _ in 0..2 {
        assert_eq!(net.status(&mut b), CompStatus::Flushed);
    }
    // Later work requests are flushed, too.
    net.post(&mut a, &Send::message(&c, &from, 8));
    assert_eq!(net.status(&mut a), CompStatus::Flushed);
    net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
    assert_eq!(net.status(&mut b), CompStatus::Flushed);
    // The receiver is ready now, but no message arrives.
    net.receive(&mut c, &[(to.iova, 8, to.lkey)]);
    net.run_for(Duration::from_secs(1));
    assert_eq!((net.poll(&mut a), net.poll(&mut c)), (None, None));
    assert_untouched(&mut net, &from, &to);
}

#[test]
fn a_queue_pair_that_is_destroyed_is_flushed() {
    for flush in [true, false] {
        let (mut net, mut a, b, from, to) = set();
        let overrides = Overrides {
            flush_on_destroy: Some(flush),
            ..Overrides::default()
        };
        net.set(a.port, overrides);
        net.set_rnr_retry(&a, 7);
        for _ in 0..2 {
            net.post(&mut a, &Send::message(&b, &from, 8));
            net.run();
        }
        let received = net.receive(&mut a, &[(from.iova, 8, from.lkey)]);
        net.destroy(&a);
        // The completions precede that of the command.
        let expected = [0, 1, received].map(|id| (id, CompStatus::Flushed.into()));
        let flushed: Vec<_> = std::iter::from_fn(|| net.poll(&mut a)).collect();
        let flushed = flushed.iter().map(|cdesc| (cdesc.req_id, cdesc.status));
        let expected = expected.into_iter().filter(|_| flush);
        assert!(flushed.eq(expected));
        net.run_for(Duration::from_secs(1));
        assert_eq!(net.poll(&mut a), None);
        assert_untouched(&mut net, &from, &to);
    }
}

#[test]
fn a_reset_queue_pair_starts_anew() {
    let (mut net, mut a, mut b, from, to) = set();
    net.set_rnr_retry(&a, 7);
    net.post(&mut a, &Send::message(&b, &from, 8));
    net.run();
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        net.modify(&mut a, state);
    }
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    net.run_for(Duration::from_secs(1));
    // Earlier work requests are discarded.
    assert_eq!((net.poll(&mut a), net.poll(&mut b)), (None, None));
    assert_eq!(net.post(&mut a, &Send::message(&b, &from, 50)), 0);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    assert_eq!(net.wait(&mut b).length, 50);
}

#[test]
fn a_drained_send_queue_holds_posted_work_requests() {
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    net.modify(&mut a, QpState::Sqd);
    net.post(&mut a, &Send::message(&b, &from, 50));
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.poll(&mut a), None);
    net.modify(&mut a, QpState::Rts);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
}

#[test]
fn regions_of_running_transfers_can_be_deregistered() {
    // Memory of neither side is used after the device has completed its deregistration.
    for remote in [false, true] {
        let settings = Settings {
            delay_us: 50.0,
            ..Settings::default()
        };
        let (mut net, mut a, b) = Net::pair(settings);
        let (from, to) = (net.region(&a, 600, 0), net.region(&b, 600, 0));
        net.fill(&from, 0, &vec![0xaa; 600 * 4096]);
        net.post(&mut a, &Send::write(&b, &from, &to, 600 * 4096));
        net.run_for(Duration::from_micros(120));
        let (port, l_key, expected) = if remote {
            (b.port, to.lkey, CompStatus::RemoteBadAddress)
        } else {
            (a.port, from.lkey, CompStatus::LocalInvalidLkey)
        };
        deregister(&mut net, port, l_key);
        let before = net.content(&to, 0, 600 * 4096);
        assert_eq!(net.status(&mut a), expected);
        assert_eq!(net.content(&to, 0, 600 * 4096), before);
    }
}

#[test]
fn memory_that_is_not_mapped_any_more() {
    let (mut net, mut a, b, from, to) = set();
    net.unmap(&to);
    net.post(&mut a, &Send::write(&b, &from, &to, 100));
    assert_eq!(net.status(&mut a), CompStatus::RemoteBadAddress);
    let other = net.region(&b, 1, 0);
    net.unmap(&from);
    net.post(&mut a, &Send::write(&b, &from, &other, 100));
    assert_eq!(net.status(&mut a), CompStatus::LocalInvalidLkey);
}
