// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs of in-kernel clients in the error state, and drains, which rely on that state.

use core::{cell::Cell, ptr::null_mut};

use driver::{
    client::{Objects, Request, Ulp, DIRECT, WORKQUEUE},
    fault::{always, command, rule, silence, status},
    program::{qp_attr, UP},
    rig::{self, Rig, SECOND},
};
use efa_hw::admin::Opcode;
use efa_model::Profile;
use ib_core::{
    client, cq,
    ffi::{
        ib_cq, ib_cq_notify_flags_IB_CQ_NEXT_COMP as NEXT, ib_qp_attr_mask_IB_QP_CUR_STATE,
        ib_qp_attr_mask_IB_QP_QKEY, ib_qp_state_IB_QPS_ERR as ERR, ib_qp_state_IB_QPS_INIT as INIT,
        ib_qp_state_IB_QPS_RESET as RESET, ib_qp_state_IB_QPS_RTS as RTS,
        ib_qp_type_IB_QPT_RESERVED1, ib_qp_type_IB_QPT_UD,
        ib_wc_status_IB_WC_WR_FLUSH_ERR as FLUSHED,
    },
    registry::registered,
    verbs,
};
use kernel::{
    error::code::{EINVAL, ENOMEM},
    sim::{self, Policy, Rng},
};

use crate::{run_bound, run_bound_with};

/// Runs `f` with the objects of a client, for some seeds and both poll contexts, and with a device
/// that may fail. The kernel must not warn.
fn run_client(f: fn(&Rig, &Objects)) {
    for (seed, context) in (0..100).flat_map(|seed| [(seed, DIRECT), (seed, WORKQUEUE)]) {
        let policy = Policy::Random {
            rng: Rng::new(seed),
            preempt: 3,
            hurry: 20,
        };
        rig::run(Profile::Efa3, policy, |rig| {
            rig.probe().unwrap();
            let client = Ulp::new(move |device| Objects::new(device, context), true);
            let number = client::register_client(client.clone());
            client.with(|objects| f(rig, objects)).expect("objects");
            // This also returns if the device is being reset.
            client::unregister_client(number);
            rig.heal();
        });
    }
}

/// Drains both queues, and checks that all requests have completed.
fn drain(objects: &Objects, requests: &[Request]) {
    // SAFETY: The queue pair exists.
    unsafe { cq::drain(objects.qp) };
    let left = requests.iter().filter(|one| one.status.get().is_none());
    let left = left.count();
    if left != 0 {
        // The completion functions of the others are still to be called.
        sim::sleep(100 * SECOND);
        panic!("{left} requests had not ended");
    }
}

/// Creates requests whose completion functions take 1 ms.
fn requests(count: usize) -> Vec<Request> {
    (0..count).map(|_| *Request::new(1_000_000)).collect()
}

/// Posts the first `receives` requests as receives, and the others as sends.
fn post(objects: &Objects, requests: &[Request], receives: usize) {
    let (recvs, sends) = requests.split_at(receives);
    recvs.iter().for_each(|one| objects.post_recv(one).unwrap());
    sends.iter().for_each(|one| objects.post_send(one).unwrap());
}

/// A rule: sends are executed, but never complete.
const HOLD: &str = r#"{"when": {"work": "SEND"}, "then": {"hold": "for ever"}}"#;

#[test]
fn drains_sends_and_receives() {
    run_client(|_, objects| {
        let requests = requests(20);
        post(objects, &requests, 12);
        drain(objects, &requests);
        // Nothing is left to drain.
        drain(objects, &[]);
    });
}

#[test]
fn drains_a_device_that_does_not_answer() {
    run_client(|rig, objects| {
        let requests = requests(16);
        post(objects, &requests, 16);
        rig.inject(always(command(Some(Opcode::ModifyQp)), silence()));
        drain(objects, &requests);
    });
}

#[test]
fn drains_a_device_that_refuses() {
    run_client(|rig, objects| {
        let requests = requests(16);
        post(objects, &requests, 16);
        rig.inject(always(command(Some(Opcode::ModifyQp)), status(4)));
        let start = sim::now();
        drain(objects, &requests);
        assert!(sim::now() - start < 10 * SECOND);
    });
}

/// A device that does not flush its posted work requests is reset.
#[test]
fn drains_a_device_that_forgets() {
    run_client(|rig, objects| {
        let requests = requests(9);
        rig.inject(rule(HOLD));
        post(objects, &requests, 4);
        // Time for the device to execute them.
        sim::sleep(SECOND);
        let start = sim::now();
        drain(objects, &requests);
        let took = (sim::now() - start) / SECOND;
        assert!((30..60).contains(&took), "the drain took {took} s");
    });
}

/// The device need not flush what a destroyed queue pair has posted.
#[test]
fn waits_for_no_flush_of_a_destroyed_queue_pair() {
    run_bound(|rig| {
        let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let request = Request::new(0);
        rig.inject(rule(HOLD));
        objects.post_send(&request).unwrap();
        sim::sleep(SECOND);
        objects.modify_qp(&[ERR]).unwrap();
        // SAFETY: Nothing else uses the queue pair.
        unsafe { verbs::destroy_qp(objects.qp, null_mut()) }.unwrap();
        objects.qp = null_mut();
        for _ in 0..100 {
            sim::sleep(SECOND);
            objects.poll();
        }
        assert_eq!(request.status.get(), None);
        assert_eq!(rig.state("last_reset").as_deref(), Some("none"));
    });
}

