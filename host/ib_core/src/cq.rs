// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues that the core polls for in-kernel clients, as in `cq.c`, and drains.

use core::{
    cell::{Cell, RefCell},
    ptr::null_mut,
};
use std::{collections::BTreeMap, rc::Rc};

use kernel::{
    error::{to_result, Result},
    ffi::{c_int, c_void},
    sim, warn,
};

use crate::{ffi::*, uverbs::zeroed, verbs};

const BATCH: usize = 16;
const BUDGET: c_int = 65_536;

/// State of a queue that the core polls itself.
struct Polled {
    work: RefCell<sim::Work>,
    /// Whether `work` may be queued: it is initialized, and was not cancelled.
    is_ready: Cell<bool>,
}

thread_local! {
    static POLLED: RefCell<BTreeMap<usize, Rc<Polled>>> = const { RefCell::new(BTreeMap::new()) };
}

pub(crate) fn start() {
    POLLED.with(|polled| std::mem::forget(std::mem::take(&mut *polled.borrow_mut())));
}

fn polled(cq: *mut ib_cq) -> Option<Rc<Polled>> {
    POLLED.with(|polled| polled.borrow().get(&(cq as usize)).cloned())
}

extern "C" fn completion_direct(_: *mut ib_cq, _: *mut c_void) {
    warn("got unsolicited completion for CQ".into());
}

extern "C" fn completion_workqueue(cq: *mut ib_cq, _: *mut c_void) {
    match polled(cq).filter(|polled| polled.is_ready.get()) {
        Some(polled) => polled.work.borrow_mut().queue(0),
        None => warn("work of a CQ is queued that is not initialized, or was cancelled".into()),
    }
}

fn poll_work(cq: usize) {
    let cq = cq as *mut ib_cq;
    // SAFETY: The work runs only while the queue exists, as `free_cq` disables it first.
    unsafe {
        let done = process(cq, BUDGET);
        let flags =
            ib_cq_notify_flags_IB_CQ_NEXT_COMP | ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
        if done >= BUDGET || (*(*cq).device).ops.req_notify_cq.unwrap()(cq, flags) > 0 {
            completion_workqueue(cq, null_mut());
        }
    }
}

/// As `__ib_process_cq`.
unsafe fn process(cq: *mut ib_cq, budget: c_int) -> c_int {
    let mut completed = 0;
    // SAFETY: The caller guarantees the queue, and its requests have a `wr_cqe` that is valid until their function is called.
    unsafe {
        loop {
            let room = if budget < 0 {
                BATCH
            } else {
                BATCH.min((budget - completed) as usize)
            };
            // Several tasks may poll a queue of IB_POLL_DIRECT.
            let mut own: [ib_wc; BATCH] = zeroed();
            let is_direct = (*cq).poll_ctx == ib_poll_context_IB_POLL_DIRECT;
            let wcs = if is_direct {
                own.as_mut_ptr()
            } else {
                (*cq).wc
            };
            let count = (*(*cq).device).ops.poll_cq.unwrap()(cq, room as c_int, wcs);
            // From here on the driver does not hold these requests.
            sim::point();
            for index in 0..count.max(0) as usize {
                let wc = &mut *wcs.add(index);
                let cqe = *wc.__bindgen_anon_1.wr_cqe.as_ref();
                (*cqe).done.expect("a function")(cq, wc);
            }
            completed += count.max(0);
            if count < BATCH as c_int || (budget >= 0 && completed >= budget) {
                return completed;
            }
        }
    }
}

/// Polls a queue of `IB_POLL_DIRECT`, and calls the functions of the completed requests.
#[no_mangle]
pub unsafe extern "C" fn ib_process_cq_direct(cq: *mut ib_cq, budget: c_int) -> c_int {
    // SAFETY: By the contract of `ib_process_cq_direct`, the queue exists, and all its requests have a `wr_cqe`.
    unsafe { process(cq, budget) }
}

/// As `ib_alloc_cq`.
pub unsafe fn alloc_cq(
    device: *mut ib_device,
    entries: u32,
    context: ib_poll_context,
) -> Result<*mut ib_cq> {
    let attr = ib_cq_init_attr {
        cqe: entries,
        comp_vector: 0,
        flags: 0,
    };
    // SAFETY: The caller guarantees that the device is registered; the queue exists until `free_cq`.
    unsafe {
        let wcs = Box::into_raw(Box::new(zeroed::<[ib_wc; BATCH]>()));
        let prepare = |cq: *mut ib_cq| {
            (*cq).poll_ctx = context;
            (*cq).wc = wcs.cast();
        };
        let cq = verbs::create_cq(device, &attr, null_mut(), prepare).inspect_err(|_| {
            drop(Box::from_raw(wcs));
        })?;
        if context == ib_poll_context_IB_POLL_DIRECT {
            (*cq).comp_handler = Some(completion_direct);
            return Ok(cq);
        }
        // Here, `irq_poll` for IB_POLL_SOFTIRQ is a work item as well.
        (*cq).comp_handler = Some(completion_workqueue);
        sim::point();
        let work = RefCell::new(sim::Work::new(poll_work, cq as usize));
        let polled = Rc::new(Polled {
            work,
            is_ready: Cell::new(false),
        });
        POLLED.with(|all| all.borrow_mut().insert(cq as usize, polled.clone()));
        (*device).ops.req_notify_cq.unwrap()(cq, ib_cq_notify_flags_IB_CQ_NEXT_COMP);
        // Only now does the core set the workqueue in which the work item is queued.
        sim::point();
        polled.is_ready.set(true);
        Ok(cq)
    }
}

