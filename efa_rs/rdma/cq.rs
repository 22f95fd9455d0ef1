// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use core::marker::PhantomData;

use kernel::{
    bindings,
    error::from_result,
    ffi::c_int,
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        SpinLockIrq, //
    }, //
};

use super::{
    details::Details,
    device::Device,
    mmap::{
        Context,
        Mapped, //
    },
    object::{
        core_object,
        ObjectOf, //
    },
    ops::Ops,
    provider::Provider,
    udata::Udata,
    umem::Umem, //
};
use crate::ffi;

#[cfg(kverbs)]
use super::completions::WorkCompletions;

/// Completion events of a queue. They may outlive the queue, and then have no effect.
#[pin_data]
pub(crate) struct CqEvents {
    #[pin]
    cq: SpinLockIrq<Target>,
    has_started: Atomic<bool>,
}

/// The queue, or null once its events were stopped.
struct Target(*mut ffi::ib_cq);

// SAFETY: The lock around it keeps the queue alive while it is used.
unsafe impl Send for Target {}

impl CqEvents {
    /// Makes the events of a queue, which have not started.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    ///
    /// # Safety
    ///
    /// `cq` must be valid until [`Self::forget`] is called.
    pub(super) unsafe fn new(cq: *mut ffi::ib_cq) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                cq <- new_spinlock_irq!(Target(cq), "rdma_cq_events"),
                has_started: Atomic::new(false),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets events have an effect.
    ///
    /// # Safety
    ///
    /// The queue must have been created, and its handler be callable.
    pub(super) unsafe fn start(&self) {
        // A reader of the flag sees the earlier writes of the core.
        self.has_started.store(true, Release);
    }

    /// Returns whether events have an effect. They have none before the queue was created. For a client in
    /// the kernel, they have none before the creation of a queue pair that uses the queue, as the core
    /// completes the queue after its creation.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started.load(Acquire)
    }

    /// Calls the completion handler, if the events [have started](Self::has_started). Called from
    /// interrupt handlers.
    pub(crate) fn notify(&self) {
        if !self.has_started() {
            return;
        }
        let cq = self.cq.lock();
        if cq.0.is_null() {
            return;
        }

        // SAFETY: The queue is valid while the lock is held, which `forget` takes.
        if let Some(handler) = unsafe { (*cq.0).comp_handler } {
            // SAFETY: The queue is valid while the lock is held, which `forget` takes.
            let context = unsafe { (*cq.0).cq_context };
            // SAFETY: The handler expects the queue, which is valid, and the queue's context.
            unsafe { handler(cq.0, context) };
        }
    }

    /// Clears the pointer to the queue, which is no longer used when this returns.
    pub(super) fn forget(&self) {
        self.cq.lock().0 = core::ptr::null_mut();
    }
}

/// Attributes of a new completion queue of a process.
///
/// # Invariants
///
/// `device` is of a registration whose data is valid for `'a`. `attrs` is valid for `'c`.
pub(crate) struct CqInitAttr<'c, 'a> {
    /// Number of entries, at least one.
    pub(crate) cqe: u32,
    /// Vector for completion events, below the number of vectors of the device.
    pub(crate) comp_vector: u32,
    /// Flags that the core defines.
    pub(crate) flags: u32,
    /// Reports completions to the core.
    pub(crate) events: &'c Arc<CqEvents>,
    device: *mut ffi::ib_device,
    attrs: *mut ffi::uverbs_attr_bundle,
    registration: PhantomData<&'a ()>,
}

impl<'a> CqInitAttr<'_, 'a> {
    /// Pins the memory for the ring of `size` bytes, if the process provides it.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is too small.
    /// - Those of pinning memory.
    pub(crate) fn buffer(&self, size: usize) -> Result<Option<Umem<'a>>> {
        // CAST: An access flag.
        let access = ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;

        // SAFETY: By the type invariant, device and attributes are valid.
        let raw = unsafe { ffi::ib_umem_get_cq_buf(self.device, self.attrs, size, access) };
        // SAFETY: The memory is owned, and of this device. By the type invariant, the registration is valid for `'a`.
        unsafe { Umem::from_raw(raw) }
    }
}

/// Attributes of a new completion queue of a client in the kernel.
#[cfg(kverbs)]
pub(crate) struct KernelCqInitAttr<'c> {
    /// Number of entries, at least one.
    pub(crate) cqe: u32,
    /// Vector for completion events, which the core does not check.
    pub(crate) comp_vector: u32,
    /// Flags that the core defines.
    pub(crate) flags: u32,
    /// Reports completions to the client, if it requests notification. Absent if the client only polls.
    pub(crate) events: Option<&'c Arc<CqEvents>>,
}

