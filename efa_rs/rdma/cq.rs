// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use core::marker::PhantomData;

use kernel::{
    ffi::c_int,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

use super::{
    context::Context,
    device::Device,
    kernel_client::KernelClient,
    udata::Udata,
    umem::Umem,
    work::WorkCompletions, //
};
use crate::{
    ffi, //
};

/// Who is told of the completions of a queue. May outlive the queue, and then nobody is.
#[pin_data]
pub(crate) struct CqEvents {
    #[pin]
    cq: SpinLockIrq<Target>,
}

/// The queue, or null once it is gone.
struct Target(*mut ffi::ib_cq);

// SAFETY: The lock around it keeps the queue alive while it is used.
unsafe impl Send for Target {}

impl CqEvents {
    /// Makes what tells of the completions of a queue.
    ///
    /// # Safety
    ///
    /// `cq` must be valid until [`Self::forget`] is called.
    pub(super) unsafe fn new(cq: *mut ffi::ib_cq) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                cq <- new_spinlock_irq!(Target(cq), "rdma_cq_events"),
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
    pub(super) fn forget(&self) {
        self.cq.lock().0 = core::ptr::null_mut();
    }
}

/// What a new completion queue shall be.
pub(crate) struct CqInitAttr<'c, 'a> {
    /// Number of entries, at least one.
    pub(crate) cqe: u32,
    /// Vector for completion events, less than the device has.
    pub(crate) comp_vector: u32,
    /// Flags that the core defines.
    pub(crate) flags: u32,
    /// Who is to be told of completions.
    pub(crate) events: &'c Arc<CqEvents>,
    device: *mut ffi::ib_device,
    attrs: *mut ffi::uverbs_attr_bundle,
    registration: PhantomData<&'a ()>,
}

impl<'c, 'a> CqInitAttr<'c, 'a> {
    /// Takes what the core passes.
    ///
    /// # Safety
    ///
    /// `device` must be of a registration whose data is valid for `'a`, and `attrs` those of a call that
    /// lasts for `'c`.
    pub(super) unsafe fn new(
        device: *mut ffi::ib_device,
        attr: &ffi::ib_cq_init_attr,
        attrs: *mut ffi::uverbs_attr_bundle,
        events: &'c Arc<CqEvents>,
    ) -> Self {
        Self {
            cqe: attr.cqe,
            comp_vector: attr.comp_vector,
            flags: attr.flags,
            events,
            device,
            attrs,
            registration: PhantomData,
        }
    }

    /// Pins the memory that the process provides for the ring of `size` bytes, if it does.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is too small.
    /// - Those of pinning memory.
    pub(crate) fn buffer(&self, size: usize) -> Result<Option<Umem<'a>>> {
        // CAST: An access flag.
        let access = ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;

        // SAFETY: By the requirement of `new`, both are valid now, and the registration for `'a`.
        unsafe {
            let raw = ffi::ib_umem_get_cq_buf(self.device, self.attrs, size, access);
            Umem::from_raw(self.device, raw)
        }
    }
}

/// What a new completion queue of a client in the kernel shall be.
pub(crate) struct KernelCqInitAttr<'c> {
    /// Number of entries, at least one.
    pub(crate) cqe: u32,
    /// Vector for completion events, less than the device has.
    pub(crate) comp_vector: u32,
    /// Flags that the core defines.
    pub(crate) flags: u32,
    /// Who is to be told of completions, if the client asks for it.
    pub(crate) events: &'c Arc<CqEvents>,
    /// Whose it is.
    pub(crate) client: KernelClient,
}

/// A completion queue of a device with data `D`, created in a context with data `U`.
#[vtable]
pub(crate) trait CompletionQueue<'a, D, U>: Sized + Send + Sync {
    /// What `rdma resource show` tells of a queue, by [`Self::DETAILS`].
    type Details: AsRef<[u64]> + Copy + Default + Send + Sync;

    /// Names of the details.
    const DETAILS: &'static [&'static CStr] = &[];

    /// Creates a completion queue for a process.
    fn create_user(
        _device: &Device<D>,
        _context: &Context<'_, 'a, U>,
        _attr: &CqInitAttr<'_, 'a>,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Creates a completion queue for a client in the kernel.
    fn create_kernel(
        _device: &Device<D>,
        _attr: &KernelCqInitAttr<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Takes completions. Called in any context.
    fn poll(&self, _device: &Device<D>, _completions: &mut WorkCompletions<'_>) {}

    /// Has the client told of the next completion. Called in any context.
    fn request_notify(&self, _device: &Device<D>, _solicited_only: bool) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Returns whether there are completions to take. Called in any context.
    fn has_completions(&self, _device: &Device<D>) -> bool {
        false
    }

    /// Returns the number of entries.
    fn cqe(&self) -> u32 {
        0
    }

    /// Returns the details.
    fn details(&self) -> Self::Details {
        Self::Details::default()
    }

    /// Destroys the queue.
    fn destroy(&self, _device: &Device<D>) {}
}