/// Work requests that are posted after the death of the device are flushed.
#[test]
fn takes_work_requests_of_a_dead_device() {
    run_client(|rig, objects| {
        let requests = requests(24);
        let (before, after) = requests.split_at(12);
        rig.inject(rule(HOLD));
        post(objects, before, 6);
        rig.die(driver::fault::death(1, efa_model::FailedReset::NeverEnds));
        sim::sleep(30 * SECOND);
        post(objects, after, 6);
        drain(objects, &requests);
        assert!(after.iter().all(|one| one.status.get() == Some(FLUSHED)));
    });
}

/// Work requests posted in the error state complete in order, after those posted to the device.
#[test]
fn completes_in_order() {
    run_bound(|_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let requests: Vec<_> = (0..32).map(|_| Request::new(0)).collect();
        let (given, closed) = requests.split_at(20);
        given.iter().for_each(|one| objects.post_recv(one).unwrap());
        objects.modify_qp(&[ERR]).unwrap();
        closed
            .iter()
            .for_each(|one| objects.post_recv(one).unwrap());
        assert_eq!(objects.post_recv(&closed[0]), Err(ENOMEM), "a full queue");
        sim::sleep(SECOND);
        let order: Vec<_> = std::iter::from_fn(|| objects.poll_one()).collect();
        drop(objects);
        assert_eq!(order.len(), 32);
        let ids: Vec<_> = requests.iter().map(|one| one.id()).collect();
        assert_eq!(order[20..], ids[20..]);
    });
}

/// A queue pair that was reset behaves like a new one, whatever was posted before.
#[test]
fn can_be_used_again() {
    run_client(|_, objects| {
        let requests = requests(40);
        for round in requests.chunks(10) {
            post(objects, round, 6);
            objects.modify_qp(&[ERR]).unwrap();
            objects.modify_qp(&[RESET]).unwrap();
            // Completion functions may still be running.
            sim::sleep(SECOND);
            objects.modify_qp(&UP).unwrap();
            (0..3).for_each(|value| objects.exchange(value));
        }
    });
}

/// Receives may be posted in the INIT state.
#[test]
fn can_be_reset_before_it_is_ready() {
    run_client(|_, objects| {
        let requests = requests(3);
        objects.modify_qp(&[RESET, INIT]).unwrap();
        post(objects, &requests, 3);
        objects.modify_qp(&[RESET]).unwrap();
        objects.modify_qp(&UP).unwrap();
        (0..3).for_each(|value| objects.exchange(value));
    });
}

/// A modification with a wrong current state has no effect on the state.
#[test]
fn is_in_the_state_that_it_was_put_into() {
    run_bound(|_| {
        let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let (mut attr, mask) = qp_attr(ERR);
        attr.cur_qp_state = RESET;
        let mask = mask | ib_qp_attr_mask_IB_QP_CUR_STATE;
        // SAFETY: The queue pair exists.
        let result = unsafe { verbs::modify_qp(objects.qp, &raw mut attr, mask, null_mut()) };
        objects.exchange(1);
        assert_eq!(result, Err(EINVAL));

        let mut new = objects.qp_attr();
        objects.new_qp(&mut new).unwrap();
        (attr.cur_qp_state, attr.qkey) = (RTS, 1);
        let mask = ib_qp_attr_mask_IB_QP_QKEY | ib_qp_attr_mask_IB_QP_CUR_STATE;
        // SAFETY: The queue pair exists.
        let result = unsafe { verbs::modify_qp(objects.qp, &raw mut attr, mask, null_mut()) };
        let posted = objects.post_send(&Request::new(0));
        drop(objects);
        assert_eq!((result, posted), (Ok(()), Err(EINVAL)));
    });
}

/// Nothing was posted to it, and neither the device nor the core's table of transitions has this one.
#[test]
fn drains_a_new_queue_pair() {
    for qp_type in [ib_qp_type_IB_QPT_RESERVED1, ib_qp_type_IB_QPT_UD] {
        run_bound(|_| {
            let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
            let mut attr = objects.qp_attr();
            attr.qp_type = qp_type;
            objects.new_qp(&mut attr).unwrap();
            drain(&objects, &[]);
            objects.modify_qp(&UP).unwrap();
            if qp_type == ib_qp_type_IB_QPT_RESERVED1 {
                objects.exchange(1);
            }
            drop(objects);
        });
    }
}

thread_local! {
    static EVENTS: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn count_and_arm(cq: *mut ib_cq, _: *mut core::ffi::c_void) {
    EVENTS.set(EVENTS.get() + 1);
    // SAFETY: The queue exists.
    unsafe { (*(*cq).device).ops.req_notify_cq.unwrap()(cq, NEXT) };
}

/// A queue pair in error that has nothing to flush causes no events, neither in its queue nor in others.
#[test]
fn is_quiet_once_it_is_drained() {
    run_bound_with(Profile::Efa3, |_| {
        let [objects, other] =
            [(); 2].map(|()| Objects::new(registered().unwrap(), WORKQUEUE).unwrap());
        let requests = requests(4);
        post(&objects, &requests, 4);
        drain(&objects, &requests);
        sim::sleep(10 * SECOND);
        for cq in [objects.cq, other.cq] {
            // SAFETY: The queue exists. The core does not poll it any more.
            unsafe { (*cq).comp_handler = Some(count_and_arm) };
            count_and_arm(cq, null_mut());
        }
        EVENTS.set(0);
        sim::sleep(60 * SECOND);
        assert_eq!(EVENTS.take(), 0);
        // A request that is posted now still completes.
        objects.post_recv(&requests[0]).unwrap();
        sim::sleep(SECOND);
        assert!(EVENTS.get() > 0);
        assert_eq!(objects.poll_one(), Some(requests[0].id()));
        sim::sleep(2 * SECOND);
        EVENTS.set(0);
        sim::sleep(60 * SECOND);
        assert_eq!(EVENTS.take(), 0);
        drop((objects, other));
    });
}
