// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! In-kernel clients of a device that fails, is unbound, or lies.

use core::ptr::null_mut;
use std::{cell::Cell, rc::Rc};

use driver::{
    client::{Objects, Request, Ulp, DIRECT, GENERATION, WORKQUEUE},
    fault::{always, command as of_command, death, rule, silence, status},
    rig::{self, Rig, SECOND},
};
use efa_hw::admin::Opcode;
use efa_model::{Death, FailedReset, Profile};
use ib_core::{
    client, cq,
    ffi::{
        ib_cq, ib_cq_notify_flags_IB_CQ_NEXT_COMP, ib_device, ib_qp_state_IB_QPS_ERR as ERR,
        ib_wc_status_IB_WC_LOC_LEN_ERR as LENGTH_ERROR, ib_wc_status_IB_WC_WR_FLUSH_ERR as FLUSHED,
    },
    registry::registered,
    verbs,
};
use kernel::{
    error::{code::*, Result},
    sim::{self, Policy, RawLock, Rng},
};

use crate::{at_random, run_bound_with, run_with, traced};

#[test]
fn a_client_that_is_being_added_does_not_wait_for_itself() {
    run_with(Profile::Efa3, |rig| {
        let took = Rc::new(Cell::new(0));
        let (shared, noted) = (rig.shared.clone(), took.clone());
        let add = move |device| {
            let mut objects = Objects::new(device, WORKQUEUE)?;
            let region = |()| {
                // SAFETY: The domain exists.
                unsafe { verbs::alloc_mr(objects.pd, 16) }.expect("a region")
            };
            let regions = [(); 3].map(region);
            shared.with(|device, _, _| device.inject(always(of_command(None), silence())));
            let start = sim::now();
            for region in regions {
                // SAFETY: The region exists.
                verbs::ignore("ib_dereg_mr", unsafe {
                    verbs::dereg_mr(region, null_mut())
                });
            }
            objects.end();
            noted.set(sim::now() - start);
            Err(EIO)
        };
        client::register_client(Ulp::new(add, false));
        let _ = rig.probe();
        assert!(
            took.get() < 60 * SECOND,
            "the end of the client took {} s",
            took.get() / SECOND
        );
    });
}

/// Returns the event queue and the number of the only completion queue that has one.
fn queue(rig: &Rig) -> (u16, u16) {
    rig.shared.with(|device, _, now| {
        let snapshot = device.snapshot(now);
        let mut queues = snapshot.completion_queues.iter();
        let queue = queues.find(|queue| queue.eq.is_some()).expect("a queue");
        (queue.eq.unwrap(), queue.number)
    })
}

