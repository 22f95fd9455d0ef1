// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules that make the data path misbehave, as programs see it.

use super::*;

/// What a queue pair completes: ids and statuses.
type Ended = Vec<(u16, CompStatus)>;

const OK: CompStatus = CompStatus::Ok;
const FLUSHED: CompStatus = CompStatus::Flushed;

fn peers() -> Peers {
    Peers::new(Settings::default())
}

/// Returns peers with a rule for the work requests of one queue pair. `then` may end with more than the effect.
fn with(at: usize, work: &str, then: &str) -> Peers {
    let mut peers = peers();
    inject(&mut peers, at, work, then);
    peers
}

fn inject(peers: &mut Peers, at: usize, work: &str, then: &str) {
    let number = peers.qps[at].number;
    let rule = format!(r#"{{"when":{{"work":"{work}","qp":{number}}},"then":{then}}}"#);
    peers.inject(PortId(at), &rule);
}

fn qp_state(peers: &mut Peers, at: usize) -> QpState {
    let qp_handle = peers.qps[at].number.into();
    let answer = peers.execute(PortId(at), &QueryQp { qp_handle });
    QpState::try_from(answer.unwrap().qp_state).unwrap()
}

/// Posts this many writes, one by one.
fn write(peers: &mut Peers, count: usize) {
    for _ in 0..count {
        peers.post(&peers.write(100));
        peers.run();
    }
}

#[test]
fn the_nth_send_ends_with_a_status() {
    for status in [
        CompStatus::RemoteBadAddress,
        CompStatus::LocalUnrespRemote,
        CompStatus::RemoteAbort,
        CompStatus::LocalQpInternalError,
    ] {
        let then = format!(r#"{{"status":"{status}"}},"skip":2,"times":1"#);
        let mut peers = with(0, "SEND", &then);
        let ended = [(); 4].map(|()| {
            peers.ready(4096);
            peers.outcome(&peers.message(100))
        });
        let (last, state, received) = match status {
            CompStatus::LocalQpInternalError => (FLUSHED, QpState::Err, 2),
            _ => (OK, QpState::Rts, 3),
        };
        assert_eq!(ended, [OK, OK, status, last]);
        // The failed work request was not sent.
        assert_eq!(peers.all(1).len(), received, "{status}");
        assert_eq!(qp_state(&mut peers, 0), state, "{status}");
        assert_eq!(peers.state(PortId(0)).faults_hit, 1);
        assert_eq!(peers.protocol_errors(), 0);
    }
}

/// A wrong status of work requests that are executed, or are not. It may be 0, or not defined.
#[test]
fn executed_work_requests_may_have_a_wrong_status() {
    let then = r#"{"status":"LOCAL_ERROR_UNRESP_REMOTE","executed":true}"#;
    let mut peers = with(0, "RDMA_WRITE", then);
    peers.ends(&peers.write(4096), CompStatus::LocalUnrespRemote);
    let written = peers.content(0, 0, 4096);
    assert_eq!(peers.content(1, 0, 4096), written);
    for status in [0, 200] {
        let mut peers = with(0, "RDMA_READ", &format!(r#"{{"status":{status}}}"#));
        peers.post(&peers.read(4096));
        assert_eq!(peers.wait(0).status, status);
        assert!(peers.are_untouched());
        assert_eq!(peers.protocol_errors(), 0);
    }
}

#[test]
fn a_completion_is_late() {
    let mut peers = with(0, "ANY", r#"{"delay_ms":50},"times":1"#);
    write(&mut peers, 2);
    peers.run_for(Duration::from_millis(49));
    let written = peers.content(0, 0, 100);
    assert_eq!(peers.content(1, 0, 100), written);
    assert_eq!(peers.polled(0), [(1, OK)]);
    assert_eq!(peers.state(PortId(0)).late, 1);
    peers.run_for(Duration::from_millis(2));
    assert_eq!(peers.polled(0), [(0, OK)]);
    assert_eq!(peers.state(PortId(0)).late, 0);
}

/// A receive that is late, or held and doubled, is that of its message.
#[test]
fn a_receive_is_late() {
    for (then, count) in [
        (r#"{"delay_ms":50}"#, 1),
        (r#"{"hold":"r","duplicate":true}"#, 2),
    ] {
        let mut peers = with(1, "RECEIVE", then);
        let received = peers.ready(4096);
        peers.ends(&peers.message(100), OK);
        peers.run_for(Duration::from_millis(40));
        let (sent, expected) = (peers.content(0, 0, 100), peers.content(1, 0, 100));
        assert_eq!(sent, expected);
        assert_eq!(peers.poll(1), None);
        peers.run_for(Duration::from_millis(40));
        release(&mut peers, 1, "r", None);
        for _ in 0..count {
            let completion = peers.poll(1).unwrap();
            assert_eq!((completion.req_id, completion.length), (received, 100));
        }
        assert_eq!(peers.poll(1), None);
    }
}

/// Returns the number of held completions of a device, by name.
fn held(peers: &mut Peers) -> Vec<(String, usize)> {
    peers.state(PortId(0)).held.into_iter().collect()
}

/// Releases held completions; returns their number.
fn release(peers: &mut Peers, at: usize, name: &str, count: Option<u64>) -> u64 {
    peers.driver(PortId(at), |driver| driver.device.release(name, count))
}

#[test]
fn late_and_held_completions_end_with_their_queue_pair() {
    for then in [r#"{"delay_ms":50}"#, r#"{"hold":"x"}"#] {
        for end in ["error", "reset", "destroy", "device"] {
            let mut peers = with(0, "ANY", then);
            write(&mut peers, 1);
            match end {
                "error" => peers.modify(0, QpState::Err),
                "reset" => peers.modify(0, QpState::Reset),
                "destroy" => peers.net.destroy(&peers.qps[0]),
                _ => peers.driver(PortId(0), |driver| driver.reset(ResetReason::Generic)),
            }
            // A work request that ended before the error is still reported.
            let count = usize::from(end == "error");
            let are_held = then.contains("hold");
            let released = release(&mut peers, 0, "x", None);
            assert_eq!(released, u64::from(are_held && end == "error"), "{end}");
            assert_eq!(peers.all(0), vec![(0, OK); count], "{then} {end}");
            assert_eq!(held(&mut peers), [], "{end}");
        }
    }
}

#[test]
fn held_completions_are_posted_when_they_are_released() {
    let mut peers = with(0, "ANY", r#"{"hold":"a"},"times":3"#);
    write(&mut peers, 4);
    // The work requests are executed, and a later one completes before them.
    assert_eq!(peers.all(0), [(3, OK)]);
    let written = peers.content(0, 0, 100);
    assert_eq!(peers.content(1, 0, 100), written);
    assert_eq!(held(&mut peers), [("a".into(), 3)]);
    assert_eq!(peers.state(PortId(0)).late, 0);
    for (at, name, count, expected) in [
        (0, "b", None, vec![]),
        (1, "a", None, vec![]),
        (0, "a", Some(1), vec![0]),
        (0, "a", Some(7), vec![1, 2]),
        (0, "a", None, vec![]),
    ] {
        let released = release(&mut peers, at, name, count);
        assert_eq!(released, expected.len() as u64, "{at} {name}");
        let expected: Ended = expected.into_iter().map(|id| (id, OK)).collect();
        assert_eq!(peers.all(0), expected, "{at} {name}");
    }
    assert_eq!((held(&mut peers), peers.protocol_errors()), (vec![], 0));
}

#[test]
fn commands_and_completions_are_released_in_one_order() {
    let mut peers = with(0, "ANY", r#"{"hold":"x"}"#);
    peers.inject(
        PortId(0),
        r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"x"}}"#,
    );
    let commands = [(); 2].map(|()| {
        write(&mut peers, 1);
        peers.driver(PortId(0), |driver| driver.submit(&AllocPd {}))
    });
    assert_eq!(held(&mut peers), [("x".into(), 4)]);
    for number in 0..2 {
        for (completions, completed) in [
            (vec![(number, OK)], vec![]),
            (vec![], vec![commands[usize::from(number)]]),
        ] {
            assert_eq!(release(&mut peers, 0, "x", Some(1)), 1);
            assert_eq!(peers.all(0), completions);
            let found = peers.driver(PortId(0), Driver::completed);
            assert_eq!(found, completed);
        }
    }
}

#[test]
fn clearing_releases_held_completions() {
    let mut peers = with(0, "ANY", r#"{"hold":"x"},"times":1"#);
    inject(&mut peers, 0, "ANY", r#"{"hold":"y"},"skip":1"#);
    write(&mut peers, 3);
    assert_eq!(held(&mut peers), [("x".into(), 1), ("y".into(), 2)]);
    peers.driver(PortId(0), |driver| driver.device.clear());
    assert_eq!(peers.all(0), [0, 1, 2].map(|id| (id, OK)));
    assert_eq!(held(&mut peers), []);
}

#[test]
fn late_and_held_completions_are_bounded() {
    for (late, more) in [(1024, ""), (24, r#","times":24"#)] {
        let mut peers = with(0, "ANY", &format!(r#"{{"delay_ms":1000000}}{more}"#));
        inject(
            &mut peers,
            0,
            "ANY",
            &format!(r#"{{"hold":"x"}},"skip":{late}"#),
        );
        write(&mut peers, 1024);
        assert_eq!(peers.polled(0), []);
        write(&mut peers, 1);
        assert_eq!(peers.polled(0), [(1024, OK)]);
        assert_eq!(peers.state(PortId(0)).late, late);
        assert_eq!(release(&mut peers, 0, "x", None), 1024 - late as u64);
    }
}

#[test]
fn completions_are_doubled_lost_and_wrong() {
    for (then, expected) in [
        (r#"{"duplicate":true}"#, vec![(0, OK), (0, OK), (1, OK)]),
        (r#"{"silence":true}"#, vec![(1, OK)]),
        // The phase stays correct when the flags are corrupted.
        (
            r#"{"corrupt":[{"offset":0,"value":77},{"offset":3,"value":0}]}"#,
            vec![(77, OK), (1, OK)],
        ),
        (
            r#"{"duplicate":true,"delay_ms":5,"status":1}"#,
            vec![(1, OK), (0, FLUSHED), (0, FLUSHED)],
        ),
    ] {
        let mut peers = with(0, "RDMA_WRITE", &format!(r#"{then},"times":1"#));
        write(&mut peers, 2);
        assert_eq!(peers.all(0), expected, "{then}");
        assert_eq!(peers.protocol_errors(), 0);
    }
}

#[test]
fn a_rule_moves_a_queue_pair_to_error() {
    for (then, first) in [
        (r#"{"qp_error":true}"#, FLUSHED),
        (
            r#"{"qp_error":true,"status":"REMOTE_ERROR_ABORT"}"#,
            CompStatus::RemoteAbort,
        ),
    ] {
        let mut peers = with(0, "SEND", &format!(r#"{then},"skip":1,"times":1"#));
        let Peers { net, qps, .. } = &mut peers;
        let received = net.receive(&mut qps[0], &[(0, 0, 0)]);
        for _ in 0..4 {
            peers.ready(100);
            peers.put(&peers.message(100));
        }
        peers.ring();
        // Earlier messages may or may not have been delivered.
        let mut ended = peers.all(0);
        ended.retain(|(id, _)| *id != 0);
        let flushed = [2, 3, received].map(|id| (id, FLUSHED));
        assert_eq!(ended[0], (1, first), "{then}");
        assert_eq!(ended[1..], flushed, "{then}");
        assert_eq!(qp_state(&mut peers, 0), QpState::Err);
        assert_eq!(peers.protocol_errors(), 0);
    }

    // The error state due to a received message, and at an operator's request.
    let mut peers = with(1, "RECEIVE", r#"{"qp_error":true}"#);
    [100, 100].map(|length| peers.ready(length));
    peers.post(&peers.message(100));
    assert_eq!(peers.all(1), [(0x8000, OK), (0x8001, FLUSHED)]);
    assert_eq!(qp_state(&mut peers, 1), QpState::Err);
    let Peers { net, qps, .. } = &mut peers;
    net.receive(&mut qps[0], &[(0, 0, 0)]);
    let number = qps[0].number;
    peers.driver(PortId(0), |Driver { device, world, .. }| {
        device.fail_qp(world, number).unwrap();
        assert!(device.fail_qp(world, number + 50).is_err());
    });
    assert_eq!(peers.all(0), [(0, OK), (0x8000, FLUSHED)]);
}

#[test]
fn a_receive_has_a_status() {
    let then = r#"{"status":"LOCAL_ERROR_BAD_LENGTH"},"times":1"#;
    let mut peers = with(1, "RECEIVE", then);
    for status in [CompStatus::LocalBadLength, OK] {
        peers.ready(100);
        // The sender does not see the receiver's status.
        peers.ends(&peers.message(100), OK);
        assert_eq!(peers.status(1), status);
    }
    assert_eq!(qp_state(&mut peers, 1), QpState::Rts);
}

#[test]
fn a_rule_is_for_a_queue_pair_and_a_peer() {
    let mut peers = with(0, "RDMA_WRITE", r#"{"status":20},"times":1"#);
    for (peer, status) in [(1, 21), (0, 22)] {
        let peer = std::net::Ipv6Addr::from(peers.address(PortId(peer)));
        let when = format!(r#"{{"work":"ANY","peer":"{peer}"}}"#);
        let rule = format!(r#"{{"when":{when},"then":{{"status":{status}}},"times":1}}"#);
        peers.inject(PortId(0), &rule);
    }
    let write = peers.write(100);
    let mut other = peers.net.sibling(&peers.qps[0], QpType::Srd);
    for status in [21, 0] {
        peers.net.post(&mut other, &write);
        assert_eq!(peers.net.wait(&mut other).status, status);
    }
    peers.post(&write);
    assert_eq!(peers.wait(0).status, 20);
}

#[test]
fn a_device_may_die_or_be_unplugged_at_any_work_request() {
    // Messages that were acknowledged before the receiver died have succeeded.
    for (work, at, expected) in [("RDMA_WRITE", 0, 2), ("RECEIVE", 1, 3)] {
        for then in [r#"{"die":{}}"#, r#"{"unplug":true}"#] {
            let mut peers = with(at, work, &format!(r#"{then},"skip":1"#));
            let mut write = peers.write(100);
            write.immediate = Some(1);
            let mut completions = 0;
            for _ in 0..3 {
                peers.ready(100);
                peers.post(&write);
                peers.run();
                completions += peers.polled(0).len() + peers.polled(1).len();
            }
            let state = peers.state(PortId(at));
            let dies = then.contains("die");
            assert_eq!((state.dead, state.plugged), (dies, dies));
            assert_eq!(completions, expected, "{work} {then}");
        }
    }
}

#[test]
fn memory_regions_are_not_changed() {
    let mut peers = with(
        0,
        "FAST_REG",
        r#"{"status":"LOCAL_ERROR_INVALID_LKEY"},"times":1"#,
    );
    let region = peers.net.fast_region(&peers.qps[0], 4, 0);
    peers.ends(
        &Send::register(&region.inline()),
        CompStatus::LocalInvalidLkey,
    );
    assert_eq!(peers.state(PortId(0)).fast_regs, 0);
}