/// A completion queue of a device of the provider `P`.
#[vtable]
pub(crate) trait CompletionQueue<'a, P: Provider>: Sized + Send + Sync {
    /// Creates a completion queue for a process.
    fn create_user(
        _device: &Device<P::Data<'a>>,
        _context: &mut Context<'_, 'a, P>,
        _attr: &CqInitAttr<'_, 'a>,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Creates a completion queue for a client in the kernel.
    #[cfg(kverbs)]
    fn create_kernel(
        _device: &Device<P::Data<'a>>,
        _attr: &KernelCqInitAttr<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Returns completions. Called in any context.
    #[cfg(kverbs)]
    fn poll(&self, _device: &Device<P::Data<'a>>, _completions: &mut WorkCompletions<'_>) {}

    /// Requests an event for the next completion, solicited or not. Called in any context.
    #[cfg(kverbs)]
    fn request_notify(&self, _device: &Device<P::Data<'a>>) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Returns whether [`Self::poll`] would return a completion. Called in any context.
    #[cfg(kverbs)]
    fn has_completions(&self, _device: &Device<P::Data<'a>>) -> bool {
        false
    }

    /// Returns the number of entries.
    fn cqe(&self) -> u32 {
        0
    }

    /// Adds the values that `rdma resource show` prints.
    ///
    /// # Errors
    ///
    /// Those of [`Details::put`].
    fn details(&self, _details: &mut Details) -> Result {
        Ok(())
    }

    /// Destroys the queue.
    fn destroy(&self, _device: &Device<P::Data<'a>>) {}
}

/// The layer's own data of a completion queue.
pub(super) struct CqExtra {
    pub(super) events: Arc<CqEvents>,
    /// Memory of a queue of a process.
    pub(super) _mapped: Mapped,
}

core_object!(ib_cq, CompletionQueue, P::Cq<'a>, CqExtra);

/// Adds the callbacks of completion queues to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.size_ib_cq = ObjectOf::<P, ffi::ib_cq>::SIZE;
    if P::Cq::HAS_CREATE_USER {
        ops.create_user_cq = Some(Ops::<P>::create_user_cq);
        ops.destroy_cq = Some(Ops::<P>::destroy_cq);
        ops.fill_res_cq_entry = Some(Ops::<P>::fill_res_cq_entry);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Initializes a new completion queue.
    ///
    /// # Errors
    ///
    /// Those of `init`.
    ///
    /// # Safety
    ///
    /// By the contract of [`Ops`], `cq` must be new. `events` must be those of the queue. Its extra data
    /// must be set afterwards.
    pub(super) unsafe fn init_cq<'a>(
        cq: *mut ffi::ib_cq,
        init: impl PinInit<P::Cq<'a>, Error>,
        events: &CqEvents,
    ) -> Result {
        // SAFETY: The caller guarantees that the queue is new, of the size of `ObjectOf`.
        let queue = unsafe { ObjectOf::<P, _>::init(cq, init) }.inspect_err(|_| events.forget())?;
        // SAFETY: The queue is valid. The core reads this field only after the creation.
        unsafe { (*cq).cqe = queue.cqe().try_into().unwrap_or(c_int::MAX) };
        Ok(())
    }

    /// Creates a completion queue for a process.
    unsafe extern "C" fn create_user_cq(
        cq: *mut ffi::ib_cq,
        attr: *const ffi::ib_cq_init_attr,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the core has set the device of the new queue.
            let device = unsafe { Self::device_of(cq) };
            // SAFETY: By the contract, the attributes are valid during the call.
            let udata = unsafe { Udata::of(attrs) };
            // SAFETY: The attributes are of a verb of this device.
            let mut context = unsafe { Self::context(&udata) }?;
            // SAFETY: By the contract, the attributes are valid.
            let attr = unsafe { &*attr };
            // SAFETY: The queue exists until it is destroyed, or this fails. Both call `forget`.
            let events = unsafe { CqEvents::new(cq) }?;
            // INVARIANT: By the contract, both are valid during the call.
            let attr = CqInitAttr {
                cqe: attr.cqe,
                comp_vector: attr.comp_vector,
                flags: attr.flags,
                events: &events,
                device: device.as_raw(),
                attrs,
                registration: PhantomData,
            };
            let init = P::Cq::create_user(device, &mut context, &attr, &udata);
            // SAFETY: By the contract, the queue is new. The events are of this queue.
            unsafe { Self::init_cq(cq, init, &events) }?;
            // The handler refers to what the core frees if the creation fails.
            // SAFETY: The queue was just created, and the core has set the handler before.
            unsafe { events.start() };
            let extra = CqExtra {
                events,
                _mapped: context.into_mapped(),
            };
            // SAFETY: The queue has just been initialized.
            unsafe { ObjectOf::<P, _>::set_extra(cq, extra) };
            Ok(0)
        })
    }

    /// Destroys a completion queue.
    pub(super) unsafe extern "C" fn destroy_cq(
        cq: *mut ffi::ib_cq,
        _udata: *mut ffi::ib_udata,
    ) -> c_int {
        // SAFETY: By the contract, the queue was created, which has initialized its data.
        let (queue, device) = unsafe { Self::object(cq) };
        // SAFETY: By the contract, the queue was created, and its data is dropped only below.
        unsafe { ObjectOf::<P, _>::extra(cq) }.events.forget();
        queue.destroy(device);
        // SAFETY: By the contract, the queue is not used any more.
        unsafe { Self::destroy(cq) }
    }

    /// Writes the details of a completion queue into a message.
    pub(super) unsafe extern "C" fn fill_res_cq_entry(
        msg: *mut bindings::sk_buff,
        cq: *mut ffi::ib_cq,
    ) -> c_int {
        // SAFETY: By the contract, the queue was created. It is not destroyed during the call, as the
        // core removes it from its list first.
        let (queue, _) = unsafe { Self::object(cq) };
        // SAFETY: By the contract, the message is being built.
        unsafe { Details::fill(msg, |details| queue.details(details)) }
    }
}
