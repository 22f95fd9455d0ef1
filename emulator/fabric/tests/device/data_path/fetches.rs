// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a device fetches work requests.

use super::*;

#[test]
fn a_doorbell_fetches_nothing() {
    let mut set = Set::new(1);
    set.send(0, 3);
    // A malformed work request does not fail before it is fetched, either.
    set.post_raw(0, &[0; 64]);
    assert_eq!(set.completions(), []);
    let first = set.fetch_request().unwrap();
    assert_eq!((first.qp.number, first.id), (set.qps[0].number, 0));
    assert_eq!(set.fetch_all(), [0, 0]);
    let mut ends = set.completions();
    ends.sort_unstable_by_key(|(req_id, _)| *req_id);
    assert_eq!(ends.len(), 4);
    assert!(ends.contains(&(0, CompStatus::LocalQpInternalError)));
    // No event reports that a queue pair has failed, so drivers give its last state that they know.
    let mut command = to_state(set.qps[0].number.into(), QpState::Reset);
    command.modify_mask.cur_qp_state = true;
    command.cur_qp_state = QpState::Rts.into();
    set.driver.execute(&command).unwrap();
}

#[test]
fn queue_pairs_take_turns() {
    let mut set = Set::new(3);
    for (qp, count) in [(0, 3), (2, 2), (1, 1)] {
        set.send(qp, count);
    }
    assert_eq!(set.fetch_all(), [0, 1, 2, 0, 2, 0]);
    // A queue pair that always has more work requests does not delay the turns of others.
    set.send(2, 8);
    assert_eq!(set.fetch(), Some(2));
    set.send(0, 1);
    assert_eq!(set.fetch_all()[..2], [0, 2]);
}

#[test]
fn a_queue_pair_has_only_so_many_work_requests_in_the_transport() {
    let mut set = Set::new(2);
    set.send(0, 300);
    set.send(1, 1);
    let requests: Vec<_> = from_fn(|| set.fetch_request()).collect();
    assert_eq!(requests.len(), 256 + 1);
    // For each work request that ends, another is fetched.
    requests[..3].iter().for_each(|it| set.complete(it));
    let ended = requests[..3].iter().filter(|one| one.qp == requests[0].qp);
    assert_eq!(set.fetch_all().len(), ended.count());
}

#[test]
fn work_requests_that_cannot_be_sent_are_not_fetched() {
    let mut set = Set::new(3);
    set.send(0, 4);
    assert!(set.fetch().is_some());
    set.modify(0, QpState::Sqd);
    assert_eq!(set.fetch_all(), [0; 0]);
    set.modify(0, QpState::Rts);
    assert_eq!(set.fetch_all().len(), 3);
    set.send(0, 2);
    set.modify(0, QpState::Reset);
    assert_eq!(set.fetch_all(), [0; 0]);
    set.send(1, 2);
    set.destroy(1);
    set.completions();
    // A flush completes those that are fetched and those that are not.
    set.send(2, 3);
    assert!(set.fetch().is_some());
    set.modify(2, QpState::Err);
    assert_eq!(set.completions(), [0, 1, 2].map(|id| (id, FLUSHED)));
    let Driver { device, world, .. } = &mut set.driver;
    assert!(matches!(device.fetch(world), Fetched::Idle));
    set.modify(2, QpState::Reset);
    set.start(2);
    set.send(2, 1);
    set.driver.die("{}");
    assert_eq!(set.fetch_all(), [0; 0]);
}

impl Set {
    /// Returns the errors of programs since the last call, as the trace has them.
    fn errors(&mut self) -> Vec<String> {
        let lines = std::mem::take(&mut self.driver.world.trace).into_iter();
        let error = |line: String| line.strip_prefix("program error: ").map(str::to_owned);
        lines.filter_map(error).collect()
    }

    /// Posts the last send work request of queue pair 0 once more, and fetches it.
    fn post_again(&mut self) {
        let Qp { llq, sent, .. } = self.qps[0];
        let at = llq as usize + usize::from(sent - 1) * 64;
        let wqe = self.driver.world.device_memory[at..at + 64].to_vec();
        self.post_raw(0, &wqe);
        self.fetch().unwrap();
    }
}

