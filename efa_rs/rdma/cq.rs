// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use core::marker::PhantomData;

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

use super::{
    context::Context,
    details::{
        Described,
        Details,
        QUEUE_DETAILS, //
    },
    device::provider,
    object::Object,
    ops::Ops,
    provider::Provider,
    udata::Udata,
    umem::Umem, //
};
use crate::{
    ffi,
    sys::irq_lock::{
        new_irq_lock,
        IrqLock, //
    },
};

/// What is behind a completion queue: the provider's data, and who is told of completions.
pub(super) struct CqData<T> {
    pub(super) data: T,
    events: Arc<CqEvents>,
}

/// A completion queue with its provider's data.
pub(super) type Cq<T> = Object<Described<ffi::ib_cq, QUEUE_DETAILS>, CqData<<T as Provider>::Cq>>;

/// Who is told of the completions of a queue. May outlive the queue, and then nobody is.
#[pin_data]
pub(crate) struct CqEvents {
    #[pin]
    cq: IrqLock<Target>,
}

/// The queue, or null once it is gone.
struct Target(*mut ffi::ib_cq);

// SAFETY: The lock around it keeps the queue alive while it is used.
unsafe impl Send for Target {}

impl CqEvents {
    fn new(cq: *mut ffi::ib_cq) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                cq <- new_irq_lock!(Target(cq), "efa_cq_events"),
            }),
            GFP_KERNEL,
        )
    }

    /// Tells whoever waits for completions. Called from interrupt handlers.
    pub(crate) fn notify(&self) {
        let cq = self.cq.lock();
        if cq.0.is_null() {
            return;
        }

        // SAFETY: The queue is there as long as the lock is held: see `forget`.
        unsafe {
            if let Some(handler) = (*cq.0).comp_handler {
                handler(cq.0, (*cq.0).cq_context);
            }
        }
    }

    /// Makes sure that the queue is not used any more.
    fn forget(&self) {
        self.cq.lock().0 = core::ptr::null_mut();
    }
}

/// What a new completion queue shall be.
pub(crate) struct CqRequest<'a> {
    /// Number of entries, at least one.
    pub(crate) entries: u32,
    /// Vector for completion events, less than the device has.
    pub(crate) comp_vector: u32,
    /// Flags that the core defines.
    pub(crate) flags: u32,
    /// Who is to be told of completions.
    pub(crate) events: &'a Arc<CqEvents>,
    device: *mut ffi::ib_device,
    attrs: *mut ffi::uverbs_attr_bundle,
    lifetime: PhantomData<&'a ()>,
}

impl CqRequest<'_> {
    /// Pins the memory that the process provides for the ring of `size` bytes, if it does.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is too small.
    /// - Those of pinning memory.
    pub(crate) fn buffer(&self, size: usize) -> Result<Option<Umem>> {
        // CAST: An access flag.
        let access = ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;

        // SAFETY: Both are valid while the verb runs, for which this value is made.
        unsafe {
            let raw = ffi::ib_umem_get_cq_buf(self.device, self.attrs, size, access);
            Umem::from_raw(self.device, raw)
        }
    }
}

/// A completion queue as its provider has made it.
pub(crate) struct NewCq<T> {
    /// The provider's data.
    pub(crate) data: T,
    /// Number of entries.
    pub(crate) entries: u32,
    /// What to tell of it.
    pub(crate) details: Details<QUEUE_DETAILS>,
}

impl<T: Provider> Ops<T> {
    pub(super) extern "C" fn create_user_cq(
        cq: *mut ffi::ib_cq,
        attr: *const ffi::ib_cq_init_attr,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            let events = CqEvents::new(cq)?;

            // SAFETY: See the documentation of `ops`. The core has allocated the object for this
            // call, of the size that the table gives.
            unsafe {
                let device = (*cq).device;
                let udata = Udata::from_raw(ffi::efa_attrs_to_udata(attrs));
                let request = CqRequest {
                    entries: (*attr).cqe,
                    comp_vector: (*attr).comp_vector,
                    flags: (*attr).flags,
                    events: &events,
                    device,
                    attrs,
                    lifetime: PhantomData,
                };
                let new = provider::<T>(device)
                    .create_cq(&Context::of(&udata)?, &request, &udata)
                    .inspect_err(|_| events.forget())?;
                (*cq).cqe = new.entries.try_into().unwrap_or(c_int::MAX);
                Described::describe(cq, new.details);
                Cq::<T>::init(
                    cq.cast(),
                    CqData {
                        data: new.data,
                        events,
                    },
                );
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn destroy_cq(cq: *mut ffi::ib_cq, _udata: *mut ffi::ib_udata) -> c_int {
        // SAFETY: See the documentation of `ops`. The object was created by `create_user_cq`, and
        // the core frees it after this call.
        unsafe {
            let CqData { data, events } = Cq::<T>::take(cq.cast());
            provider::<T>((*cq).device).destroy_cq(data);
            // From here on no interrupt handler uses the queue.
            events.forget();
        }
        0
    }
}
