// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which events are counted, and when.

use efa_hw::admin::{
    event_counter::ModifyOp,
    qp::{DestroyQp, QpState},
};

use super::{
    ALL, ILLEGAL, MOST, READ_ERR, RECV_COMP, RECV_ERR, SEND_COMP, SEND_ERR, Set, WRITE_ERR,
};

#[test]
fn events_that_a_device_does_not_count() {
    let mut set = Set::new();
    let (handle, _) = set.counter();
    set.set(r#"{"event_counter_events":3}"#);
    for events in [RECV_COMP, SEND_COMP | RECV_COMP, ALL] {
        assert_eq!(set.attach(handle, events), Err(ILLEGAL));
        assert_eq!(set.detach(handle, events), Err(ILLEGAL));
    }
    set.attach(handle, SEND_COMP | SEND_ERR).unwrap();
}

#[test]
fn failures_are_counted_by_operation() {
    let mut set = Set::new();
    let of_events: Vec<_> = (0..10).map(|bit| 1_u32 << bit).collect();
    // One counter for each event, up to the limit of 8. The last one counts three events.
    let (last, rest) = (of_events[7..].iter().sum(), &of_events[..7]);
    let mut places: Vec<_> = rest.iter().map(|events| set.counter_of(*events)).collect();
    places.push(set.counter_of(last));
    let check = |set: &mut Set, expected: [u64; 8]| {
        let values: Vec<_> = places.iter().map(|place| set.value(*place)).collect();
        assert_eq!(values, expected);
    };
    set.start_and_post();
    check(&mut set, [0, 1, 0, 0, 0, 1, 0, 1]);
    // Flushed work requests are errors, too.
    set.post_receives(5);
    set.state(QpState::Err);
    check(&mut set, [0, 1, 0, 5, 0, 1, 0, 1]);
    set.post_all();
    check(&mut set, [0, 2, 0, 5, 0, 2, 0, 2]);
    assert_eq!(set.protocol_errors(), 0);
}

/// An event is counted before its completion is visible.
#[test]
fn events_are_counted_before_their_completion() {
    let mut set = Set::new();
    let (sends, receives) = (set.counter_of(SEND_ERR), set.counter_of(RECV_ERR));
    set.start();
    set.driver.world.writes = Some(Vec::new());
    set.post_receives(1);
    set.driver.world.writes = Some(Vec::new());
    set.post_all();
    set.state(QpState::Err);
    let cq = set.qp.cq.base;
    let writes = set.driver.world.writes.take().unwrap();
    let writes: Vec<_> = writes
        .into_iter()
        .filter(|at| [sends, receives].contains(at) || (cq..cq + 4096).contains(at))
        .collect();
    assert_eq!(writes, [sends, cq, cq + 32, cq + 64, receives, cq + 96]);
}

#[test]
fn a_malformed_work_request_is_counted() {
    let mut set = Set::new();
    let (errors, receives) = (set.counter_of(SEND_ERR), set.counter_of(RECV_ERR));
    set.start();
    set.post_receives(2);
    // The ring has only zeroes, which moves the queue pair to the error state.
    set.ring(0, 2);
    assert_eq!((set.value(errors), set.value(receives)), (2, 2));
}

#[test]
fn one_counter_of_several_events_and_queue_pairs() {
    let (mut set, handle, paddr) = Set::counting(SEND_ERR | READ_ERR);
    set.start_and_post();
    assert_eq!(set.value(paddr), 2);
    set.qp = set.create_qp();
    set.attach(handle, WRITE_ERR).unwrap();
    set.start_and_post();
    assert_eq!(set.value(paddr), 3);
}

#[test]
fn values_wrap() {
    let (mut set, handle, paddr) = Set::counting(SEND_ERR | READ_ERR | WRITE_ERR);
    set.modify(handle, ModifyOp::Set, MOST - 1).unwrap();
    set.start_and_post();
    assert_eq!(set.value(paddr), 1);
    // A lower limit on values also reduces the value.
    set.set(r#"{"event_counter_max_val":0}"#);
    set.post_more();
    assert_eq!(set.value(paddr), 0);
    set.set(r#"{"event_counter_max_val":18446744073709551615}"#);
    set.modify(handle, ModifyOp::Set, u64::MAX - 1).unwrap();
    set.post_more();
    assert_eq!(set.value(paddr), 1);
    assert_eq!(set.protocol_errors(), 0);
}

/// Detached events, and those of destroyed queue pairs, are not counted.
#[test]
fn detached_counters_do_not_count() {
    let (mut set, handle, paddr) = Set::counting(SEND_ERR | READ_ERR);
    set.start();
    set.detach(handle, SEND_ERR).unwrap();
    set.post_all();
    assert_eq!(set.value(paddr), 1);
    let qp_handle = set.qp_handle();
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    set.qp = set.create_qp();
    set.start_and_post();
    assert_eq!(set.value(paddr), 1);
}
