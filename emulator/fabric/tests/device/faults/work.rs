// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules that make the data path misbehave, as programs see it.

use super::*;

/// What a queue pair completes: ids and statuses.
type Ended = Vec<(u16, CompStatus)>;

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

/// A completion that is late, or held and doubled, is that of its message, which is executed before.
#[test]
fn a_completion_is_late() {
    const LATE: &str = r#"{"delay_ms":50}"#;
    let held = (1, "RECEIVE", r#"{"hold":"r","duplicate":true}"#, 2);
    for (at, work, then, count) in [(0, "SEND", LATE, 1), (1, "RECEIVE", LATE, 1), held] {
        let mut peers = with(at, work, then);
        let received = peers.ready(4096);
        let ids = [peers.post(&peers.message(100)), received];
        peers.run_for(Duration::from_millis(49));
        let sent = peers.content(0, 0, 100);
        assert_eq!(peers.content(1, 0, 100), sent);
        assert_eq!(peers.polled(1 - at), [(ids[1 - at], OK)]);
        assert_eq!((peers.polled(at), peers.state(PortId(at)).late), (vec![], usize::from(then == LATE)));
        peers.run_for(Duration::from_millis(2));
        release(&mut peers, at, "r", None);
        assert_eq!(peers.all(at), vec![(ids[at], OK); count], "{then}");
        assert_eq!(peers.state(PortId(at)).late, 0);
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

/// Adds a rule for one command of a device.
fn inject_command(peers: &mut Peers, opcode: &str, then: &str) {
    let rule = format!(r#"{{"when":{{"opcode":"{opcode}"}},"then":{then}}}"#);
    peers.inject(PortId(0), &rule);
}

/// Submits a command of the first device; returns its id.
fn submit(peers: &mut Peers, command: &impl Command) -> u16 {
    peers.driver(PortId(0), |driver| driver.submit(command))
}

fn completed(peers: &mut Peers) -> Vec<u16> {
    peers.driver(PortId(0), Driver::completed)
}

#[test]
fn late_and_held_completions_end_with_their_queue_pair_or_device() {
    let ends = ["error", "reset", "destroy", "restart", "death", "guest"];
    for (end, is_held) in ends.iter().flat_map(|end| [(*end, false), (*end, true)]) {
        let effect = match is_held {
            true => r#"{"hold":"x"},"times":1"#,
            false => r#"{"delay_ms":50},"times":1"#,
        };
        let mut peers = with(0, "ANY", effect);
        inject_command(&mut peers, "ALLOC_PD", effect);
        write(&mut peers, 1);
        let command = submit(&mut peers, &AllocPd {});
        match end {
            "error" => peers.modify(0, QpState::Err),
            "reset" => peers.modify(0, QpState::Reset),
            "destroy" => peers.net.destroy(&peers.qps[0]),
            _ => peers.driver(PortId(0), |driver| match end {
                "death" => driver.die("{}"),
                "guest" => driver.device.power_on(&mut driver.world),
                _ => driver.reset(ResetReason::Generic),
            }),
        }
        // A work request that ended before the error is still reported.
        let (of_work, of_commands) = (end == "error", ends[..3].contains(&end));
        let expected = usize::from(of_work) + usize::from(of_commands);
        let released = release(&mut peers, 0, "x", None);
        assert_eq!(released, if is_held { expected as u64 } else { 0 }, "{end}");
        assert_eq!(peers.all(0), vec![(0, OK); of_work.into()], "{end}");
        assert_eq!(completed(&mut peers), vec![command; of_commands.into()]);
        // A dead device completes nothing, even when the rules are cleared.
        peers.driver(PortId(0), |driver| driver.device.clear());
        peers.run_for(LONG);
        assert_eq!(completed(&mut peers), [0; 0], "{end}");
        peers.driver(PortId(0), Driver::start_over);
        assert_eq!(held(&mut peers), [], "{end}");
        assert!(peers.execute(PortId(0), &AllocPd {}).is_ok(), "{end}");
    }
}

/// Held work requests and commands are executed, and others overtake them. They complete when they are released, by name and in
/// their order, or when the rules are cleared.
#[test]
fn held_completions_are_posted_when_they_are_released() {
    let mut peers = with(0, "ANY", r#"{"hold":"x"},"times":3"#);
    inject_command(&mut peers, "ALLOC_PD", r#"{"hold":"x"},"times":3"#);
    inject_command(&mut peers, "ALLOC_UAR", r#"{"hold":"y"}"#);
    let before = peers.state(PortId(0));
    let pds = [(); 3].map(|()| {
        write(&mut peers, 1);
        submit(&mut peers, &AllocPd {})
    });
    let uar = submit(&mut peers, &AllocUar {});
    peers.run_for(Duration::from_secs(1000));
    assert_eq!((peers.polled(0), completed(&mut peers)), (vec![], vec![]));
    assert_eq!(held(&mut peers), [("x".into(), 6), ("y".into(), 1)]);
    let state = peers.state(PortId(0));
    let made = |state: &State| state.resources.pd + state.resources.uar;
    assert_eq!(made(&state), made(&before) + 4);
    assert_eq!((state.admin.in_flight, state.late), (4, 0));
    assert_eq!(state.admin.completed, before.admin.completed);
    let written = peers.content(0, 0, 100);
    assert_eq!(peers.content(1, 0, 100), written);
    write(&mut peers, 1);
    let other = submit(&mut peers, &AllocPd {});
    assert_eq!(peers.polled(0), [(3, OK)]);
    assert_eq!(completed(&mut peers), [other]);
    // They leave nothing due.
    let due = peers.driver(PortId(0), |driver| driver.run(Duration::ZERO));
    assert_eq!(due, None);
    peers.world(PortId(0), World::take_interrupts);
    for (at, name, count, works, commands) in [
        (0, "z", None, vec![], vec![]),
        (1, "x", None, vec![], vec![]),
        (0, "x", Some(0), vec![], vec![]),
        (0, "x", Some(1), vec![0], vec![]),
        (0, "x", Some(1), vec![], vec![pds[0]]),
        (0, "y", Some(9), vec![], vec![uar]),
        (0, "x", Some(3), vec![1, 2], vec![pds[1]]),
        (0, "y", None, vec![], vec![]),
    ] {
        let released = release(&mut peers, at, name, count);
        assert_eq!(released, (works.len() + commands.len()) as u64, "{name}");
        let ended: Ended = works.into_iter().map(|id| (id, OK)).collect();
        assert_eq!(peers.all(0), ended, "{name} {count:?}");
        let raised = peers.world(PortId(0), World::take_interrupts);
        assert_eq!(raised, vec![0; (!commands.is_empty()).into()]);
        assert_eq!(completed(&mut peers), commands, "{name} {count:?}");
    }
    peers.driver(PortId(0), |driver| driver.device.clear());
    peers.run();
    assert_eq!(completed(&mut peers), [pds[2]]);
    assert_eq!((held(&mut peers), peers.protocol_errors()), (vec![], 0));
    assert_eq!(peers.state(PortId(0)).admin.in_flight, 0);
}

#[test]
fn late_and_held_completions_are_bounded() {
    for (late, more) in [(1024, ""), (24, r#","times":24"#)] {
        let mut peers = with(0, "ANY", &format!(r#"{{"delay_ms":1000000}}{more}"#));
        inject(&mut peers, 0, "ANY", &format!(r#"{{"hold":"x"}},"skip":{late}"#));
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
        (r#"{"corrupt":[{"offset":0,"value":77},{"offset":3,"value":0}]}"#, vec![(77, OK), (1, OK)]),
        (r#"{"duplicate":true,"delay_ms":5,"status":1}"#, vec![(1, OK), (0, FLUSHED), (0, FLUSHED)]),
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
        (r#"{"qp_error":true,"status":"REMOTE_ERROR_ABORT"}"#, CompStatus::RemoteAbort),
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
    let mut peers = with(0, "FAST_REG", r#"{"status":"LOCAL_ERROR_INVALID_LKEY"},"times":1"#);
    let region = peers.net.fast_region(&peers.qps[0], 4, 0);
    peers.ends(&Send::register(&region.inline()), CompStatus::LocalInvalidLkey);
    assert_eq!(peers.state(PortId(0)).fast_regs, 0);
}
