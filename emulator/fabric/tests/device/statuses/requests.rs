// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests that are wrong in themselves.

use super::*;

/// Distance from IOVAs of regions to just below 0, so that an access of 100 bytes wraps.
const WRAPPING: u64 = u64::MAX - IOVA - 50;

/// Permissions of a region, by bit: of its own queue pairs to write, and of peers to write and to read.
const OWN: u8 = 1;
const REMOTE_WRITE: u8 = 2;
const REMOTE_READ: u8 = 4;

/// Returns peers on devices of these profiles, with work requests of 64 bytes and regions with permissions.
fn old(profiles: [Profile; 2], qp_type: QpType, overrides: &str, permissions: u8) -> Peers {
    let mut net = Net::new(&profiles, Settings::default());
    [0, 1].map(|port| net.set(PortId(port), overrides));
    let qps = net.pair([0, 1], [Shape::new(qp_type, 64); 2]);
    let permissions = RegMrPermissions::from_raw(permissions);
    let regions = [0, 1].map(|at: usize| net.region_with(&qps[at], 1, 0, permissions));
    Peers { net, qps, regions }
}

#[test]
fn unsupported_op() {
    let expected = CompStatus::LocalUnsupportedOp;
    let faults: [Fault; 5] = [
        ("operation 5", |send| send.operation = 5),
        ("operation 7", |send| send.operation = 7),
        ("operation 15", |send| send.operation = 15),
        ("a read with immediate data", |send| {
            (send.operation, send.immediate) = (OpType::RdmaRead.into(), Some(1));
        }),
        ("an inline read", |send| {
            (send.operation, send.inline) = (OpType::RdmaRead.into(), Some(vec![1; 16]));
        }),
    ];
    all_refused(expected, &faults);
    // RDMA on a device or a queue pair that does not support it.
    for (profile, qp_type) in [(Profile::Efa0, QpType::Srd), (Profile::Efa3, QpType::Ud)] {
        let mut peers = old([profile; 2], qp_type, "{}", OWN);
        for send in [peers.read(8), peers.write(8)] {
            peers.ends(&send, expected);
        }
    }
}

#[test]
fn invalid_ah() {
    let expected = CompStatus::LocalInvalidAh;
    let unknown: [Fault; 3] = [
        ("handle 0", |send| send.ah = Some(0)),
        ("an unknown handle", |send| send.ah = Some(77)),
        ("the last handle", |send| send.ah = Some(u16::MAX)),
    ];
    all_refused(expected, &unknown);
    refused(expected, "a destroyed handle", |peers, send| {
        send.ah = Some(peers.qps[0].ah);
        peers.net.destroy_handle(&peers.qps[0]);
    });
    refused(expected, "a handle of another domain", |peers, send| {
        let other = peers.qp(0, QpType::Srd);
        send.ah = Some(peers.handle(&other, PortId(1)));
    });
}

#[test]
fn invalid_lkey() {
    let expected = CompStatus::LocalInvalidLkey;
    let faults: [Fault; 11] = [
        ("a key of all ones", |send| send.buffers[0].2 = 0xff_ffff),
        ("key zero", |send| send.buffers[0].2 = 0),
        ("an unknown key", |send| send.buffers[0].2 = 999),
        ("a remote key", |send| send.buffers[0].2 |= 1 << 19),
        ("a key of generation 1", |send| send.buffers[0].2 |= 1 << 20),
        ("a key of generation 8", |send| send.buffers[0].2 |= 8 << 20),
        ("generation 15", |send| send.buffers[0].2 |= 15 << 20),
        ("a byte before the start", |send| send.buffers[0].0 -= 1),
        ("beyond the end", |send| send.buffers[0].0 += 4 * 4096 - 99),
        ("far beyond the end", |send| send.buffers[0].0 += 1 << 40),
        ("wrapping addresses", |send| send.buffers[0].0 += WRAPPING),
    ];
    all_refused(expected, &faults);
    refused(expected, "a key of another domain", |peers, send| {
        let other = peers.qp(0, QpType::Srd);
        send.buffers[0].2 = peers.region(&other, 1, 0).lkey;
    });
    refused(expected, "a deregistered key", |peers, send| {
        let region = peers.net.region(&peers.qps[0], 1, 0);
        peers.deregister(PortId(0), region.lkey).unwrap();
        send.buffers[0].2 = region.lkey;
    });
    let what = "a read into memory without write permission";
    refused(expected, what, |peers, send| {
        let none = RegMrPermissions::default();
        let region = peers.net.region_with(&peers.qps[0], 1, 0, none);
        (send.operation, send.buffers[0].2) = (OpType::RdmaRead.into(), region.lkey);
    });
    // A region that ends before its page does.
    let mut peers = ideal();
    let command = reg_mr(peers.qps[0].pd, PAGE, 4000);
    peers.regions[0] = peers.driver(PortId(0), |driver| {
        let page = driver.world.map(1);
        Region::new(driver, vec![page], command)
    });
    for (length, expected) in [(4000, OK), (4001, expected)] {
        peers.ends(&peers.write(length), expected);
    }
}

