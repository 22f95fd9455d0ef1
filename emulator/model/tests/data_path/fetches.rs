// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a device fetches work requests.

use efa_hw::{
    admin::qp::QpState,
    io::{CompStatus, RxDesc},
};
use efa_model::{Death, Fetched, Overrides};
use efa_testing::{commands::to_state, mock::Driver, qp::Send};

use super::{IOVA, Set};

#[test]
fn a_doorbell_fetches_nothing() {
    let mut set = Set::new(1);
    set.send(0, 3);
    // A malformed work request does not fail before it is fetched, either.
    set.post_raw(0, &[0; 64]);
    assert_eq!(set.completions(), []);
    let number = set.qps[0].number;
    let first = set.fetch_request().unwrap();
    assert_eq!((first.qp.number, first.id), (number, 0));
    assert_eq!(set.fetch_all(), [number; 2]);
    let mut ends = set.completions();
    ends.sort_unstable_by_key(|(req_id, _)| *req_id);
    assert_eq!(ends.len(), 4);
    assert!(ends.contains(&(0, CompStatus::LocalQpInternalError)));
}

#[test]
fn queue_pairs_take_turns() {
    let mut set = Set::new(3);
    set.send(0, 3);
    set.send(2, 2);
    set.send(1, 1);
    let [a, b, c] = [0, 1, 2].map(|qp: usize| set.qps[qp].number);
    assert_eq!(set.fetch(), Some(a));
    assert_eq!(set.fetch_all(), [b, c, a, c, a]);

    // A queue pair that always has more work requests does not delay the turns of others.
    set.send(2, 8);
    assert_eq!(set.fetch(), Some(c));
    set.send(0, 1);
    assert_eq!(set.fetch_all()[..2], [a, c]);
}

#[test]
fn a_queue_pair_has_only_so_many_work_requests_in_the_transport() {
    let mut set = Set::new(2);
    set.send(0, 300);
    set.send(1, 1);
    let requests: Vec<_> = std::iter::from_fn(|| set.fetch_request()).collect();
    assert_eq!(requests.len(), 256 + 1);
    // For each work request that ends, another is fetched.
    let ended = &requests[..3];
    let Driver { device, world, .. } = &mut set.driver;
    for request in ended {
        device.complete(world, request, CompStatus::Ok);
    }
    let ended = ended.iter().filter(|one| one.qp == requests[0].qp);
    assert_eq!(set.fetch_all().len(), ended.count());
}

#[test]
fn work_requests_that_cannot_be_sent_are_not_fetched() {
    let mut set = Set::new(2);
    set.send(0, 4);
    assert!(set.fetch().is_some());
    set.modify(0, QpState::Sqd);
    assert_eq!(set.fetch_all(), [0_u16; 0]);
    set.modify(0, QpState::Rts);
    assert_eq!(set.fetch_all().len(), 3);

    set.send(0, 2);
    set.modify(0, QpState::Reset);
    assert_eq!(set.fetch_all(), [0_u16; 0]);
    set.send(1, 2);
    set.destroy(1);
    let Driver { device, world, .. } = &mut set.driver;
    assert!(matches!(device.fetch(world), Fetched::Idle));
}

#[test]
fn a_flush_completes_unfetched_work_requests() {
    let mut set = Set::new(1);
    set.send(0, 3);
    assert!(set.fetch().is_some());
    set.modify(0, QpState::Err);
    assert_eq!(
        set.completions(),
        [0, 1, 2].map(|id| (id, CompStatus::Flushed))
    );
    assert_eq!(set.fetch_all(), [0_u16; 0]);
}

#[test]
fn a_dead_device_fetches_nothing() {
    let mut set = Set::new(1);
    set.send(0, 1);
    let Driver {
        device, world, now, ..
    } = &mut set.driver;
    device.die(world, *now, Death::default());
    assert_eq!(set.fetch_all(), [0_u16; 0]);
}