/// As `ib_free_cq`.
pub unsafe fn free_cq(cq: *mut ib_cq) {
    // SAFETY: The caller guarantees that the queue is one of `alloc_cq`; once `is_ready` is false, nothing else borrows its work.
    unsafe {
        if (*cq).usecnt.counter != 0 {
            return warn("ib_free_cq: the queue is in use".into());
        }
        let ops = &(*(*cq).device).ops;
        if let Some(pre) = ops.pre_destroy_cq {
            verbs::ignore("Disable of kernel CQ shouldn't fail", to_result(pre(cq)));
        }
        if let Some(polled) = polled(cq) {
            polled.is_ready.set(false);
            (*polled.work.as_ptr()).disable_sync();
        }
        // An event from here on finds no work.
        sim::point();
        let wcs: *mut [ib_wc; BATCH] = (*cq).wc.cast();
        let result = verbs::end_cq(cq, null_mut(), true);
        POLLED.with(|all| all.borrow_mut().remove(&(cq as usize)));
        verbs::ignore("Destroy of kernel CQ shouldn't fail", result);
        drop(Box::from_raw(wcs));
    }
}

/// The work request whose completion shows that a queue is drained.
#[repr(C)]
struct Marker {
    cqe: ib_cqe,
    is_done: Cell<bool>,
}

extern "C" fn drain_done(_: *mut ib_cq, wc: *mut ib_wc) {
    // SAFETY: The marker exists until its function was called.
    let marker = unsafe { &*(*wc).__bindgen_anon_1.wr_cqe.as_ref().cast::<Marker>() };
    marker.is_done.set(true);
}

/// Time limit of a drain in ns: a command, the handling of a silent device, and a flush.
const DRAIN_BOUND: sim::Nanos = 300_000_000_000;

/// As `__ib_drain_sq` and `__ib_drain_rq`: `post` posts the marker.
///
/// # Panics
///
/// If the drain exceeds its time limit, where the core would wait for ever.
unsafe fn drain_queue(qp: *mut ib_qp, cq: *mut ib_cq, post: impl FnOnce(*mut ib_cqe) -> Result) {
    let mut attr: ib_qp_attr = zeroed();
    attr.qp_state = ib_qp_state_IB_QPS_ERR;
    // SAFETY: The caller guarantees that both exist.
    unsafe {
        let mask = ib_qp_attr_mask_IB_QP_STATE;
        if let Err(error) = verbs::modify_qp(qp, &raw mut attr, mask, null_mut()) {
            return warn(format!("failed to drain queue: {error:?}"));
        }
        let marker = Marker {
            cqe: ib_cqe {
                done: Some(drain_done),
            },
            is_done: Cell::new(false),
        };
        if let Err(error) = post((&raw const marker.cqe).cast_mut()) {
            return warn(format!("failed to drain queue: {error:?}"));
        }
        let start = sim::now();
        while !marker.is_done.get() {
            assert!(sim::now() - start < DRAIN_BOUND, "a drain does not end");
            sim::sleep(100_000_000);
            if (*cq).poll_ctx == ib_poll_context_IB_POLL_DIRECT {
                ib_process_cq_direct(cq, -1);
            }
        }
    }
}

/// As `ib_drain_sq`.
pub unsafe fn drain_sq(qp: *mut ib_qp) {
    // SAFETY: The caller guarantees that the queue pair exists. The work request has the structure of the core's.
    unsafe {
        drain_queue(qp, (*qp).send_cq, |cqe| {
            let mut wr: ib_rdma_wr = zeroed();
            wr.wr.opcode = ib_wr_opcode_IB_WR_RDMA_WRITE;
            *wr.wr.__bindgen_anon_1.wr_cqe.as_mut() = cqe;
            let (first, mut bad) = ((&raw const wr).cast(), core::ptr::null());
            to_result((*(*qp).device).ops.post_send.unwrap()(
                qp,
                first,
                &raw mut bad,
            ))
        });
    }
}

/// As `ib_drain_rq`.
pub unsafe fn drain_rq(qp: *mut ib_qp) {
    // SAFETY: The caller guarantees that the queue pair exists.
    unsafe {
        drain_queue(qp, (*qp).recv_cq, |cqe| {
            let mut wr: ib_recv_wr = zeroed();
            *wr.__bindgen_anon_1.wr_cqe.as_mut() = cqe;
            let mut bad = core::ptr::null();
            to_result((*(*qp).device).ops.post_recv.unwrap()(
                qp,
                &raw const wr,
                &raw mut bad,
            ))
        });
    }
}

/// As `ib_drain_qp`.
pub unsafe fn drain(qp: *mut ib_qp) {
    // SAFETY: The caller guarantees that the queue pair exists.
    unsafe {
        drain_sq(qp);
        drain_rq(qp);
    }
}
