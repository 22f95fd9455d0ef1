// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Callbacks of completion queues that only clients in the kernel use.

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    completions::WorkCompletions,
    cq::{
        CompletionQueue,
        CqEvents,
        CqExtra,
        KernelCqInitAttr, //
    },
    mmap::Mapped,
    object::ObjectOf,
    ops::Ops,
    provider::Provider, //
};
use crate::ffi;

/// Adds the callbacks of completion queues of clients in the kernel to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    if P::Cq::HAS_CREATE_KERNEL {
        ops.create_cq = Some(Ops::<P>::create_cq);
        ops.poll_cq = Some(Ops::<P>::poll_cq);
        ops.req_notify_cq = Some(Ops::<P>::req_notify_cq);
        ops.pre_destroy_cq = Some(Ops::<P>::pre_destroy_cq);
        ops.post_destroy_cq = Some(Ops::<P>::post_destroy_cq);
        ops.destroy_cq = Some(Ops::<P>::destroy_cq);
        ops.fill_res_cq_entry = Some(Ops::<P>::fill_res_cq_entry);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Creates a completion queue for a client in the kernel.
    ///
    /// `attrs` is null, unless the caller is a process.
    unsafe extern "C" fn create_cq(
        cq: *mut ffi::ib_cq,
        attr: *const ffi::ib_cq_init_attr,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // `create_user_cq` creates the queues of processes.
            if !attrs.is_null() {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: By the contract, the core has set the device of the new queue.
            let device = unsafe { Self::device_of(cq) };
            // SAFETY: By the contract, the attributes are valid.
            let attr = unsafe { &*attr };
            // SAFETY: The queue exists until it is destroyed, or this fails. Both call `forget`.
            let events = unsafe { CqEvents::new(cq) }?;
            // SAFETY: By the contract, the queue is valid.
            let has_events = unsafe { has_events(&*cq) };
            let attr = KernelCqInitAttr {
                cqe: attr.cqe,
                comp_vector: attr.comp_vector,
                flags: attr.flags,
                events: has_events.then_some(&events),
            };
            let init = P::Cq::create_kernel(device, &attr);
            // SAFETY: By the contract, the queue is new. The events are of this queue.
            unsafe { Self::init_cq(cq, init, &events) }?;
            let extra = CqExtra {
                events,
                _mapped: Mapped::default(),
            };
            // SAFETY: The queue has just been initialized.
            unsafe { ObjectOf::<P, _>::set_extra(cq, extra) };
            Ok(0)
        })
    }

    /// Starts the events of a queue for which a queue pair is created. Only then has the core set
    /// what its own handler uses.
    ///
    /// # Safety
    ///
    /// `cq` must be null, or a queue of a client in the kernel, whose creation is complete.
    pub(super) unsafe fn start_events(cq: *mut ffi::ib_cq) {
        if cq.is_null() {
            return;
        }
        // SAFETY: The caller guarantees that the queue was created, which has initialized its data.
        let events = &unsafe { ObjectOf::<P, _>::extra(cq) }.events;
        // SAFETY: The caller guarantees that the creation is complete, so that the handler is callable.
        unsafe { events.start() };
    }

    /// Writes up to `count` completions to `wc`, and returns their number.
    unsafe extern "C" fn poll_cq(cq: *mut ffi::ib_cq, count: c_int, wc: *mut ffi::ib_wc) -> c_int {
        // The checks below need no instructions then.
        if count <= 0 {
            return 0;
        }
        // SAFETY: By the contract, the queue was created.
        let (queue, device) = unsafe { Self::object(cq) };
        // SAFETY: By the contract, there is room for `count` completions during the call.
        let mut completions = unsafe { WorkCompletions::new(cq, wc, count) };
        queue.poll(device, &mut completions);
        // CAST: At most `count`.
        completions.count() as c_int
    }

    /// Requests an event for the next completion. Returns 1 if the caller must poll again.
    unsafe extern "C" fn req_notify_cq(
        cq: *mut ffi::ib_cq,
        flags: ffi::ib_cq_notify_flags,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the queue was created.
            let (queue, device) = unsafe { Self::object(cq) };
            // An event for any completion is one for a solicited completion, too.
            queue.request_notify(device)?;
            let reports_missed = flags & ffi::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
            Ok((reports_missed && queue.has_completions(device)).into())
        })
    }

    /// Stops events of a completion queue, before the core frees the data of its handler.
    unsafe extern "C" fn pre_destroy_cq(cq: *mut ffi::ib_cq) -> c_int {
        // SAFETY: By the contract, the queue was created, which has initialized its data.
        unsafe { ObjectOf::<P, _>::extra(cq) }.events.forget();
        0
    }

    /// Destroys a completion queue, after [`Self::pre_destroy_cq`].
    unsafe extern "C" fn post_destroy_cq(cq: *mut ffi::ib_cq) {
        // SAFETY: By the contract, the queue is not used any more.
        unsafe { Self::destroy_cq(cq, core::ptr::null_mut()) };
    }
}

/// Returns whether a new queue needs events: for its client's handler, or for polls by the core.
/// For the latter, the core allocates `wc` before the creation, but sets the handler after it.
fn has_events(cq: &ffi::ib_cq) -> bool {
    if cq.wc.is_null() {
        cq.comp_handler.is_some()
    } else {
        cq.poll_ctx != ffi::ib_poll_context_IB_POLL_DIRECT
    }
}
