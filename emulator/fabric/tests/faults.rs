// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules that make the data path misbehave, as programs see it.

use std::time::Duration;

use efa_fabric::Settings;
use efa_hw::{
    admin::{
        pd::AllocPd,
        qp::{QpState, QpType, QueryQp},
    },
    io::{Cdesc, CompStatus, OpType},
    regs::ResetReason,
};
use efa_testing::{
    mock::Driver,
    net::{Net, Qp, Region, Send, pattern},
};

/// Longer than the transport retries anything.
const LONG: Duration = Duration::from_secs(60);

fn set() -> (Net, Qp, Qp, Region, Region) {
    let (mut net, a, b) = Net::pair(Settings::default());
    let (from, to) = (net.region(&a, 4, 0), net.region(&b, 4, 0));
    net.fill(&from, 0, &pattern(4096, 1));
    (net, a, b, from, to)
}

/// Injects a rule for a queue pair into its device.
fn inject(net: &mut Net, qp: &Qp, work: &str, then: &str, more: &str) {
    let number = qp.number;
    let rule = format!(r#"{{"when":{{"work":"{work}","qp":{number}}},"then":{then}{more}}}"#);
    let rule = serde_json::from_str(&rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
    net.driver(qp.port, |driver| driver.device.inject(rule));
}

fn qp_state(net: &mut Net, qp: &Qp) -> QpState {
    let query = QueryQp {
        qp_handle: qp.number.into(),
    };
    let answer = net.driver(qp.port, |driver| driver.execute(&query).unwrap());
    QpState::try_from(answer.qp_state).unwrap()
}

/// Returns the ids and statuses of all completions within [`LONG`].
fn all(net: &mut Net, qp: &mut Qp) -> Vec<(u16, u8)> {
    net.run_for(LONG);
    let completions = std::iter::from_fn(|| net.poll(qp));
    completions
        .map(|completion: Cdesc| (completion.req_id, completion.status))
        .collect()
}

#[test]
fn the_nth_send_ends_with_a_status() {
    for (status, qp_is_in_error) in [
        (CompStatus::RemoteBadAddress, false),
        (CompStatus::LocalUnrespRemote, false),
        (CompStatus::RemoteAbort, false),
        (CompStatus::LocalQpInternalError, true),
    ] {
        let (mut net, mut a, mut b, from, to) = set();
        let then = format!(r#"{{"status":"{status}"}}"#);
        inject(&mut net, &a, "SEND", &then, r#","skip":2,"times":1"#);
        let mut ended = Vec::new();
        for _ in 0..4 {
            let lkey = to.lkey;
            net.receive(&mut b, &[(to.iova, 4096, lkey)]);
            net.post(&mut a, &Send::message(&b, &from, 100));
            ended.push(net.status(&mut a));
        }
        let last = if qp_is_in_error {
            CompStatus::Flushed
        } else {
            CompStatus::Ok
        };
        let ok = CompStatus::Ok;
        assert_eq!(ended, [ok, ok, status, last]);
        // The failed work request was not sent.
        let received = all(&mut net, &mut b).len();
        assert_eq!(received, if qp_is_in_error { 2 } else { 3 });
        let expected = if qp_is_in_error {
            QpState::Err
        } else {
            QpState::Rts
        };
        assert_eq!(qp_state(&mut net, &a), expected, "{status}");
        assert_eq!(net.state(a.port).faults_hit, 1);
        assert_eq!(net.protocol_errors(), 0);
    }
}

#[test]
fn executed_work_requests_may_have_a_wrong_status() {
    let (mut net, mut a, b, from, to) = set();
    let then = r#"{"status":"LOCAL_ERROR_UNRESP_REMOTE","executed":true}"#;
    inject(&mut net, &a, "RDMA_WRITE", then, "");
    net.post(&mut a, &Send::write(&b, &from, &to, 4096));
    assert_eq!(net.status(&mut a), CompStatus::LocalUnrespRemote);
    assert_eq!(net.content(&to, 0, 4096), pattern(4096, 1));

    // A work request that is not executed may have status 0, or a status that is not defined.
    for status in [0, 200] {
        net.driver(a.port, |driver| driver.device.clear());
        inject(
            &mut net,
            &a,
            "RDMA_READ",
            &format!(r#"{{"status":{status}}}"#),
            "",
        );
        net.fill(&to, 0, &pattern(4096, 2));
        net.post(&mut a, &Send::read(&b, &from, &to, 4096));
        assert_eq!(net.wait(&mut a).status, status);
        assert_eq!(net.content(&from, 0, 4096), pattern(4096, 1));
    }
    assert_eq!(net.protocol_errors(), 0);
}

#[test]
fn a_completion_is_late() {
    let (mut net, mut a, b, from, to) = set();
    inject(&mut net, &a, "ANY", r#"{"delay_ms":50}"#, r#","times":1"#);
    let late = net.post(&mut a, &Send::write(&b, &from, &to, 4096));
    let other = net.post(&mut a, &Send::write(&b, &from, &to, 4096));
    net.run_for(Duration::from_millis(49));
    assert_eq!(net.content(&to, 0, 4096), pattern(4096, 1));
    assert_eq!(net.poll(&mut a).map(|entry| entry.req_id), Some(other));
    assert_eq!((net.poll(&mut a), net.state(a.port).late), (None, 1));
    net.run_for(Duration::from_millis(2));
    assert_eq!(net.poll(&mut a).map(|entry| entry.req_id), Some(late));
    assert_eq!(net.state(a.port).late, 0);
}

#[test]
fn a_receive_is_late() {
    let (mut net, mut a, mut b, from, to) = set();
    inject(&mut net, &b, "RECEIVE", r#"{"delay_ms":50}"#, "");
    let received = net.receive(&mut b, &[(to.iova, 4096, to.lkey)]);
    net.post(&mut a, &Send::message(&b, &from, 100));
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    net.run_for(Duration::from_millis(40));
    assert_eq!(net.poll(&mut b), None);
    net.run_for(Duration::from_millis(40));
    let completion = net.poll(&mut b).unwrap();
    assert_eq!((completion.req_id, completion.length), (received, 100));
}

#[test]
fn late_completions_end_with_their_queue_pair() {
    let what = ["error", "reset", "destroy", "device"];
    for (index, what) in what.into_iter().enumerate() {
        let (mut net, mut a, b, from, to) = set();
        inject(&mut net, &a, "ANY", r#"{"delay_ms":50}"#, "");
        net.post(&mut a, &Send::write(&b, &from, &to, 4096));
        net.run();
        match index {
            0 => net.modify(&mut a, QpState::Err),
            1 => net.modify(&mut a, QpState::Reset),
            2 => net.destroy(&a),
            _ => net.driver(a.port, |driver| {
                driver.reset(ResetReason::Generic);
            }),
        }
        // A work request that ended before the error is still reported.
        let expected = if index == 0 { vec![(0, 0)] } else { Vec::new() };
        assert_eq!(all(&mut net, &mut a), expected, "{what}");
    }
}

/// Returns the number of held completions of a device, by name.
fn held(net: &mut Net, qp: &Qp) -> Vec<(String, usize)> {
    net.state(qp.port).held.into_iter().collect()
}

/// Releases held completions; returns their number.
fn release(net: &mut Net, qp: &Qp, name: &str, count: Option<u64>) -> u64 {
    net.driver(qp.port, |driver| driver.device.release(name, count))
}

#[test]
fn held_completions_are_posted_when_they_are_released() {
    let (mut net, mut a, b, from, to) = set();
    inject(&mut net, &a, "ANY", r#"{"hold":"a"}"#, r#","times":3"#);
    for _ in 0..4 {
        net.post(&mut a, &Send::write(&b, &from, &to, 4096));
    }
    net.run_for(Duration::from_secs(1000));
    // The work requests are executed, and a later one completes before them.
    assert_eq!(net.content(&to, 0, 4096), pattern(4096, 1));
    assert_eq!(all(&mut net, &mut a), [(3, 0)]);
    assert_eq!(held(&mut net, &a), [("a".into(), 3)]);
    assert_eq!(net.state(a.port).late, 0);

    assert_eq!(release(&mut net, &a, "b", None), 0);
    assert_eq!(release(&mut net, &b, "a", None), 0);
    assert_eq!(all(&mut net, &mut a), []);
    assert_eq!(release(&mut net, &a, "a", Some(1)), 1);
    assert_eq!(all(&mut net, &mut a), [(0, 0)]);
    assert_eq!(release(&mut net, &a, "a", Some(7)), 2);
    assert_eq!(all(&mut net, &mut a), [(1, 0), (2, 0)]);
    assert_eq!(release(&mut net, &a, "a", None), 0);
    assert_eq!(held(&mut net, &a), []);
    assert_eq!(net.protocol_errors(), 0);
}

#[test]
fn commands_and_completions_are_released_in_one_order() {
    let (mut net, mut a, b, from, to) = set();
    inject(&mut net, &a, "ANY", r#"{"hold":"x"}"#, "");
    let alloc = r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"x"}}"#;
    net.driver(a.port, |driver| {
        driver.device.inject(serde_json::from_str(alloc).unwrap());
    });
    let mut commands = Vec::new();
    for _ in 0..2 {
        net.post(&mut a, &Send::write(&b, &from, &to, 8));
        net.run();
        commands.push(net.driver(a.port, |driver| driver.submit(&AllocPd {})));
    }
    assert_eq!(held(&mut net, &a), [("x".into(), 4)]);
    for number in 0..2 {
        assert_eq!(release(&mut net, &a, "x", Some(1)), 1);
        assert_eq!(all(&mut net, &mut a), [(number, 0)]);
        assert_eq!(net.driver(a.port, |driver| driver.completion()), None);
        assert_eq!(release(&mut net, &a, "x", Some(1)), 1);
        assert_eq!(all(&mut net, &mut a), []);
        let completed = net.driver(a.port, |driver| driver.completion());
        assert_eq!(
            completed.map(|(id, ..)| id),
            Some(commands[usize::from(number)])
        );
    }
}

#[test]
fn a_held_receive_is_that_of_its_message() {
    let (mut net, mut a, mut b, from, to) = set();
    inject(
        &mut net,
        &b,
        "RECEIVE",
        r#"{"hold":"r","duplicate":true}"#,
        "",
    );
    let received = net.receive(&mut b, &[(to.iova, 4096, to.lkey)]);
    net.post(&mut a, &Send::message(&b, &from, 100));
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    assert_eq!(net.content(&to, 0, 100), pattern(100, 1));
    assert_eq!(net.poll(&mut b), None);
    assert_eq!(release(&mut net, &b, "r", None), 1);
    for _ in 0..2 {
        let completion = net.poll(&mut b).unwrap();
        assert_eq!((completion.req_id, completion.length), (received, 100));
    }
}

#[test]
fn clearing_releases_held_completions() {
    let (mut net, mut a, b, from, to) = set();
    inject(&mut net, &a, "ANY", r#"{"hold":"x"}"#, r#","times":1"#);
    inject(&mut net, &a, "ANY", r#"{"hold":"y"}"#, r#","skip":1"#);
    for _ in 0..3 {
        net.post(&mut a, &Send::write(&b, &from, &to, 8));
    }
    net.run();
    assert_eq!(held(&mut net, &a), [("x".into(), 1), ("y".into(), 2)]);
    net.driver(a.port, |driver| driver.device.clear());
    assert_eq!(all(&mut net, &mut a), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(held(&mut net, &a), []);
}

#[test]
fn held_completions_end_with_their_queue_pair() {
    for what in ["error", "reset", "destroy", "device"] {
        let (mut net, mut a, b, from, to) = set();
        inject(&mut net, &a, "ANY", r#"{"hold":"x"}"#, "");
        net.post(&mut a, &Send::write(&b, &from, &to, 4096));
        net.run();
        match what {
            "error" => net.modify(&mut a, QpState::Err),
            "reset" => net.modify(&mut a, QpState::Reset),
            "destroy" => net.destroy(&a),
            _ => net.driver(a.port, |driver| {
                driver.reset(ResetReason::Generic);
            }),
        }
        // A work request that ended before the error is still reported.
        let stays = what == "error";
        let count = u64::from(stays);
        assert_eq!(release(&mut net, &a, "x", None), count, "{what}");
        let expected = if stays { vec![(0, 0)] } else { Vec::new() };
        assert_eq!(all(&mut net, &mut a), expected, "{what}");
        assert_eq!(held(&mut net, &a), [], "{what}");
    }
}

#[test]
fn held_completions_are_bounded() {
    let (mut net, mut a, b, from, to) = set();
    inject(
        &mut net,
        &a,
        "ANY",
        r#"{"delay_ms":1000000}"#,
        r#","times":24"#,
    );
    inject(&mut net, &a, "ANY", r#"{"hold":"x"}"#, r#","skip":24"#);
    for round in 0..1025 {
        net.post(&mut a, &Send::write(&b, &from, &to, 8));
        net.run();
        assert_eq!(net.poll(&mut a).is_some(), round == 1024);
    }
    assert_eq!(held(&mut net, &a), [("x".into(), 1000)]);
    assert_eq!(net.state(a.port).late, 24);
    assert_eq!(release(&mut net, &a, "x", None), 1000);
}

#[test]
fn late_completions_are_bounded() {
    let (mut net, mut a, b, from, to) = set();
    inject(&mut net, &a, "ANY", r#"{"delay_ms":1000000}"#, "");
    for round in 0..1025 {
        net.post(&mut a, &Send::write(&b, &from, &to, 8));
        net.run();
        assert_eq!(net.poll(&mut a).is_some(), round == 1024);
    }
    assert_eq!(net.state(a.port).late, 1024);
}

#[test]
fn completions_are_doubled_lost_and_wrong() {
    for (then, expected) in [
        (r#"{"duplicate":true}"#, vec![(0, 0), (0, 0), (1, 0)]),
        (r#"{"silence":true}"#, vec![(1, 0)]),
        // The phase stays correct when the flags are corrupted.
        (
            r#"{"corrupt":[{"offset":0,"value":77},{"offset":3,"value":0}]}"#,
            vec![(77, 0), (1, 0)],
        ),
        (
            r#"{"duplicate":true,"delay_ms":5,"status":9}"#,
            vec![(1, 0), (0, 9), (0, 9)],
        ),
    ] {
        let (mut net, mut a, b, from, to) = set();
        inject(&mut net, &a, "RDMA_WRITE", then, r#","times":1"#);
        for _ in 0..2 {
            net.post(&mut a, &Send::write(&b, &from, &to, 100));
        }
        assert_eq!(all(&mut net, &mut a), expected, "{then}");
        assert_eq!(net.protocol_errors(), 0);
    }
}

#[test]
fn a_rule_moves_a_queue_pair_to_error() {
    for (then, first) in [
        (r#"{"qp_error":true}"#, CompStatus::Flushed),
        (
            r#"{"qp_error":true,"status":"REMOTE_ERROR_ABORT"}"#,
            CompStatus::RemoteAbort,
        ),
    ] {
        let (mut net, mut a, mut b, from, to) = set();
        inject(&mut net, &a, "SEND", then, r#","skip":1,"times":1"#);
        let received = net.receive(&mut a, &[(from.iova, 100, from.lkey)]);
        for _ in 0..4 {
            net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
            net.put(&mut a, &Send::message(&b, &from, 100));
        }
        net.ring_send(&a);
        let flushed = u8::from(CompStatus::Flushed);
        // Earlier messages may or may not have been delivered.
        let mut ended = all(&mut net, &mut a);
        ended.retain(|(id, _)| *id != 0);
        let expected = [
            (1, first.into()),
            (2, flushed),
            (3, flushed),
            (received, flushed),
        ];
        assert_eq!(ended, expected, "{then}");
        assert_eq!(qp_state(&mut net, &a), QpState::Err);
        assert_eq!(net.protocol_errors(), 0);
    }

    // The error state due to a received message, and at an operator's request.
    let (mut net, mut a, mut b, from, to) = set();
    inject(&mut net, &b, "RECEIVE", r#"{"qp_error":true}"#, "");
    for _ in 0..2 {
        net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    }
    net.post(&mut a, &Send::message(&b, &from, 100));
    assert_eq!(all(&mut net, &mut b), [(0x8000, 0), (0x8001, 1)]);
    assert_eq!(qp_state(&mut net, &b), QpState::Err);
    net.receive(&mut a, &[(from.iova, 100, from.lkey)]);
    let (number, none) = (a.number, a.number + 50);
    net.driver(a.port, |Driver { device, world, .. }| {
        device.fail_qp(world, number).unwrap();
        assert!(device.fail_qp(world, none).is_err());
    });
    assert_eq!(all(&mut net, &mut a), [(0, 0), (0x8000, 1)]);
}

#[test]
fn a_receive_has_a_status() {
    let (mut net, mut a, mut b, from, to) = set();
    let then = r#"{"status":"LOCAL_ERROR_BAD_LENGTH"}"#;
    inject(&mut net, &b, "RECEIVE", then, r#","times":1"#);
    for status in [CompStatus::LocalBadLength, CompStatus::Ok] {
        net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
        // The sender does not see the receiver's status.
        let sent = net.outcome(&mut a, &Send::message(&b, &from, 100));
        assert_eq!((sent, net.status(&mut b)), (CompStatus::Ok, status));
    }
    assert_eq!(qp_state(&mut net, &b), QpState::Rts);
}

#[test]
fn a_rule_is_for_a_queue_pair_and_a_peer() {
    let (mut net, mut a, b, from, to) = set();
    let mut other = net.sibling(&a, QpType::Srd);
    let address = |net: &mut Net, qp: &Qp| std::net::Ipv6Addr::from(net.address(qp.port));
    let (peer, itself) = (address(&mut net, &b), address(&mut net, &a));
    inject(
        &mut net,
        &a,
        "RDMA_WRITE",
        r#"{"status":20}"#,
        r#","times":1"#,
    );
    for (peer, status) in [(peer, 21), (itself, 22)] {
        let rule = format!(
            r#"{{"when":{{"work":"ANY","peer":"{peer}"}},"then":{{"status":{status}}},"times":1}}"#
        );
        let rule = serde_json::from_str(&rule).unwrap();
        net.driver(a.port, |driver| driver.device.inject(rule));
    }
    let write = Send::write(&b, &from, &to, 100);
    net.post(&mut other, &write);
    assert_eq!(net.wait(&mut other).status, 21);
    net.post(&mut other, &write);
    assert_eq!(net.wait(&mut other).status, 0);
    net.post(&mut a, &write);
    assert_eq!(net.wait(&mut a).status, 20);
}

#[test]
fn a_device_may_die_or_be_unplugged_at_any_work_request() {
    for work in ["RDMA_WRITE", "RECEIVE"] {
        for then in [r#"{"die":{}}"#, r#"{"unplug":true}"#] {
            let (mut net, mut a, mut b, from, to) = set();
            let its = if work == "RECEIVE" { &b } else { &a }.clone();
            inject(&mut net, &its, work, then, r#","skip":1"#);
            let mut completions = 0;
            for _ in 0..3 {
                net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
                let send = Send {
                    immediate: Some(1),
                    ..Send::write(&b, &from, &to, 100)
                };
                net.post(&mut a, &send);
                net.run();
                completions += usize::from(net.poll(&mut a).is_some());
                completions += usize::from(net.poll(&mut b).is_some());
            }
            let state = net.state(its.port);
            assert_eq!(
                (state.dead, state.plugged),
                (then.contains("die"), !then.contains("unplug"))
            );
            // Messages that were acknowledged before the receiver died have succeeded.
            let expected = if work == "RECEIVE" { 3 } else { 2 };
            assert_eq!(completions, expected, "{work} {then}");
        }
    }
}

#[test]
fn memory_regions_are_not_changed() {
    let (mut net, mut a, ..) = set();
    let region = net.fast_region(&a, 4, 0);
    let then = r#"{"status":"LOCAL_ERROR_INVALID_LKEY"}"#;
    inject(&mut net, &a, "FAST_REG", then, r#","times":1"#);
    let register = Send::register(&region.inline());
    assert_eq!(net.outcome(&mut a, &register), CompStatus::LocalInvalidLkey);
    assert_eq!(net.state(a.port).fast_regs, 0);
    assert_eq!(u8::from(OpType::FastReg), register.operation);
}
