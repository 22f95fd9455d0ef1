// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Health reporters of devlink, which show a device's failures and let operators recover it.
//!
//! The kernel crate has no abstraction of devlink that could replace this.
//!
//! C header: [`include/net/devlink.h`](srctree/include/net/devlink.h)

use core::mem::replace;

use kernel::{
    bindings::netlink_ext_ack,
    device::{
        Bound,
        Device, //
    },
    error::{
        from_err_ptr,
        from_result, //
    },
    ffi::{
        c_int,
        c_void, //
    },
    fmt::{
        self,
        Display, //
    },
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::Delta, //
};

use super::{
    attach::{
        Attached,
        Binding, //
    },
    completion::Completion,
    device::as_raw,
    time::to_jiffies,
    work::Waker, //
};
use crate::ffi;

/// Limit on the wait of an operator for a recovery.
const TIMEOUT: Delta = Delta::from_millis(10_000);

/// A value of a diagnosis or dump.
pub(crate) enum Value {
    Text(&'static CStr),
    Number(u64),
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// A device whose health is reported. devlink calls these functions with its lock held.
pub(crate) trait Health: Send + Sync + 'static {
    /// Name of the reporter.
    const NAME: &'static CStr;

    /// Number of values that are the diagnosis.
    const DIAGNOSIS: usize;

    /// Returns names and values of a dump, first those of the diagnosis.
    fn values(&self) -> impl IntoIterator<Item = (&'static CStr, Value)>;
}

/// Objects of devlink.
#[derive(Clone, Copy)]
struct Raw {
    devlink: *mut ffi::devlink,
    reporter: *mut ffi::devlink_health_reporter,
}

// SAFETY: Both have locks of their own, so that any task may use them.
unsafe impl Send for Raw {}

/// The request of an operator to recover the device.
enum Request {
    None,
    Made,
    Begun,
    Answered(Result),
}

/// A devlink instance with one reporter.
///
/// # Invariants
///
/// `raw` has a registered instance and its reporter, or is `None`. The reporter's private pointer is
/// this value.
#[pin_data]
struct Instance<T: Health> {
    /// Held while the reporter is used, which takes devlink's lock.
    #[pin]
    raw: Mutex<Option<Raw>>,
    /// Whether the reporter is in the state `healthy`.
    is_healthy: Atomic<bool>,
    /// The request, and whether others are refused.
    #[pin]
    request: Mutex<(Request, bool)>,
    /// Signalled when the request is answered.
    #[pin]
    answered: Completion,
    waker: Waker,
    target: Arc<T>,
}

impl<T: Health> Instance<T> {
    const DEVLINK: &'static ffi::devlink_ops = {
        // SAFETY: In a table of functions, null stands for an absent function.
        &unsafe { core::mem::zeroed() }
    };

    // Not `expect`: only the kernel's clippy has this rule.
    #[allow(
        clippy::disallowed_methods,
        reason = "a constant cannot call `as_char_ptr`, which is a method of a trait"
    )]
    const REPORTER: &'static ffi::devlink_health_reporter_ops = &ffi::devlink_health_reporter_ops {
        // The core does not change the name.
        name: T::NAME.as_ptr().cast_mut().cast(),
        recover: Some(Self::recover),
        dump: Some(Self::dump),
        diagnose: Some(Self::diagnose),
        // SAFETY: Null stands for an absent function, and 0 for no period.
        ..unsafe { core::mem::zeroed() }
    };

    /// Registers the instance of `dev`.
    fn register(&self, dev: &Device<Bound>) -> Result {
        let mut raw = self.raw.lock();
        let net = &raw mut ffi::init_net;
        // SAFETY: The device is bound, so that it has a driver. The table is constant.
        let devlink = unsafe { ffi::devlink_alloc_ns(Self::DEVLINK, 0, net, as_raw(dev)) };
        if devlink.is_null() {
            return Err(ENOMEM);
        }
        let this = core::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: The instance is not registered yet. The table is constant. The pointer is valid
        // until `end` has destroyed the reporter, before which this value is not dropped.
        let reporter =
            unsafe { ffi::devlink_health_reporter_create(devlink, Self::REPORTER, this) };
        let reporter = from_err_ptr(reporter).inspect_err(|_| {
            // SAFETY: The instance is not registered, and has nothing.
            unsafe { ffi::devlink_free(devlink) }
        })?;
        // SAFETY: The instance is set up, and not registered.
        unsafe { ffi::devlink_register(devlink) };
        // INVARIANT: Both were just created.
        *raw = Some(Raw { devlink, reporter });
        Ok(())
    }

    /// Unregisters the instance, and waits for calls of the target.
    fn end(&self) {
        let mut raw = self.raw.lock();
        let Some(Raw { devlink, reporter }) = raw.take() else {
            return;
        };
        self.refuse_requests();
        // SAFETY: By the type invariant, the instance is registered.
        unsafe { ffi::devlink_unregister(devlink) };
        // SAFETY: The reporter is that of the instance, of which operators have no more use.
        unsafe { ffi::devlink_health_reporter_destroy(reporter) };
        // SAFETY: The instance is not registered, and has nothing.
        unsafe { ffi::devlink_free(devlink) };
    }

    /// Refuses requests, also that of an operator who waits.
    fn refuse_requests(&self) {
        let mut request = self.request.lock();
        request.1 = true;
        if let Request::Made | Request::Begun = request.0 {
            request.0 = Request::Answered(Err(EBUSY));
            self.answered.complete();
        }
    }

    /// Wakes the driver for the request of an operator, and waits for the answer.
    fn request(&self) -> Result {
        let mut request = self.request.lock();
        if request.1 {
            return Err(EBUSY);
        }
        request.0 = Request::Made;
        self.answered.reinit();
        drop(request);
        self.waker.wake();
        self.answered.wait_timeout(to_jiffies(TIMEOUT));
        match replace(&mut self.request.lock().0, Request::None) {
            Request::Answered(result) => result.inspect(|()| self.is_healthy.store(true, Relaxed)),
            _ => Err(ETIMEDOUT),
        }
    }

    /// Callback of devlink, in `devlink_health_report` with a context, and else for an operator.
    ///
    /// # Safety
    ///
    /// `reporter` must be that of an [`Instance`].
    unsafe extern "C" fn recover(
        reporter: *mut ffi::devlink_health_reporter,
        context: *mut c_void,
        _extack: *mut netlink_ext_ack,
    ) -> c_int {
        if !context.is_null() {
            return EINPROGRESS.to_errno();
        }
        // SAFETY: By the requirement of this function.
        let this = unsafe { Self::of(reporter) };
        from_result(|| this.request().map(|()| 0))
    }

    /// Callback of devlink.
    ///
    /// # Safety
    ///
    /// `reporter` must be that of an [`Instance`], and `message` be valid during the call.
    unsafe extern "C" fn dump(
        reporter: *mut ffi::devlink_health_reporter,
        message: *mut ffi::devlink_fmsg,
        _context: *mut c_void,
        _extack: *mut netlink_ext_ack,
    ) -> c_int {
        // SAFETY: By the requirement of this function.
        let this = unsafe { Self::of(reporter) };
        // SAFETY: By the requirement of this function.
        unsafe { put(message, this.target.values()) }
    }

    /// Callback of devlink.
    ///
    /// # Safety
    ///
    /// As for [`Self::dump`].
    unsafe extern "C" fn diagnose(
        reporter: *mut ffi::devlink_health_reporter,
        message: *mut ffi::devlink_fmsg,
        _extack: *mut netlink_ext_ack,
    ) -> c_int {
        // SAFETY: By the requirement of this function.
        let this = unsafe { Self::of(reporter) };
        // SAFETY: By the requirement of this function.
        unsafe { put(message, this.target.values().into_iter().take(T::DIAGNOSIS)) }
    }

    /// Returns the instance of a reporter.
    ///
    /// # Safety
    ///
    /// `reporter` must be that of an instance, which devlink calls.
    unsafe fn of<'a>(reporter: *mut ffi::devlink_health_reporter) -> &'a Self {
        // SAFETY: The caller guarantees that the reporter is valid.
        let this = unsafe { ffi::devlink_health_reporter_priv(reporter) };
        // SAFETY: By the type invariant this is an instance, which is valid during calls.
        unsafe { &*this.cast() }
    }
}

