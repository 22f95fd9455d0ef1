// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of completion queues.

use kernel::{
    bindings,
    error::from_result,
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

use super::{
    details,
    Ops, //
};
use crate::{
    ffi,
    rdma::{
        cq::{
            CompletionQueue,
            CqEvents,
            CqInitAttr,
            KernelCqInitAttr, //
        },
        kernel_client::KernelClient,
        object,
        provider::Provider,
        udata::Udata,
        work::WorkCompletions, //
    },
};

/// A completion queue with its details, and with who is told of completions and the provider's data.
pub(super) type Object<'a, P> =
    object::Object<ffi::ib_cq, Details<'a, P>, Data<<P as Provider>::Cq<'a>>>;

/// What is told of a completion queue.
type Details<'a, P> = <<P as Provider>::Cq<'a> as CompletionQueue<
    'a,
    <P as Provider>::Data<'a>,
    <P as Provider>::Ucontext<'a>,
>>::Details;

/// What is behind a completion queue.
#[pin_data]
pub(super) struct Data<T> {
    #[pin]
    data: T,
    events: Arc<CqEvents>,
}

impl<P: Provider> Ops<P> {
    /// Returns the provider's data of a completion queue, of which there may be none.
    ///
    /// # Safety
    ///
    /// `cq` must be null, or one of a device that is registered with the provider `P`, and not be
    /// destroyed for `'o`.
    pub(super) unsafe fn cq<'o, 'a>(cq: *mut ffi::ib_cq) -> Option<&'o P::Cq<'a>>
    where
        'a: 'o,
    {
        // SAFETY: The caller guarantees that the queue was created, which has initialized the data.
        (!cq.is_null()).then(|| unsafe { &Object::<'a, P>::data(cq).data })
    }

    pub(super) extern "C" fn create_user_cq(
        cq: *mut ffi::ib_cq,
        attr: *const ffi::ib_cq_init_attr,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The queue is there until it was destroyed, or this has failed: both forget it.
            let events = unsafe { CqEvents::new(cq) }?;

            // SAFETY: By the core's promise the device is registered, and the context one of ours. It
            // has allocated the object for this call, of the size that the table gives.
            unsafe {
                let raw = (*cq).device;
                let device = Self::device(raw);
                let udata = Udata::of(attrs);
                let attr = CqInitAttr::new(raw, &*attr, attrs, &events);
                let create = || {
                    let context = Self::context(&udata)?;
                    let data = <P::Cq<'_> as CompletionQueue<_, _>>::create_user(
                        device, &context, &attr, &udata,
                    );
                    let events = events.clone();
                    Object::<'_, P>::init(cq, try_pin_init!(Data { data <- data, events }? Error))
                };
                create().inspect_err(|_| events.forget())?;

                Self::tell(cq);
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn create_cq(
        cq: *mut ffi::ib_cq,
        attr: *const ffi::ib_cq_init_attr,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // Those of programs are made by `create_user_cq`.
            if !attrs.is_null() {
                return Err(EOPNOTSUPP);
            }
            let client = KernelClient::ANY.ok_or(EOPNOTSUPP)?;
            // SAFETY: The queue is there until it was destroyed, or this has failed: both forget it.
            let events = unsafe { CqEvents::new(cq) }?;

            // SAFETY: By the core's promise the device is registered. It has allocated the object for this
            // call, of the size that the table gives.
            unsafe {
                let device = Self::device((*cq).device);
                let attr = KernelCqInitAttr {
                    cqe: (*attr).cqe,
                    comp_vector: (*attr).comp_vector,
                    flags: (*attr).flags,
                    // The core says who is told only after this, for queues that it polls itself.
                    events: &events,
                    client,
                };
                let data = <P::Cq<'_> as CompletionQueue<_, _>>::create_kernel(device, &attr);
                let kept = events.clone();
                let init = try_pin_init!(Data { data <- data, events: kept }? Error);
                Object::<'_, P>::init(cq, init).inspect_err(|_| events.forget())?;
                Self::tell(cq);
            }
            Ok(0)
        })
    }

    /// Tells the core of a new completion queue.
    ///
    /// # Safety
    ///
    /// `cq` must be a completion queue whose data was initialized, and that nobody else uses yet.
    unsafe fn tell(cq: *mut ffi::ib_cq) {
        // SAFETY: The caller guarantees that the data is there.
        unsafe {
            let queue = &Object::<'_, P>::data(cq).data;
            (*cq).cqe = queue.cqe().try_into().unwrap_or(c_int::MAX);
            Object::<'_, P>::keep(cq, queue.details());
        }
    }

    pub(super) extern "C" fn poll_cq(
        cq: *mut ffi::ib_cq,
        count: c_int,
        wc: *mut ffi::ib_wc,
    ) -> c_int {
        // SAFETY: By the core's promise the object was created by `create_cq`, as programs poll theirs
        // without the kernel; there is room for so many completions.
        unsafe {
            let mut completions = WorkCompletions::new(wc, count);
            let device = Self::device((*cq).device);
            Object::<'_, P>::data(cq)
                .data
                .poll(device, &mut completions);
            // CAST: At most `count`.
            completions.count() as c_int
        }
    }

    pub(super) extern "C" fn req_notify_cq(
        cq: *mut ffi::ib_cq,
        flags: ffi::ib_cq_notify_flags,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the object was created by `create_cq`.
            unsafe {
                let (queue, device) = (&Object::<'_, P>::data(cq).data, Self::device((*cq).device));
                let solicited_only = flags & ffi::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
                    == ffi::ib_cq_notify_flags_IB_CQ_SOLICITED;
                queue.request_notify(device, solicited_only)?;
                let reports_missed =
                    flags & ffi::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
                Ok((reports_missed && queue.has_completions(device)).into())
            }
        })
    }

    /// Called before the core frees what the function for events uses. No event reaches it from here on.
    pub(super) extern "C" fn pre_destroy_cq(cq: *mut ffi::ib_cq) -> c_int {
        // SAFETY: By the core's promise the object was created by `create_cq`.
        unsafe { Object::<'_, P>::data(cq) }.events.forget();
        0
    }

    pub(super) extern "C" fn post_destroy_cq(cq: *mut ffi::ib_cq) {
        Self::destroy_cq(cq, core::ptr::null_mut());
    }

    pub(super) extern "C" fn destroy_cq(cq: *mut ffi::ib_cq, _udata: *mut ffi::ib_udata) -> c_int {
        // SAFETY: By the core's promise the object was created by one of the functions above, and is not used after
        // this call.
        unsafe {
            let data = Object::<'_, P>::data(cq);
            data.events.forget();
            data.data.destroy(Self::device((*cq).device));
            Object::<'_, P>::drop_data(cq);
        }
        0
    }

    pub(super) extern "C" fn fill_res_cq_entry(
        msg: *mut bindings::sk_buff,
        cq: *mut ffi::ib_cq,
    ) -> c_int {
        // SAFETY: By the core's promise the queue was created, which has set the details; the message
        // is being built.
        unsafe {
            let values = Object::<'_, P>::kept(cq);
            details::write(
                msg,
                <P::Cq<'_> as CompletionQueue<_, _>>::DETAILS,
                values.as_ref(),
            )
        }
    }
}
