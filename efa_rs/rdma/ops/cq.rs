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
            CqInitAttr, //
        },
        object,
        provider::Provider,
        udata::Udata, //
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
        // SAFETY: The caller guarantees that `create_user_cq` has initialized the data.
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

                let queue = &Object::<'_, P>::data(cq).data;
                (*cq).cqe = queue.cqe().try_into().unwrap_or(c_int::MAX);
                Object::<'_, P>::keep(cq, queue.details());
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn destroy_cq(cq: *mut ffi::ib_cq, _udata: *mut ffi::ib_udata) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the object was created by `create_user_cq`; if its
            // destruction succeeds, it is not used after this call.
            unsafe {
                let data = Object::<'_, P>::data(cq);
                data.data.destroy(Self::device((*cq).device))?;
                // From here on no interrupt handler uses the queue.
                data.events.forget();
                Object::<'_, P>::drop_data(cq);
            }
            Ok(0)
        })
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