/// Errors of programs are counted and traced.
#[test]
fn program_errors() {
    let mut set = Set::new(3);
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
    assert_eq!(set.errors(), [overflow]);

    // An id is free when its work request has ended.
    set.send(0, 1);
    let request = set.fetch_request().expect("a work request");
    set.complete(&request);
    set.post_again();
    assert_eq!(set.errors(), [""; 0]);
    set.post_again();
    let line = "sq 1 has two work requests with id 0 at a time";
    assert_eq!(set.errors(), [line]);

    // A region is in use once the device has fetched the work request.
    let l_key = set.region.lkey;
    let send = Send::message(&set.qps[1], &set.region, 8);
    set.post(1, &send);
    set.fetch().unwrap();
    set.deregister(l_key);
    let line = format!("mr {l_key:#x} is deregistered while work request 0 of sq 2 uses it");
    assert_eq!(set.errors(), [line]);

    set.post_raw(2, &[0x11; 4]);
    assert!(set.fetch().is_none());
    let bytes = format!("11111111{}", "00".repeat(28));
    let line = format!("sq 3 has a malformed work request at 0: `meta_desc` is 0: {bytes}");
    assert_eq!(set.errors(), [line]);
    let faults: [(&str, Change<RxLkeyCtrl>); 2] = [
        ("`first` is not on the first descriptor only", |it| it.first = false),
        ("no descriptor has `last`", |it| it.last = false),
    ];
    for (fault, change) in faults {
        set.modify(2, QpState::Reset);
        set.start(2);
        set.receive(2);
        let at = set.qps[2].rq;
        let mut desc = RxDesc::decode(&set.driver.world.entry(at));
        change(&mut desc.lkey_ctrl);
        set.driver.world.store(at, &desc.encode());
        let arrival = set.message(2, 1);
        assert!(set.deliver(&arrival).is_err());
        let bytes = desc.encode().map(|byte| format!("{byte:02x}")).concat();
        let line = format!("rq 3 has a malformed work request at 0: {fault}: {bytes}");
        assert_eq!(set.errors(), [line]);
    }
    let errors = set.driver.device.state().program_errors;
    assert_eq!((errors.duplicate_ids, errors.regions_in_use), (1, 1));
    assert_eq!((errors.malformed_requests, set.driver.errors()), (3, 0));
}

#[test]
fn rules_do_not_affect_flushed_requests() {
    for (then, destroy) in [r#"{"silence":true}"#, r#"{"hold":"x"}"#, r#"{"delay_ms":1000}"#, r#"{"duplicate":true}"#]
        .iter()
        .flat_map(|then| [(then, false), (then, true)])
    {
        let mut set = Set::new(1);
        set.driver.inject(&format!(r#"{{"when":{{"work":"SEND"}},"then":{then}}}"#));
        set.send(0, 1);
        assert!(set.fetch().is_some());
        match destroy {
            true => set.destroy(0),
            false => set.modify(0, QpState::Err),
        }
        assert_eq!(set.completions(), [(0, FLUSHED)], "{then} {destroy}");
        assert_eq!(set.driver.device.release("x", None), 0, "{then} {destroy}");
    }
}

/// Returns a message with this data.
fn inline(data: Vec<u8>) -> Send {
    let inline = Some(data);
    Send { inline, ..Send::default() }
}

/// Others may read traces and snapshots.
#[test]
fn the_report_of_a_malformed_request_has_no_payload() {
    const LENGTH: usize = 20;
    let mut set = Set::new(1);
    let send = inline(vec![0x5a; LENGTH]);
    set.put(0, &send);
    let phase = set.qps[0].llq as usize + 3;
    set.driver.world.device_memory[phase] ^= 1;
    set.ring_send(0);
    set.fetch_all();
    assert!(set.driver.world.traced(&["malformed"]));
    assert!(!set.driver.world.traced(&[&"5a".repeat(LENGTH)]));
}

#[test]
fn inline_data_has_the_limit_of_the_device() {
    let mut set = Set::new(1);
    set.driver.set(r#"{"inline_buf_size":8}"#);
    for length in [8, 9] {
        set.post(0, &inline(vec![1; length]));
        assert_eq!(set.fetch().is_some(), length == 8);
    }
}
