// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs of clients in the kernel: posts, polls, flushes, and the end of queue pairs and devices.

use core::ptr::null_mut;

use driver::{
    client::{Objects, Request, DIRECT, WORKQUEUE},
    fault::rule,
    program::UP,
};
use ib_core::{
    cq,
    ffi::{
        ib_cq, ib_cq_notify_flags_IB_CQ_NEXT_COMP as NEXT, ib_poll_context,
        ib_qp_state_IB_QPS_ERR as ERR, ib_qp_state_IB_QPS_RESET as RESET,
        ib_wc_status_IB_WC_WR_FLUSH_ERR as FLUSHED,
    },
    registry::{registered, Reference},
};

use super::*;

/// Objects of a client, and its requests. It holds the device, which stays registered until they are destroyed.
struct Client {
    objects: Objects,
    requests: [Request; 4],
    _reference: Option<Reference>,
}

impl Client {
    fn new(context: ib_poll_context) -> Rc<Self> {
        Rc::new(Self {
            objects: Objects::new(registered().unwrap(), context).unwrap(),
            requests: [(); 4].map(|()| *Request::new(0)),
            _reference: Reference::new(),
        })
    }

    /// Starts a task that posts half of the requests as receives, and the others as sends.
    fn poster(self: &Rc<Self>) -> TaskId {
        let client = self.clone();
        sim::spawn("poster", move || {
            for (index, request) in client.requests.iter().enumerate() {
                let result = match index % 2 {
                    0 => client.objects.post_recv(request),
                    _ => client.objects.post_send(request),
                };
                assert_eq!(result, Ok(()));
            }
        })
    }

    /// Starts a task that polls a few times.
    fn poller(self: &Rc<Self>) -> TaskId {
        let client = self.clone();
        sim::spawn("poller", move || {
            for _ in 0..3 {
                client.objects.poll();
                sim::sleep(1000);
            }
        })
    }

    /// Drains the queue pair, and checks that each request has ended.
    fn drain(&self) {
        // SAFETY: The queue pair exists.
        unsafe { cq::drain(self.objects.qp) };
        self.objects.poll();
        let left = self
            .requests
            .iter()
            .filter(|one| one.status.get().is_none());
        assert_eq!(left.count(), 0, "requests that have not ended");
    }
}

/// Searches a client that posts and polls while `what` happens, and drains its queue pair then. A request that ends twice panics.
fn races(property: &str, context: ib_poll_context, bounds: Bounds, what: fn(&Rig, &Objects)) {
    explore(property, Profile::Efa3, bounds, move |rig| {
        let client = Client::new(context);
        let tasks = match context {
            DIRECT => vec![client.poster(), client.poller()],
            _ => vec![client.poster()],
        };
        together(tasks, || what(rig, &client.objects));
        client.drain();
        drop(client);
        comes_back(rig);
    });
}

#[test]
fn each_request_ends_once() {
    races("posts and polls", DIRECT, TWO, |_, _| ());
}

#[test]
fn each_request_ends_once_if_its_queue_pair_fails() {
    races("error", DIRECT, ONE, |_, objects| {
        objects.modify_qp(&[ERR]).unwrap()
    });
}

#[test]
fn each_request_ends_once_if_its_device_fails() {
    races("failure", WORKQUEUE, ONE, |rig, _| {
        rig.event(AenqGroup::FatalError.into(), 1)
    });
}

/// The completions of the requests before the reset are those of no later request.
#[test]
fn a_queue_pair_that_was_reset_has_no_old_completions() {
    explore("reset", Profile::Efa3, ONE, |rig| {
        let client = Client::new(DIRECT);
        for (index, request) in client.requests.iter().enumerate() {
            match index % 2 {
                0 => client.objects.post_recv(request).unwrap(),
                _ => client.objects.post_send(request).unwrap(),
            }
        }
        let other = client.clone();
        let poller = sim::spawn("poller", move || other.objects.poll());
        together([poller], || {
            client.objects.modify_qp(&[ERR, RESET]).unwrap();
            client.objects.modify_qp(&UP).unwrap();
        });
        client.objects.exchange(1);
        client.objects.exchange(2);
        drop(client);
        rig.check_quiet();
    });
}

