// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests that are wrong in themselves.

use efa_fabric::{PortId, Settings};
use efa_hw::{
    admin::{mr::RegMrPermissions, qp::QpType},
    io::{CompStatus, OpType, RxDesc, RxLkeyCtrl},
};
use efa_model::{Instance, Overrides, Profile};
use efa_testing::net::{DEPTH, Net, Send};

use super::{assert_untouched, deregister, destroy_handle, refused, refused_send, set};

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
                    relaxed_ordering: false,
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
