// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Deferred work for a device, in process context, which never runs after unbind.
//!
//! [`kernel::workqueue`] owns its items, which therefore can't borrow from a binding, and does not
//! wait for them. To be replaced by it once it supports both.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

#[cfg(kverbs)]
use core::ops::Deref;

use kernel::{
    bindings,
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::Delta,
    types::Opaque, //
};

use super::time::to_jiffies;
use crate::ffi;

/// The callback of the work and its target.
#[derive(Clone, Copy)]
struct Job {
    callback: unsafe fn(*const ()),
    target: *const (),
}

/// Leaves the choice of the CPU to the work queue.
const ANY_CPU: c_int = bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int;

/// Returns the queue for all work, which is one of the kernel's own.
fn queue() -> *mut bindings::workqueue_struct {
    // SAFETY: The kernel creates this queue at boot, and does not write the variable afterwards.
    unsafe { bindings::system_dfl_long_wq }
}

/// The work item and its job.
///
/// # Invariants
///
/// The work is enabled only between [`Running::new`] and [`Running::stop`]. While it is, `job` does
/// not change, and its callback may be called with its target.
#[pin_data]
struct Item {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    job: Opaque<Option<Job>>,
    ending: Atomic<bool>,
}

// SAFETY: A `struct delayed_work` may be used from any context; the rest is written before the work
// is enabled, or is atomic.
unsafe impl Send for Item {}

// SAFETY: A shared reference queues the work, which has its own lock, and reads fields that are
// atomic, or constant by then.
unsafe impl Sync for Item {}

/// A handle that requests the work. It may outlive the device's binding.
#[derive(Clone)]
pub(crate) struct Waker(Arc<Item>);

impl Waker {
    /// Creates a work item without a job.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new() -> Result<Self> {
        let item = Arc::pin_init(
            pin_init!(Item {
                work <- Opaque::ffi_init(|slot: *mut bindings::delayed_work| {
                    // SAFETY: `slot` points to memory for a `struct delayed_work`. It is that of an
                    // `Item`, as `run` expects, and enabled only while a `Running` holds that.
                    unsafe { ffi::efa_init_delayed_work(slot, Some(run)) };
                    // SAFETY: The work was just initialized. It is not queued yet.
                    unsafe { bindings::disable_delayed_work(slot) };
                }),
                job: Opaque::new(None),
                ending: Atomic::new(false),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(item))
    }

    /// Requests the work now, or once more if it is running. May be called from any context.
    pub(crate) fn wake(&self) {
        // SAFETY: The work is initialized. The core ignores it while it is disabled. The queue is
        // one of the kernel's own.
        unsafe { bindings::mod_delayed_work_on(ANY_CPU, queue(), self.0.work.get(), 0) };
    }

    /// Requests the work after `delay`, unless a request is pending already.
    pub(crate) fn wake_after(&self, delay: Delta) {
        let (work, delay) = (self.0.work.get(), to_jiffies(delay));
        // SAFETY: The work is initialized, and ignored while it is disabled. The queue is one of
        // the kernel's own, and any delay is allowed.
        unsafe { bindings::queue_delayed_work_on(ANY_CPU, queue(), work, delay) };
    }

    /// Returns whether the work is being stopped, or was.
    pub(crate) fn is_ending(&self) -> bool {
        self.0.ending.load(Relaxed)
    }
}

/// The enabled work of a target. Drop stops it.
pub(super) struct Running(Arc<Item>);

impl Running {
    /// Enables the work, which calls `callback` with `target`.
    ///
    /// # Safety
    ///
    /// `callback` must be callable with `target`, by any task, until the returned value was stopped
    /// or dropped. The work must not be running already.
    pub(super) unsafe fn new(
        waker: &Waker,
        callback: unsafe fn(*const ()),
        target: *const (),
    ) -> Self {
        let item = waker.0.clone();

        // SAFETY: The work is disabled, so that nothing reads the job.
        unsafe { *item.job.get() = Some(Job { callback, target }) };
        // SAFETY: The work is initialized, and was disabled once.
        unsafe { bindings::enable_delayed_work(item.work.get()) };
        Self(item)
    }

    /// Disables the work, and waits until it is not running.
    pub(super) fn stop(&self) {
        self.0.ending.store(true, Relaxed);
        // SAFETY: The work is initialized. Its task never unbinds the driver, or drops a `Deferred`.
        unsafe { bindings::disable_delayed_work_sync(self.0.work.get()) };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Disabling the work twice is harmless.
        self.stop();
    }
}

/// A target of deferred work.
#[cfg(kverbs)]
pub(crate) trait Work: Send + Sync + 'static {
    /// Does the work, in process context.
    fn run(&self);
}

/// A target with its enabled work. Drop stops the work, and waits until it is not running.
#[cfg(kverbs)]
pub(crate) struct Deferred<T: Work> {
    // Dropped before the target.
    _running: Running,
    waker: Waker,
    target: Arc<T>,
}

#[cfg(kverbs)]
impl<T: Work> Deferred<T> {
    /// Enables work for a target.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(target: &Arc<T>) -> Result<Self> {
        let waker = Waker::new()?;
        // SAFETY: The callback accepts this target, in any task, while the target exists. It exists
        // until the work was stopped, as both are owned by the result.
        let running = unsafe { Running::new(&waker, Self::run, (&raw const **target).cast()) };
        Ok(Self {
            _running: running,
            waker,
            target: target.clone(),
        })
    }

    /// Requests the work. May be called from any context.
    pub(crate) fn request(&self) {
        self.waker.wake();
    }

    /// # Safety
    ///
    /// `target` must be a valid `T`.
    unsafe fn run(target: *const ()) {
        // SAFETY: By the requirement of this function.
        unsafe { &*target.cast::<T>() }.run();
    }
}

#[cfg(kverbs)]
impl<T: Work> Deref for Deferred<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.target
    }
}

/// Callback of the work queue.
///
/// # Safety
///
/// `work` must be in the delayed work of an [`Item`] that a [`Running`] holds during the call.
#[allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the kernel's `container_of!` has two"
)]
unsafe extern "C" fn run(work: *mut bindings::work_struct) {
    // SAFETY: The caller guarantees that this is a part of a delayed work.
    let work = unsafe { kernel::container_of!(work, bindings::delayed_work, work) };
    // SAFETY: The caller guarantees that the delayed work is that of an `Item`.
    let item = unsafe { kernel::container_of!(Opaque::cast_from(work), Item, work) };
    // SAFETY: The caller guarantees that a `Running` holds the item during the call.
    let item = unsafe { &*item };

    // SAFETY: By the type invariant the job does not change while the work runs.
    if let Some(job) = unsafe { *item.job.get() } {
        // SAFETY: By the type invariant the callback may be called with this target.
        unsafe { (job.callback)(job.target) };
    }
}