/// Errors of programs are counted and traced.
#[test]
fn program_errors() {
    let mut set = Set::new(3);
    let lines = |set: &mut Set| {
        let lines = std::mem::take(&mut set.driver.world.trace).into_iter();
        let lines =
            lines.filter_map(|line| line.strip_prefix("program error: ").map(str::to_owned));
        lines.collect::<Vec<_>>()
    };
    // The queue overflows with more completions than entries since the last doorbell, regardless of earlier ones.
    for count in [128, 129] {
        set.send(0, count);
        set.modify(0, QpState::Err);
        set.modify(0, QpState::Reset);
        set.start(0);
        let overflows = set.driver.device.state().program_errors.cq_overflows;
        assert_eq!(overflows, u64::from(count > 128));
    }
    let overflow = "cq 1 has 128 entries and overflows: 129 completions, since the last doorbell of any of its queues";
    assert_eq!(lines(&mut set), [overflow]);

    // An id is free when its work request has ended.
    set.send(0, 1);
    let request = set.fetch_request().expect("a work request");
    let Driver { device, world, .. } = &mut set.driver;
    device.complete(world, &request, CompStatus::Ok);
    set.post_again(0);
    set.fetch().unwrap();
    assert_eq!(lines(&mut set), [""; 0]);
    set.post_again(0);
    set.fetch().unwrap();
    let line = "sq 1 has two work requests with id 0 at a time";
    assert_eq!(lines(&mut set), [line]);

    // A region is in use once the device has fetched the work request.
    let send = Send {
        buffers: vec![(IOVA, 8, set.lkey)],
        ..Send::default()
    };
    set.post(1, &send);
    set.fetch().unwrap();
    let l_key = set.lkey;
    set.deregister(l_key);
    let line = format!("mr {l_key:#x} is deregistered while work request 0 of sq 2 uses it");
    assert_eq!(lines(&mut set), [line]);

    set.post_raw(2, &[0x11; 4]);
    assert!(set.fetch().is_none());
    let bytes = format!("11111111{}", "00".repeat(28));
    let line = format!("sq 3 has a malformed work request at 0: `meta_desc` is 0: {bytes}");
    assert_eq!(lines(&mut set), [line]);
    for (fault, change) in [
        (
            "`first` is not on the first descriptor only",
            |desc: &mut RxDesc| desc.lkey_ctrl.first = false,
        ),
        ("no descriptor has `last`", |desc: &mut RxDesc| {
            desc.lkey_ctrl.last = false
        }),
    ] as [(&str, fn(&mut RxDesc)); 2]
    {
        set.modify(2, QpState::Reset);
        set.start(2);
        set.receive(2);
        let at = set.qps[2].rq;
        let mut desc = RxDesc::decode(&set.driver.world.read(at));
        change(&mut desc);
        set.driver.world.write(at, &desc.encode());
        let arrival = set.message(2, 1);
        assert!(set.deliver(&arrival).is_err());
        let bytes = desc.encode().map(|byte| format!("{byte:02x}")).concat();
        let line = format!("rq 3 has a malformed work request at 0: {fault}: {bytes}");
        assert_eq!(lines(&mut set), [line]);
    }
    let errors = set.driver.device.state().program_errors;
    assert_eq!(
        (
            errors.duplicate_ids,
            errors.regions_in_use,
            errors.malformed_requests
        ),
        (1, 1, 3)
    );
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

#[test]
fn rules_do_not_affect_flushed_requests() {
    for then in [
        r#"{"silence":true}"#,
        r#"{"hold":"x"}"#,
        r#"{"delay_ms":1000}"#,
        r#"{"duplicate":true}"#,
    ] {
        for destroy in [false, true] {
            let mut set = Set::new(1);
            let rule = format!(r#"{{"when":{{"work":"SEND"}},"then":{then}}}"#);
            let rule = serde_json::from_str(&rule).unwrap();
            set.driver.device.inject(rule);
            set.send(0, 1);
            assert!(set.fetch().is_some());
            if destroy {
                set.destroy(0);
            } else {
                set.modify(0, QpState::Err);
            }
            let flushed = set.completions();
            assert_eq!(flushed.len(), 1, "{then} {destroy}: {flushed:?}");
            assert_eq!(set.driver.device.release("x", None), 0, "{then} {destroy}");
        }
    }
}

/// Others may read traces and snapshots.
#[test]
fn the_report_of_a_malformed_request_has_no_payload() {
    const LENGTH: usize = 20;
    let mut set = Set::new(1);
    let send = Send {
        inline: Some(vec![0x5a; LENGTH]),
        ..Send::default()
    };
    set.put(0, &send);
    let phase = set.qps[0].llq as usize + 3;
    set.driver.world.device_memory[phase] ^= 1;
    set.ring_send(0);
    set.fetch_all();
    let hex = "5a".repeat(LENGTH);
    let trace = &set.driver.world.trace;
    assert!(trace.iter().any(|line| line.contains("malformed")));
    assert!(!trace.iter().any(|line| line.contains(&hex)));
}

#[test]
fn inline_data_has_the_limit_of_the_device() {
    let mut set = Set::new(1);
    set.driver.device.set(Overrides {
        inline_buf_size: Some(8),
        ..Overrides::default()
    });
    for length in [8, 9] {
        let send = Send {
            inline: Some(vec![1; length]),
            ..Send::default()
        };
        set.post(0, &send);
        assert_eq!(set.fetch().is_some(), length == 8);
    }
}

/// No event reports that a queue pair has failed, so drivers give its last state that they know.
#[test]
fn a_failed_queue_pair_can_be_reset() {
    let mut set = Set::new(1);
    set.post_raw(0, &[0; 64]);
    set.fetch_all();
    let mut command = to_state(set.qps[0].number.into(), QpState::Reset);
    command.modify_mask.cur_qp_state = true;
    command.cur_qp_state = QpState::Rts.into();
    set.driver.execute(&command).unwrap();
}
