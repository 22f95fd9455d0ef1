// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interrupt handlers with names created at run time, and CPU affinity hints.
//!
//! [`kernel::irq::Registration`] needs static names, has no affinity, and must not be leaked. To be
//! replaced by it once it supports this.

use core::marker::PhantomPinned;

use kernel::{
    bindings,
    error::to_result,
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    fmt,
    irq::{
        IrqRequest,
        ThreadedIrqReturn, //
    },
    pci::IrqVectorRegistration,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

use super::attach::{
    Attached,
    Binding, //
};
use crate::ffi;

/// The vectors allocated to a PCI function; freed with the last handler.
pub(crate) type Vectors<'bound> = Arc<IrqVectorRegistration<'bound>>;

/// A handler of interrupts.
#[vtable]
pub(crate) trait Handler: Send + Sync {
    /// Handles one interrupt, in interrupt context. A handler with more work wakes its thread.
    fn handle(&self) -> ThreadedIrqReturn;

    /// Handles the remaining work, in the thread of the interrupt.
    fn handle_threaded(&self) {}
}

/// A handler attached to a vector. Drop detaches it, and waits until no call is running.
pub(crate) struct Registration<'bound> {
    irq: c_uint,
    line: Attached<'bound>,
    /// What was pending at the last [check](Self::check), plus one, or 0.
    pending: Atomic<u32>,
}

impl Registration<'_> {
    /// Disables the interrupt, and waits until neither the handler nor its thread runs.
    pub(crate) fn disable(&self) {
        // If the line was released with the binding, its number may be that of another one.
        if self.line.is_attached() {
            // SAFETY: The interrupt is requested.
            unsafe { bindings::disable_irq(self.irq) }
        }
    }

    /// Calls `handle`, while the handler does not run, if `pending` was already pending at the last
    /// call. Its interrupt was lost then. Returns whether this is so.
    pub(crate) fn check(&self, pending: Option<u32>, handle: impl FnOnce()) -> bool {
        let pending = pending.map_or(0, |number| number.wrapping_add(1));
        let is_lost = self.pending.xchg(pending, Relaxed) == pending && pending != 0;
        if is_lost && self.line.is_attached() {
            self.disable();
            handle();
            // SAFETY: The interrupt was disabled once more above.
            unsafe { bindings::enable_irq(self.irq) }
        }
        is_lost
    }
}

/// Data of an interrupt that the interrupt core points to.
///
/// # Invariants
///
/// `irq` is the number of one of `_vectors`. The interrupt core uses this value as the cookie of
/// that interrupt, and its `name`, until the value is dropped.
#[pin_data(PinnedDrop)]
struct Line<'bound, H: Handler> {
    irq: c_uint,
    name: CString,
    handler: H,
    // Freed after the handler is detached.
    _vectors: Vectors<'bound>,
    /// The interrupt core has a pointer to this.
    #[pin]
    _pin: PhantomPinned,
}

impl<'bound> Registration<'bound> {
    /// Calls `handler` for each interrupt of vector `index`.
    ///
    /// `name` is shown in `/proc/interrupts`. `cpu` is the index of an online CPU, and a hint where
    /// to handle the interrupt.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such vector.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of `request_threaded_irq`.
    pub(crate) fn new<H: Handler + 'bound>(
        binding: Binding<'bound>,
        vectors: &Vectors<'bound>,
        index: u8,
        name: fmt::Arguments<'_>,
        cpu: u32,
        handler: H,
    ) -> Result<Self> {
        let irq = IrqRequest::from(vectors.index(index.into())?).irq();
        let name = CString::try_from_fmt(name)?;

        // INVARIANT: The number was just read from the vectors.
        let line = try_pin_init!(&this in Line {
            irq,
            name,
            handler,
            _vectors: vectors.clone(),
            _pin: PhantomPinned,
            _: {
                let cookie = this.as_ptr().cast();
                let thread: Callback = thread::<H>;
                let thread = H::HAS_HANDLE_THREADED.then_some(thread);
                // SAFETY: `irq` is the number of an allocated vector. The name and the handler are
                // initialized. The cookie is this value, as both functions expect. It is pinned,
                // and valid until its drop has freed the interrupt, which waits for both functions.
                unsafe { request(*irq, callback::<H>, thread, name, cookie, cpu) }?;
            },
        }? Error);
        Ok(Self {
            irq,
            line: Attached::new(binding, line)?,
            pending: Atomic::new(0),
        })
    }
}

/// Callback of the interrupt core in interrupt context.
///
/// # Safety
///
/// `cookie` must be a [`Line`] of this handler that is initialized, and alive during the call.
unsafe extern "C" fn callback<H: Handler>(
    _irq: c_int,
    cookie: *mut c_void,
) -> bindings::irqreturn_t {
    // SAFETY: The caller guarantees that this is a `Line`, which is alive until this returns.
    let line = unsafe { &*cookie.cast::<Line<'_, H>>() };

    bindings::irqreturn_t(line.handler.handle() as c_uint)
}

/// Callback of the interrupt core in the interrupt's thread.
///
/// # Safety
///
/// `cookie` must be a [`Line`] of this handler that is initialized, and alive during the call.
unsafe extern "C" fn thread<H: Handler>(_irq: c_int, cookie: *mut c_void) -> bindings::irqreturn_t {
    // SAFETY: The caller guarantees that this is a `Line`, which is alive until this returns.
    let line = unsafe { &*cookie.cast::<Line<'_, H>>() };

    line.handler.handle_threaded();
    bindings::irqreturn::IRQ_HANDLED
}

/// A callback of the interrupt core.
type Callback = unsafe extern "C" fn(c_int, *mut c_void) -> bindings::irqreturn_t;

/// Requests an interrupt, with an affinity hint for the online CPU with index `cpu`.
///
/// # Safety
///
/// `irq` must be the number of an allocated vector. `name`, and `cookie` for `callback` and
/// `thread`, must be valid until the interrupt is freed.
// One copy for all types of handlers.
#[inline(never)]
unsafe fn request(
    irq: c_uint,
    callback: Callback,
    thread: Option<Callback>,
    name: &CStr,
    cookie: *mut c_void,
    cpu: u32,
) -> Result {
    let (handler, name) = (Some(callback), name.as_char_ptr());
    // SAFETY: The caller guarantees the requirements of the interrupt core.
    to_result(unsafe { bindings::request_threaded_irq(irq, handler, thread, 0, name, cookie) })?;

    // SAFETY: There is no precondition: without such a CPU this is null.
    let mask = unsafe { ffi::efa_cpumask_of_nth_online(cpu) };
    // SAFETY: The interrupt was just requested. CPU masks are never freed. Null is no hint.
    unsafe { bindings::__irq_apply_affinity_hint(irq, mask, true) };
    Ok(())
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for Line<'_, H> {
    fn drop(self: Pin<&mut Self>) {
        let cookie = core::ptr::from_ref(&*self).cast_mut().cast();
        // SAFETY: By the type invariant the interrupt is requested. Null removes the hint, as
        // required before the interrupt is freed.
        unsafe { bindings::__irq_apply_affinity_hint(self.irq, core::ptr::null(), true) };
        // SAFETY: By the type invariant the interrupt has this cookie. This waits for running
        // handlers, so that none uses the value afterwards.
        unsafe { bindings::free_irq(self.irq, cookie) };
    }
}