/// Adds values to a message, which notes a failure itself.
///
/// # Safety
///
/// `message` must be valid during the call.
unsafe fn put(
    message: *mut ffi::devlink_fmsg,
    values: impl IntoIterator<Item = (&'static CStr, Value)>,
) -> c_int {
    for (name, value) in values {
        let name = name.as_char_ptr();
        match value {
            Value::Text(text) => {
                let text = text.as_char_ptr();
                // SAFETY: The message is valid, and the texts end with zero.
                unsafe { ffi::devlink_fmsg_string_pair_put(message, name, text) }
            }
            Value::Number(number) => {
                // SAFETY: The message is valid, and the name ends with zero.
                unsafe { ffi::devlink_fmsg_u64_pair_put(message, name, number) }
            }
        }
    }
    0
}

/// Unregisters the instance when dropped.
struct End<T: Health>(Arc<Instance<T>>);

impl<T: Health> Drop for End<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The health reporter of a device; unregistered when dropped, or with the binding.
pub(crate) struct Reporter<'bound, T: Health> {
    instance: Arc<Instance<T>>,
    _end: Attached<'bound>,
}

impl<'bound, T: Health> Reporter<'bound, T> {
    /// Registers a devlink instance with a reporter of `target`, which is healthy. For each request
    /// of an operator, `waker` is woken.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(binding: Binding<'bound>, target: Arc<T>, waker: &Waker) -> Result<Self> {
        let instance = Arc::pin_init(
            pin_init!(Instance {
                raw <- new_mutex!(None),
                is_healthy: Atomic::new(true),
                request <- new_mutex!((Request::None, false)),
                answered <- Completion::new(),
                waker: waker.clone(),
                target,
            }),
            GFP_KERNEL,
        )?;
        let end = Attached::new(binding, Ok(End(instance.clone())))?;
        instance.register(binding.dev())?;
        Ok(Self {
            instance,
            _end: end,
        })
    }

    /// Unregisters the instance, and waits for the end of calls to the target. Operators who wait for
    /// an answer get none.
    pub(crate) fn end(&self) {
        self.instance.end();
    }

    /// Begins the request of an operator, which [`Self::answer`] ends. Returns whether there is one.
    pub(crate) fn begin_request(&self) -> bool {
        let mut request = self.instance.request.lock();
        let is_made = matches!(request.0, Request::Made);
        if is_made {
            request.0 = Request::Begun;
        }
        is_made
    }

    /// Answers the request that was begun, if any. Without one, a success counts as a recovery, unless
    /// the device was healthy.
    pub(crate) fn answer(&self, result: Result) {
        let mut request = self.instance.request.lock();
        if let Request::Begun = request.0 {
            request.0 = Request::Answered(result);
            self.instance.answered.complete();
        }
        // devlink counts it when it has this answer.
        let is_awaited = matches!(request.0, Request::Answered(Ok(())));
        drop(request);
        if is_awaited || result.is_err() || self.instance.is_healthy.xchg(true, Relaxed) {
            return;
        }
        if let Some(raw) = *self.instance.raw.lock() {
            // SAFETY: By the type invariant, the reporter is valid.
            unsafe { ffi::devlink_health_reporter_recovery_done(raw.reporter) };
            let state = ffi::devlink_health_reporter_state_DEVLINK_HEALTH_REPORTER_STATE_HEALTHY;
            // SAFETY: By the type invariant, the reporter is that of a registered instance.
            unsafe { ffi::devlink_health_reporter_state_update(raw.reporter, state) };
        }
    }

    /// Reports an error. Returns whether the device is to be recovered, as operators have set. Refuses
    /// their requests meanwhile: they would wait for the caller with devlink's lock held.
    pub(crate) fn report(&self, error: &'static CStr) -> bool {
        let raw = self.instance.raw.lock();
        let Some(Raw { devlink, reporter }) = *raw else {
            return false;
        };
        self.instance.refuse_requests();
        // devlink may be about to store the result of the last request.
        // SAFETY: By the type invariant, the instance is registered.
        unsafe { ffi::devl_lock(devlink) };
        // SAFETY: The lock was taken above.
        unsafe { ffi::devl_unlock(devlink) };
        self.instance.is_healthy.store(false, Relaxed);
        let context = core::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: By the type invariant, the reporter is that of a registered instance.
        let result = unsafe { ffi::devlink_health_report(reporter, error.as_char_ptr(), context) };
        self.instance.request.lock().1 = false;
        result == EINPROGRESS.to_errno()
    }

    /// Changes the reporter's state to `error`, without a report.
    pub(crate) fn fail(&self) {
        if let Some(raw) = *self.instance.raw.lock() {
            self.instance.is_healthy.store(false, Relaxed);
            let state = ffi::devlink_health_reporter_state_DEVLINK_HEALTH_REPORTER_STATE_ERROR;
            // SAFETY: By the type invariant, the reporter is that of a registered instance.
            unsafe { ffi::devlink_health_reporter_state_update(raw.reporter, state) };
        }
    }
}