/// After those that were posted to the device, which flushes them late, in the order of their posts.
#[test]
fn requests_of_a_closed_queue_end_in_order() {
    explore("order", Profile::Efa3, ONE, |rig| {
        rig.inject(rule(
            r#"{"when": {"work": "SEND"}, "then": {"hold": "sends"}}"#,
        ));
        let client = Client::new(DIRECT);
        let poster = {
            let client = client.clone();
            sim::spawn("poster", move || {
                for request in &client.requests {
                    client.objects.post_send(request).unwrap();
                }
            })
        };
        let mut order = Vec::new();
        together([poster], || {
            client.objects.modify_qp(&[ERR]).unwrap();
            order.extend(std::iter::from_fn(|| client.objects.poll_one()));
        });
        for _ in 0..10 {
            order.extend(std::iter::from_fn(|| client.objects.poll_one()));
            sim::sleep(SECOND);
            rig.shared
                .with(|device, _, _| device.release("sends", None));
        }
        let ids: Vec<_> = client.requests.iter().map(Request::id).collect();
        assert_eq!(order, ids);
    });
}

thread_local! {
    static EVENTS: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn count(_: *mut ib_cq, _: *mut core::ffi::c_void) {
    EVENTS.set(EVENTS.get() + 1);
}

/// Searches a client that requests an event and polls once, as clients do before they wait, while another task posts to a queue
/// pair in error or `what` happens. Checks that it got its completion or an
/// event, after `time`: sooner than the monitor looks.
fn waits(property: &str, bounds: Bounds, time: u64, what: fn(&Rig, &Client)) {
    explore(property, Profile::Efa3, bounds, move |rig| {
        EVENTS.set(0);
        let client = Client::new(WORKQUEUE);
        // SAFETY: The queue exists. The core does not poll it any more.
        unsafe { (*client.objects.cq).comp_handler = Some(count) };
        let polled = Rc::new(Cell::new(None));
        let (waiter, seen) = (client.clone(), polled.clone());
        let task = sim::spawn("waiter", move || {
            // SAFETY: The queue exists.
            unsafe { (*waiter.objects.device).ops.req_notify_cq.unwrap()(waiter.objects.cq, NEXT) };
            seen.set(waiter.objects.poll_one());
        });
        together([task], || what(rig, &client));
        sim::sleep(time);
        assert!(
            polled.get().is_some() || EVENTS.get() > 0,
            "a client waits for ever"
        );
        while client.objects.poll_one().is_some() {}
        drop(client);
        comes_back(rig);
    });
}

#[test]
fn a_client_that_waits_is_woken() {
    waits("event of a closed queue", TWO, SECOND / 10, |_, client| {
        client.objects.modify_qp(&[ERR]).unwrap();
        client.objects.post_recv(&client.requests[0]).unwrap();
    });
}

#[test]
fn a_client_that_waits_is_woken_by_a_completion() {
    waits("event of a completion", TWO, SECOND / 10, |_, client| {
        client.objects.post_send(&client.requests[1]).unwrap();
        client.objects.post_recv(&client.requests[0]).unwrap();
    });
}

#[test]
fn a_client_that_waits_is_woken_by_a_halt() {
    waits("event of a halt", ONE, 10 * SECOND, |rig, client| {
        client.objects.post_recv(&client.requests[0]).unwrap();
        rig.event(AenqGroup::FatalError.into(), 1);
    });
}

/// No completion of a destroyed queue pair is polled, though others use the completion queue.
#[test]
fn a_destroyed_queue_pair_has_no_completions() {
    explore("destruction", Profile::Efa3, ONE, |rig| {
        let client = Client::new(DIRECT);
        let mut other = Objects::new(registered().unwrap(), DIRECT).unwrap();
        // It shares the completion queue.
        let mut attr = other.qp_attr();
        (attr.send_cq, attr.recv_cq) = (client.objects.cq, client.objects.cq);
        other.new_qp(&mut attr).unwrap();
        other.modify_qp(&UP).unwrap();
        let request = Rc::new(Request::new(0));
        other.post_recv(&request).unwrap();
        let posted = request.clone();
        let results = Results::new();
        let destroyer = results.spawn("destroyer", move || {
            // In the plain schedule, the poller has ended when the device flushes the request.
            sim::sleep(2500);
            other.modify_qp(&[ERR]).unwrap();
            sim::sleep(SECOND);
            // SAFETY: The queue pair exists, and nothing else uses it.
            unsafe { ib_core::verbs::destroy_qp(other.qp, null_mut()) }.unwrap();
            other.qp = null_mut();
            posted.status.get()
        });
        together([client.poller(), destroyer], || ());
        client.objects.poll();
        let before = results.take();
        assert_eq!(before, [request.status.get()]);
        assert!(before[0].is_none_or(|status| status == FLUSHED));
        drop(client);
        rig.check_quiet();
    });
}
