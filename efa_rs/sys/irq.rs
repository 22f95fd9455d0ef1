// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! MSI-X vectors and handlers with names that are made at run time.
//!
//! [`kernel::pci::Device::alloc_irq_vectors`] gives access to the first and the last vector only,
//! and [`kernel::irq::Registration`] takes static names only. To be replaced by both once they can
//! do this.

use kernel::{
    bindings,
    device::Bound,
    error::to_result,
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    fmt, pci,
    prelude::*,
    str::CString,
    sync::{
        aref::ARef,
        Arc, //
    },
};

use super::pci::as_raw;
use crate::ffi;

/// What a handler returns to the interrupt core.
const IRQ_HANDLED: bindings::irqreturn_t = bindings::irqreturn::IRQ_HANDLED;

/// The MSI-X vectors of a PCI function; freed when dropped.
///
/// # Invariants
///
/// `pdev` has `count` MSI-X vectors allocated.
pub(crate) struct Vectors {
    pdev: ARef<pci::Device>,
    count: u32,
}

impl Vectors {
    /// Allocates between one and `max` vectors, as many as the function has.
    ///
    /// # Errors
    ///
    /// Those of `pci_alloc_irq_vectors`.
    pub(crate) fn alloc(pdev: &pci::Device<Bound>, max: u32) -> Result<Arc<Self>> {
        // SAFETY: `as_raw` returns a valid `struct pci_dev`.
        let available = unsafe { bindings::pci_msix_vec_count(as_raw(pdev)) };
        let available = u32::try_from(available).map_err(|_| ENOSPC)?;

        // SAFETY: As above.
        let count = unsafe {
            bindings::pci_alloc_irq_vectors(
                as_raw(pdev),
                1,
                max.min(available),
                bindings::PCI_IRQ_MSIX,
            )
        };
        to_result(count)?;

        // INVARIANT: The allocation has just succeeded with a positive `count`.
        let vectors = Self {
            pdev: pdev.into(),
            // CAST: A positive `c_int`.
            count: count as u32,
        };
        Ok(Arc::new(vectors, GFP_KERNEL)?)
    }

    /// Returns how many vectors there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the interrupt number of vector `index`.
    fn irq(&self, index: u32) -> Result<c_uint> {
        // SAFETY: `as_raw` returns a valid `struct pci_dev`; the function checks `index`.
        let irq = unsafe { bindings::pci_irq_vector(as_raw(&self.pdev), index) };
        to_result(irq)?;
        // CAST: Not negative.
        Ok(irq as c_uint)
    }
}

impl Drop for Vectors {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the vectors are allocated. Each registered handler holds a
        // reference to `self`, so that none is left.
        unsafe { bindings::pci_free_irq_vectors(as_raw(&self.pdev)) }
    }
}

/// What is called in interrupt context.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Handles one interrupt.
    fn handle(&self);
}

/// A handler attached to a vector; detached when dropped, with no call running any more.
pub(crate) struct Registration<H: Handler> {
    shared: Arc<Shared<H>>,
    // Freed after the handler is detached.
    _vectors: Arc<Vectors>,
}

/// What the interrupt core points to.
struct Shared<H> {
    irq: c_uint,
    name: CString,
    handler: H,
}

impl<H: Handler> Registration<H> {
    /// Calls `handler` for each interrupt of vector `index`.
    ///
    /// `name` is shown in `/proc/interrupts`. `cpu` counts the CPUs that are online, and is a hint
    /// to where the interrupt is best handled.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such vector.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of `request_threaded_irq`.
    pub(crate) fn new(
        vectors: &Arc<Vectors>,
        index: u32,
        name: fmt::Arguments<'_>,
        cpu: u32,
        handler: H,
    ) -> Result<Self> {
        let shared = Arc::new(
            Shared {
                irq: vectors.irq(index)?,
                name: CString::try_from_fmt(name)?,
                handler,
            },
            GFP_KERNEL,
        )?;

        let cookie = core::ptr::from_ref(&*shared).cast_mut().cast();
        // SAFETY: `irq` is the number of an allocated vector. Name and cookie are in `shared`,
        // which does not move and lives until `drop` has called `free_irq`.
        unsafe { request(shared.irq, Self::callback, &shared.name, cookie, cpu)? };

        Ok(Self {
            shared,
            _vectors: vectors.clone(),
        })
    }

    /// Has the handler not called any more, and waits until it does not run.
    pub(crate) fn disable(&self) {
        // SAFETY: `new` has requested this interrupt.
        unsafe { bindings::disable_irq(self.shared.irq) }
    }

    /// Called by the interrupt core.
    extern "C" fn callback(_irq: c_int, cookie: *mut c_void) -> bindings::irqreturn_t {
        // SAFETY: The cookie is the `Shared<H>` of `new`, alive until `free_irq` has returned.
        let shared = unsafe { &*cookie.cast::<Shared<H>>() };

        shared.handler.handle();
        IRQ_HANDLED
    }
}

/// Requests an interrupt, with a hint to the CPU that is number `cpu` of those that are online.
///
/// # Safety
///
/// `irq` must be the number of an allocated vector, and `name` and what `callback` makes of `cookie`
/// valid until the interrupt is freed.
// One copy for all types of handlers.
#[inline(never)]
unsafe fn request(
    irq: c_uint,
    callback: unsafe extern "C" fn(c_int, *mut c_void) -> bindings::irqreturn_t,
    name: &CStr,
    cookie: *mut c_void,
    cpu: u32,
) -> Result {
    let (handler, name) = (Some(callback), name.as_char_ptr());
    // SAFETY: The caller's.
    to_result(unsafe { bindings::request_threaded_irq(irq, handler, None, 0, name, cookie) })?;

    // SAFETY: The number of an online CPU, or one past the last one, which is checked.
    unsafe {
        let cpu = ffi::efa_nth_online_cpu(cpu);
        if cpu < bindings::nr_cpu_ids {
            bindings::__irq_apply_affinity_hint(irq, ffi::efa_cpumask_of(cpu), true);
        }
    }
    Ok(())
}

impl<H: Handler> Drop for Registration<H> {
    fn drop(&mut self) {
        // SAFETY: `new` has requested this interrupt with this cookie. `free_irq` waits for
        // handlers that are running. The hint must be gone by then.
        unsafe {
            bindings::__irq_apply_affinity_hint(self.shared.irq, core::ptr::null(), true);
            bindings::free_irq(
                self.shared.irq,
                core::ptr::from_ref(&*self.shared).cast_mut().cast(),
            );
        }
    }
}