thread_local! {
    static EVENTS: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn count_event(_: *mut ib_cq, _: *mut core::ffi::c_void) {
    EVENTS.set(EVENTS.get() + 1);
}

/// Covers events for a queue without events, and a second event that was not requested.
#[test]
fn an_event_that_was_not_requested_is_ignored() {
    run_bound_with(Profile::Efa3, |rig| {
        let other = Objects::new(registered().unwrap(), WORKQUEUE).unwrap();
        let (eqn, other_cqn) = queue(rig);
        // SAFETY: The queue exists. The core has requested an event, and does not poll it any more.
        unsafe { (*other.cq).comp_handler = Some(count_event) };
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let cqn = rig.shared.with(|device, _, now| {
            let queues = device.snapshot(now).completion_queues;
            let queue = queues.iter().find(|queue| queue.eq.is_none());
            queue.expect("a queue without events").number
        });
        for cqn in [cqn, other_cqn, other_cqn] {
            let post = rig
                .shared
                .with(|device, machine, _| device.post_completion_event(machine, Some(eqn), cqn));
            post.unwrap();
        }
        sim::sleep(SECOND);
        assert_eq!(EVENTS.take(), 1);
        drop((objects, other));
    });
}

#[test]
fn events_while_queues_are_created_and_freed_are_ignored() {
    for seed in 0..300 {
        rig::run(Profile::Efa3, at_random(seed), |rig| {
            // All queues have the same number.
            rig.set(r#"{"max_cq": 1}"#);
            rig.probe().unwrap();
            let device = registered().unwrap();
            let objects = Objects::new(device, WORKQUEUE).unwrap();
            let (eqn, cqn) = queue(rig);
            let storm = rig
                .shared
                .with(|device, _, _| device.storm_of_completion_events(Some(eqn), cqn, 300));
            storm.unwrap();
            drop(objects);
            for _ in 0..3 {
                // SAFETY: The device is registered.
                unsafe {
                    let cq = cq::alloc_cq(device, 16, WORKQUEUE).unwrap();
                    sim::sleep(1000);
                    cq::free_cq(cq);
                }
            }
            rig.heal();
        });
    }
}

/// No command is sent for a queue that is larger than the count in a doorbell.
#[test]
fn a_receive_queue_has_no_more_descriptors_than_a_doorbell_counts() {
    run_with(Profile::Efa3, |rig| {
        rig.set(r#"{"max_rq_depth": 65536}"#);
        rig.probe().unwrap();
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let mut attr = objects.qp_attr();
        attr.cap.max_recv_wr = 65_536;
        let before = rig.device().admin.submitted;
        // SAFETY: The domain and the queue exist.
        let result = unsafe { verbs::create_qp(objects.pd, &mut attr, null_mut()) };
        let commands = rig.device().admin.submitted - before;
        drop(objects);
        assert_eq!((result.err(), commands), (Some(EINVAL), 0));
    });
}

/// Keeps its objects of the first device until its request has completed.
struct Waiting {
    objects: Cell<Option<Objects>>,
    request: Box<Request>,
    /// Held while the objects are used.
    lock: RawLock,
    has_ended: Cell<bool>,
}

impl client::Client for Waiting {
    fn add(&self, device: *mut ib_device) -> Result<*mut core::ffi::c_void> {
        if self.has_ended.get() {
            return Err(EIO);
        }
        self.objects.set(Some(Objects::new(device, WORKQUEUE)?));
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut core::ffi::c_void) {
        for _ in 0..100 {
            if self.request.status.get().is_some() {
                break;
            }
            sim::sleep(SECOND);
        }
        self.has_ended.set(self.request.status.get().is_some());
        self.lock.lock(true);
        drop(self.objects.take());
        self.lock.unlock(true);
    }
}

/// Stalls a posting task after `points` preemption points, and halts the device meanwhile. Returns
/// whether the request completes, or `None` if the task has fewer points.
fn post_in_a_halt(points: u64, post: fn(&Objects, &Request) -> Result) -> Option<bool> {
    let client = Rc::new(Waiting {
        objects: Cell::new(None),
        request: Request::new(0),
        lock: RawLock::new(),
        has_ended: Cell::new(false),
    });
    let is_beyond = Rc::new(Cell::new(false));
    let (poster, was_beyond) = (client.clone(), is_beyond.clone());
    // While a task is stalled in the middle of a post, the core polls without pauses.
    let policy = Policy::Random {
        rng: Rng::new(points),
        preempt: 0,
        hurry: 20,
    };
    rig::run(Profile::Efa3, policy, |rig| {
        let number = client::register_client(poster.clone());
        rig.probe().unwrap();
        let sender = sim::spawn("sender", move || {
            poster.lock.lock(true);
            let objects = poster.objects.take().expect("objects");
            sim::stall(points, 20 * SECOND);
            post(&objects, &poster.request).unwrap();
            was_beyond.set(sim::take_stall().is_some());
            poster.objects.set(Some(objects));
            poster.lock.unlock(true);
        });
        sim::sleep(SECOND / 1000);
        rig.die(Death::default());
        sim::join(sender);
        rig.check_quiet();
        client::unregister_client(number);
    });
    (!is_beyond.get()).then(|| client.has_ended.get())
}

/// The last poll may precede the post.
#[test]
fn a_request_that_is_posted_in_a_halt_ends() {
    for post in [Objects::post_recv, Objects::post_send] {
        let results: Vec<_> = (0..)
            .map_while(|points| post_in_a_halt(points, post))
            .collect();
        assert!(results.len() > 3, "{} points", results.len());
        let lost = results.iter().position(|has_ended| !has_ended);
        assert_eq!(lost, None, "a point at which a request is lost");
    }
}

/// A client posts while its failed device is being halted. The request still completes.
#[test]
fn a_request_that_is_posted_during_a_failure_ends() {
    for seed in 0..4000 {
        let ended = rig::run(Profile::Efa3, at_random(seed), |rig| {
            rig.probe().unwrap();
            let client = Ulp::new(|device| Objects::new(device, WORKQUEUE), true);
            let number = client::register_client(client.clone());
            let request = Rc::new(Request::new(0));
            let posted = request.clone();
            let sender = sim::spawn("sender", move || {
                if client.with(|objects| objects.post_recv(&posted).is_ok()) != Some(true) {
                    posted.status.set(Some(0));
                }
            });
            rig.die(Death::default());
            sim::join(sender);
            rig.check_quiet();
            client::unregister_client(number);
            let ended = request.status.get().is_some();
            // It may still be outstanding.
            std::mem::forget(request);
            ended
        });
        assert!(ended, "seed {seed}");
    }
}

/// Sends a message to itself when its device is removed.
struct Farewell(Cell<Option<Objects>>, Rc<Cell<bool>>);

impl client::Client for Farewell {
    fn add(&self, device: *mut ib_device) -> Result<*mut core::ffi::c_void> {
        self.0.set(Some(Objects::new(device, DIRECT)?));
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut core::ffi::c_void) {
        let objects = self.0.take().expect("objects");
        objects.exchange(1);
        self.1.set(true);
        drop(objects);
    }
}

#[test]
fn a_client_can_use_a_device_that_is_unbound() {
    let was_removed = Rc::new(Cell::new(false));
    run_with(Profile::Efa3, |rig| {
        let client = Farewell(Cell::new(None), was_removed.clone());
        client::register_client(Rc::new(client));
        rig.probe().unwrap();
    });
    assert!(was_removed.get());
}

/// Polls its posted requests when its halted device is removed, and counts the steps.
struct Flushed(Cell<Option<Objects>>, Vec<Request>, Cell<Option<u64>>);

impl client::Client for Flushed {
    fn add(&self, device: *mut ib_device) -> Result<*mut core::ffi::c_void> {
        if self.2.get().is_some() {
            return Err(EIO);
        }
        let mut objects = Objects::new(device, DIRECT)?;
        objects.replace_qp(self.1.len() as u32, 1)?;
        for request in &self.1 {
            objects.post_recv(request)?;
        }
        self.0.set(Some(objects));
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut core::ffi::c_void) {
        let Some(objects) = self.0.take() else {
            return;
        };
        sim::stall(u64::MAX, 0);
        let polled = std::iter::from_fn(|| objects.poll_one()).count();
        let left = sim::take_stall().expect("a stall that does not come");
        drop(objects);
        assert_eq!(polled, self.1.len());
        self.2.set(Some(u64::MAX - left));
    }
}

/// A step is an access to state that posts and polls share.
#[test]
fn a_flush_takes_a_few_steps_for_each_request() {
    let steps = |count: usize| {
        let requests = (0..count).map(|_| *Request::new(0)).collect();
        let client = Rc::new(Flushed(Cell::new(None), requests, Cell::new(None)));
        let registered = client.clone();
        run_with(Profile::Efa3, |rig| {
            let number = client::register_client(registered);
            rig.probe().unwrap();
            rig.die(Death::default());
            rig.check_quiet();
            client::unregister_client(number);
        });
        client.2.get().expect("a removal")
    };
    let (few, many) = (steps(128), steps(2048));
    assert!(many < 20 * few, "{few} and {many} steps");
}

/// Posts a request when its device is removed, lets the device die, and waits for the completion.
struct Patient(Cell<Option<Objects>>, Box<dyn Fn()>, Rc<Cell<bool>>);

impl client::Client for Patient {
    fn add(&self, device: *mut ib_device) -> Result<*mut core::ffi::c_void> {
        self.0.set(Some(Objects::new(device, WORKQUEUE)?));
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut core::ffi::c_void) {
        let objects = self.0.take().expect("objects");
        let request = Request::new(0);
        objects.post_recv(&request).expect("a receive");
        (self.1)();
        for _ in 0..200 {
            if request.status.get().is_some() {
                break;
            }
            sim::sleep(SECOND);
        }
        self.2.set(request.status.get().is_some());
        drop(objects);
    }
}

/// The driver detects the death, although no command is sent.
#[test]
fn a_client_does_not_wait_for_a_device_that_dies_while_it_is_unbound() {
    let ended = Rc::new(Cell::new(false));
    run_with(Profile::Efa3, |rig| {
        let shared = rig.shared.clone();
        let die =
            move || shared.with(|device, machine, now| device.die(machine, now, Death::default()));
        let client = Patient(Cell::new(None), Box::new(die), ended.clone());
        client::register_client(Rc::new(client));
        rig.probe().unwrap();
    });
    assert!(ended.get(), "what was posted ends");
}

/// A client that keeps a device for a minute after the begin of its removal.
struct Keeper;

impl client::Client for Keeper {
    fn add(&self, _: *mut ib_device) -> Result<*mut core::ffi::c_void> {
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut core::ffi::c_void) {
        sim::sleep(60 * SECOND);
    }
}

/// A client whose completion handler requests the next event, polls, and posts a receive.
struct Poster {
    objects: Objects,
    requests: Vec<Request>,
    posted: Cell<usize>,
    polled: Cell<usize>,
}

impl Poster {
    fn new() -> Box<Self> {
        let objects = Objects::new(registered().unwrap(), WORKQUEUE).unwrap();
        let poster = Box::new(Self {
            requests: (0..5).map(|_| *Request::new(0)).collect(),
            objects,
            posted: Cell::new(0),
            polled: Cell::new(0),
        });
        // SAFETY: The queue exists. The core has requested an event, and does not poll it any more.
        unsafe {
            (*poster.objects.cq).cq_context = (&raw const *poster).cast_mut().cast();
            (*poster.objects.cq).comp_handler = Some(post_in_handler);
        }
        poster
    }

    fn post(&self) {
        let number = self.posted.replace(self.posted.get() + 1);
        if let Some(request) = self.requests.get(number) {
            self.objects.post_recv(request).unwrap();
        }
    }
}

extern "C" fn post_in_handler(cq: *mut ib_cq, context: *mut core::ffi::c_void) {
    // SAFETY: The queue exists, and so does the client.
    let poster = unsafe {
        let request = (*(*cq).device).ops.req_notify_cq.unwrap();
        assert_eq!(request(cq, ib_cq_notify_flags_IB_CQ_NEXT_COMP), 0);
        &*context.cast::<Poster>()
    };
    while poster.objects.poll_one().is_some() {
        poster.polled.set(poster.polled.get() + 1);
        poster.post();
    }
}

/// The completion of a post to a queue pair in error, or of a dead device, is reported later than the post returns. Otherwise
/// the handler of a client that posts in its handler, or with a lock held, would wait for itself.
#[test]
fn a_completion_handler_may_post() {
    for dies in [false, true] {
        run_bound_with(Profile::Efa3, |rig| {
            client::register_client(Rc::new(Keeper));
            let poster = Poster::new();
            poster.post();
            if dies {
                rig.die(death(1, FailedReset::NeverEnds));
                sim::sleep(30 * SECOND);
            } else {
                poster.objects.modify_qp(&[ERR]).unwrap();
            }
            sim::sleep(SECOND);
            assert_eq!(poster.polled.get(), poster.requests.len());
            drop(poster);
        });
    }
}

/// A client frees its buffers once its objects are destroyed. So a device that keeps one that may use them is halted.
#[test]
fn no_object_is_left_to_the_device_with_the_memory_of_a_client() {
    // Whether receives are posted, and the queue pair is in error.
    for (opcode, is_posted, is_flushed, is_reset) in [
        (Opcode::DestroyQp, true, false, true),
        (Opcode::DestroyQp, true, true, false),
        (Opcode::DestroyQp, false, false, false),
        (Opcode::DeregMr, false, false, true),
    ] {
        rig::run_without_end(Profile::Efa3, Policy::Sequential, |mut rig| {
            rig.probe().unwrap();
            let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
            let request = Request::new(0);
            if is_posted {
                objects.post_recv(&request).unwrap();
            }
            if is_flushed {
                // SAFETY: The queue pair exists.
                unsafe { cq::drain(objects.qp) };
            }
            rig.inject(always(of_command(Some(opcode)), status(5)));
            match opcode {
                Opcode::DeregMr => {
                    objects.use_region();
                    // The rest ends with the device, as this is no client of the core.
                    core::mem::forget(objects);
                }
                _ => drop(objects),
            }
            sim::sleep(SECOND);
            let expected = if is_reset { "memory_held" } else { "none" };
            assert_eq!(
                rig.state("last_reset").as_deref(),
                Some(expected),
                "{opcode:?}"
            );
        });
    }
}

/// The device may put a queue pair into the error state by itself. Then it refuses the transition, whose aim is reached.
#[test]
fn a_queue_pair_that_the_device_has_failed_can_be_drained() {
    run_bound_with(Profile::Efa3, |rig| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let requests = [(); 8].map(|()| Request::new(0));
        for request in &requests {
            objects.post_recv(request).unwrap();
        }
        // SAFETY: The queue pair exists.
        let qp_num = unsafe { (*objects.qp).qp_num } as u16;
        let failed = rig
            .shared
            .with(|device, machine, _| device.fail_qp(machine, qp_num));
        failed.unwrap();
        // SAFETY: The queue pair exists.
        unsafe { cq::drain(objects.qp) };
        let statuses = requests.map(|request| request.status.get());
        assert_eq!(statuses, [Some(FLUSHED); 8]);
        drop(objects);
        assert_eq!(rig.state("last_reset").as_deref(), Some("none"));
    });
}

/// As in Amazon's driver. A device may compare the generation.
#[test]
fn a_region_is_deregistered_by_its_current_key() {
    run_bound_with(Profile::Efa3, |_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let ((), log) = traced(|| objects.use_region());
        let key = |name: &str| {
            let line = log.iter().find(|line| line.contains(name));
            let (_, rest) = line?.split_once("l_key=")?;
            let digits = rest
                .split(|end: char| !end.is_ascii_alphanumeric())
                .next()?;
            u32::from_str_radix(digits.strip_prefix("0x")?, 16).ok()
        };
        assert_eq!(key("ALLOC_MR").map(|key| key + GENERATION), key("DEREG_MR"));
        assert!(key("DEREG_MR").is_some(), "{log:?}");
        drop(objects);
    });
}

/// The core ignores that a client can't be added, so the device is registered nevertheless.
#[test]
fn a_device_that_fails_while_a_client_is_added_is_given_up() {
    run_with(Profile::Efa3, |rig| {
        rig.inject(always(of_command(Some(Opcode::CreateQp)), silence()));
        let number =
            client::register_client(Ulp::new(|device| Objects::new(device, WORKQUEUE), true));
        rig.probe().unwrap();
        sim::sleep(1000 * SECOND);
        assert_eq!(rig.state("state").as_deref(), Some("failed"));
        rig.heal();
        rig.remove();
        client::unregister_client(number);
    });
}

/// A client reads as many bytes as a completion reports.
#[test]
fn a_message_that_exceeds_its_buffer_is_an_error() {
    run_bound_with(Profile::Efa3, |rig| {
        let objects = Objects::new(registered().unwrap(), WORKQUEUE).unwrap();
        let (send, receive) = (Request::new(0), Request::new(0));
        // Bytes 6 and 7 are the length.
        let corrupt = r#"[{"offset": 6, "value": 255}, {"offset": 7, "value": 255}]"#;
        rig.inject(rule(&format!(
            r#"{{"when": {{"work": "RECEIVE"}}, "then": {{"corrupt": {corrupt}}}}}"#
        )));
        objects.post_recv(&receive).unwrap();
        objects.post_send(&send).unwrap();
        sim::sleep(SECOND);
        assert_eq!(send.status.get(), Some(0));
        assert_eq!(receive.status.get(), Some(LENGTH_ERROR));
    });
}