/// Makes a message of a write.
fn make_message(send: &mut Send) {
    (send.operation, send.remote) = (OpType::Send.into(), None);
}

#[test]
fn bad_length() {
    let faults: [Fault; 6] = [
        ("a long message", |send| {
            make_message(send);
            send.buffers[0].1 = 8929;
        }),
        ("lengths whose sum overflows", |send| {
            make_message(send);
            send.buffers = vec![(send.buffers[0].0, u32::MAX, 1); 2];
        }),
        ("more than the limit of an operation", |send| {
            send.buffers[0].1 = u32::MAX;
            send.remote.as_mut().unwrap().1 = u32::MAX;
        }),
        ("unequal lengths", |send| send.buffers[0].1 = 99),
        ("two buffers", |send| send.buffers.push(send.buffers[0])),
        ("more inline data than a work request can have", |send| {
            (send.inline, send.buffers) = (Some(vec![1; 81]), vec![]);
        }),
    ];
    all_refused(CompStatus::LocalBadLength, &faults);
}

/// A change of the remote memory of a work request: address, length and key.
type RemoteFault = (&'static str, fn(&mut (u64, u32, u32)));

#[test]
fn bad_address() {
    let expected = CompStatus::RemoteBadAddress;
    let faults: [RemoteFault; 6] = [
        ("an unknown key", |it| it.2 = 999 | (1 << 19)),
        ("a local key", |it| it.2 = 1),
        ("a key of another generation", |it| it.2 |= 1 << 20),
        ("a byte before the start", |it| it.0 -= 1),
        ("a byte beyond the end", |it| it.0 += 4 * 4096 - 99),
        ("wrapping addresses", |it| it.0 += WRAPPING),
    ];
    // Each region permits only the other operation.
    for (operation, other) in [(OpType::RdmaWrite, REMOTE_READ), (OpType::RdmaRead, REMOTE_WRITE)] {
        for (what, change) in faults {
            refused(expected, what, |_, send| {
                send.operation = operation.into();
                change(send.remote.as_mut().unwrap());
            });
        }
        refused(expected, "a key of another domain", |peers, send| {
            let qp = peers.qp(1, QpType::Srd);
            let region = peers.region(&qp, 1, 0);
            send.operation = operation.into();
            send.remote = Some((region.iova, 100, region.rkey));
        });
        refused(expected, "memory without permission for peers", |peers, send| {
            let permissions = RegMrPermissions::from_raw(OWN | other);
            let region = peers.net.region_with(&peers.qps[1], 1, 0, permissions);
            send.operation = operation.into();
            send.remote = Some((region.iova, 100, region.rkey));
        });
    }
}

/// Whether the key of a write or read of no bytes matters is a guess: see `strict=guesses`.
#[test]
fn keys_of_no_bytes() {
    for (check, expected) in [(false, OK), (true, CompStatus::RemoteBadAddress)] {
        let mut peers = ideal();
        peers.set(PortId(1), &format!(r#"{{"check_empty_keys":{check}}}"#));
        for mut send in [peers.write(0), peers.read(0)] {
            peers.ends(&send, OK);
            send.remote.as_mut().unwrap().2 ^= 1;
            peers.ends(&send, expected);
        }
    }
}

#[test]
fn feature_mismatch() {
    for (profile, reads) in [(Profile::Efa1, false), (Profile::Efa0, true)] {
        let mut peers = old([Profile::Efa3, profile], QpType::Srd, "{}", OWN);
        let send = if reads { peers.read(8) } else { peers.write(8) };
        peers.ends(&send, CompStatus::RemoteFeatureMismatch);
    }
}

/// Whether devices of the first version and others read from each other is a guess: see `strict=guesses`.
#[test]
fn reads_between_versions() {
    let profiles = [Profile::Efa0, Profile::Efa1, Profile::Efa2];
    // A p4d has the first version, and supports RDMA reads.
    let overrides = r#"{"rdma_read":true,"max_rdma_size":1073741824,"max_wr_rdma_sges":1}"#;
    for (reader, peer) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        let both = [profiles[reader], profiles[peer]];
        let mut peers = old(both, QpType::Srd, overrides, OWN | REMOTE_READ);
        for check in [false, true] {
            peers.set(PortId(1), &format!(r#"{{"check_read_version":{check}}}"#));
            let expected = match check && (reader == 0) != (peer == 0) {
                true => CompStatus::RemoteFeatureMismatch,
                false => OK,
            };
            let status = peers.outcome(&peers.read(8));
            assert_eq!(status, expected, "{reader} {peer} {check}");
        }
    }
}

#[test]
fn garbage_in_the_receive_queue() {
    // Descriptors, by their flags `first` and `last`.
    for descriptors in [&[(false, true)][..], &[(true, false), (true, true)], &[(true, false), (false, false)]] {
        let mut peers = ideal();
        let Peers { net, qps, regions } = &mut peers;
        let (buf_addr, lkey) = (regions[1].iova, regions[1].lkey);
        for (first, last) in descriptors.iter().copied() {
            let lkey_ctrl = RxLkeyCtrl { lkey, first, last };
            let (req_id, length) = (7, 8);
            let desc = RxDesc { buf_addr, req_id, length, lkey_ctrl };
            net.put_receive(&mut qps[1], &desc);
        }
        peers.ends(&peers.message(8), CompStatus::RemoteAbort);
        let expected = (7, CompStatus::LocalQpInternalError);
        assert_eq!(peers.polled(1)[0], expected, "{descriptors:?}");
        assert!(peers.are_untouched());
    }
}

#[test]
fn garbage_in_the_send_queue() {
    let mut peers = ideal();
    peers.net.put_raw(&mut peers.qps[0], &[0xff; 128]);
    peers.put(&peers.write(100));
    peers.ring();
    assert_eq!(peers.status(0), CompStatus::LocalQpInternalError);
    assert_eq!(peers.status(0), CompStatus::Flushed);
    assert!(peers.are_untouched() && peers.poll(1).is_none());
}

#[test]
fn work_requests_of_the_round_before() {
    let mut peers = ideal();
    // An address handle that does not exist, so that each work request ends by itself.
    let mut send = peers.message(8);
    send.ah = Some(77);
    for _ in 0..2 * DEPTH {
        peers.ends(&send, CompStatus::LocalInvalidAh);
    }
    // The doorbell is rung without a new work request.
    peers.qps[0].sent += 1;
    peers.ring();
    assert_eq!(peers.status(0), CompStatus::LocalQpInternalError);
    assert!(peers.are_untouched());
}

#[test]
fn more_work_requests_than_there_is_room_for() {
    let mut peers = ideal();
    peers.ready(8);
    for _ in 0..=DEPTH {
        peers.put(&peers.message(8));
    }
    peers.ring();
    peers.run();
    assert_eq!((peers.polled(0), peers.protocol_errors()), (vec![], 1));
    // The peer's receive queue has one work request. Its doorbell then announces more than the queue has room for.
    let doorbell = peers.qps[1].doorbells[1];
    peers.doorbell(PortId(1), doorbell, 1 + u32::from(DEPTH));
    assert_eq!(peers.status(1), CompStatus::Flushed);
    assert_eq!(peers.protocol_errors(), 2);
}
