// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a provider reports too early, or to others, has no effect.

use core::ptr::{null, null_mut};

use ib_core::{
    cq,
    ffi::{
        ib_cq, ib_poll_context_IB_POLL_DIRECT as DIRECT, ib_qp, ib_qp_init_attr, ib_recv_wr, ib_wc,
    },
    registry,
    uverbs::{zeroed, Process},
    verbs,
};
use kernel::{
    error::{code::ENOMEM, to_result},
    sim::{self, Policy},
};

/// Runs `f` with the module.
fn run(f: fn()) {
    sim::run(Policy::Sequential, move || {
        registry::start();
        let module = misuse::load().unwrap();
        f();
        drop(module);
        assert_eq!(kernel::take_warnings(), [""; 0]);
    });
}

#[test]
fn a_queue_that_is_not_created_has_no_events() {
    run(|| {
        let process = Process::open().unwrap();
        process.alloc_context(&[], &mut []).unwrap();
        assert_eq!(process.create_cq(1, None, &[], &mut []), Err(ENOMEM));
    });
}

/// The core divides by their number.
#[test]
fn a_device_has_a_vector() {
    run(|| {
        let device = registry::registered().unwrap();
        // SAFETY: The device is registered.
        assert_eq!(unsafe { (*device).num_comp_vectors }, 1);
    });
}

/// The core reads a pattern as a format.
#[test]
fn a_name_has_no_format_but_that_of_a_number() {
    let patterns = [c"a%d", c"a", c"%da", c"a%s", c"a%d%d", c"a%%", c"a%"];
    let may = patterns.map(misuse::may_name);
    assert_eq!(may, [true, true, true, false, false, false, false]);
}

/// Posts a receive with an id.
unsafe fn post(qp: *mut ib_qp, id: u64) {
    let mut wr: ib_recv_wr = zeroed();
    let mut bad = null();
    // SAFETY: The caller guarantees that the queue pair exists. All variants of the union have the same size.
    unsafe {
        *wr.__bindgen_anon_1.wr_id.as_mut() = id;
        let post = (*(*qp).device).ops.post_recv.unwrap();
        to_result(post(qp, &raw const wr, &raw mut bad)).unwrap();
    }
}

/// Returns the id of a completion.
unsafe fn poll(cq: *mut ib_cq) -> Option<u64> {
    let mut wc: ib_wc = zeroed();
    // SAFETY: The caller guarantees that the queue exists.
    unsafe {
        let count = (*(*cq).device).ops.poll_cq.unwrap()(cq, 1, &raw mut wc);
        (count != 0).then(|| *wc.__bindgen_anon_1.wr_id.as_ref())
    }
}

/// A client reads an id as a pointer of its own.
#[test]
fn a_work_request_completes_in_its_queue_with_its_queue_pair() {
    run(|| {
        let device = registry::registered().unwrap();
        // SAFETY: The device is registered. All objects exist until they are destroyed.
        unsafe {
            let pd = verbs::alloc_pd(device, null_mut()).unwrap();
            let [first, second] = [(); 2].map(|()| cq::alloc_cq(device, 1, DIRECT).unwrap());
            let [one, other] = [(); 2].map(|()| {
                let mut attr: ib_qp_init_attr = zeroed();
                (attr.send_cq, attr.recv_cq) = (first, first);
                verbs::create_qp(pd, &mut attr, null_mut()).unwrap()
            });
            post(one, 5);
            assert_eq!(poll(first), Some(5));
            // In another queue.
            post(one, 6);
            assert_eq!(poll(second), None);
            // Each of another queue pair.
            post(one, 7);
            post(other, 8);
            assert_eq!([(); 2].map(|()| poll(first)), [None; 2]);
            // Of a queue pair that is gone.
            post(other, 9);
            verbs::destroy_qp(other, null_mut()).unwrap();
            assert_eq!(poll(first), None);

            verbs::destroy_qp(one, null_mut()).unwrap();
            cq::free_cq(first);
            cq::free_cq(second);
            verbs::dealloc_pd(pd, null_mut()).unwrap();
        }
    });
}
