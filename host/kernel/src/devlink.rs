// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! devlink instances with health reporters, as in `net/devlink/health.c`, and what operators do with them.
//!
//! There is one instance at most. Drivers find the functions by their names in C.

#![allow(
    clippy::missing_safety_doc,
    non_camel_case_types,
    non_upper_case_globals,
    reason = "the names and contracts are those of the header of C"
)]

use core::{
    cell::{Cell, RefCell},
    ffi::CStr,
    ptr::null_mut,
};
use std::rc::Rc;

use sim::{Class, RawLock};

use crate::{
    bindings::{self, device, net},
    error::{code::*, to_result, Error, Result},
    ffi::{c_char, c_int, c_void},
};

/// Duration of a millisecond, in which devlink has its periods.
const MILLISECOND: u64 = 1_000_000;

/// Duration of a notification in nanoseconds.
pub const NOTIFICATION: u64 = 1_000;

/// The callbacks and defaults of a reporter: `struct devlink_health_reporter_ops`.
#[repr(C)]
pub struct Ops {
    name: *const c_char,
    recover: Option<unsafe extern "C" fn(*mut Reporter, *mut c_void, *mut c_void) -> c_int>,
    dump: Option<
        unsafe extern "C" fn(*mut Reporter, *mut Message, *mut c_void, *mut c_void) -> c_int,
    >,
    diagnose: Option<unsafe extern "C" fn(*mut Reporter, *mut Message, *mut c_void) -> c_int>,
    test: Option<unsafe extern "C" fn(*mut Reporter, *mut c_void) -> c_int>,
    grace_period: u64,
    burst_period: u64,
}

/// A message: `struct devlink_fmsg`.
#[derive(Clone, Default)]
pub struct Message {
    pairs: Vec<(String, String)>,
    has_failed: bool,
}

/// A reporter: `struct devlink_health_reporter`.
pub struct Reporter {
    devlink: Rc<Devlink>,
    ops: &'static Ops,
    private: *mut c_void,
    state: RefCell<Shown>,
    dump: RefCell<Option<Message>>,
    last_recovery: Cell<u64>,
}

/// What `devlink health show` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Whether the state is `healthy`.
    pub is_healthy: bool,
    /// Number of errors.
    pub errors: u64,
    /// Number of recoveries.
    pub recoveries: u64,
    /// Grace period in milliseconds.
    pub grace_period: u64,
    /// Whether devlink has the driver recover the device.
    pub auto_recover: bool,
    /// Whether a dump is kept.
    pub has_dump: bool,
}

/// An instance: `struct devlink`.
pub struct Devlink {
    lock: RawLock,
    device: *mut device,
    is_registered: Cell<bool>,
    reporter: Cell<*mut Reporter>,
}

thread_local! {
    static INSTANCE: RefCell<Option<Rc<Devlink>>> = const { RefCell::new(None) };
}

#[no_mangle]
static mut init_net: net = net {
    net_cookie: 1,
    references: Cell::new(1),
};

impl Devlink {
    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        self.lock.lock(true);
        let result = f();
        self.lock.unlock(true);
        result
    }
}

/// Warns, as `ASSERT_DEVLINK_REGISTERED` and its opposite do.
fn expect(devlink: &Devlink, is_registered: bool, what: &str) {
    if devlink.is_registered.get() != is_registered {
        crate::warn(format!("{what}: the devlink instance is not in this state"));
    }
}

/// Returns an instance that a driver has, which must not be freed.
fn of(devlink: *mut Devlink) -> Rc<Devlink> {
    let found = INSTANCE.with(|instance| instance.borrow().clone());
    let found = found.filter(|one| Rc::as_ptr(one) == devlink.cast_const());
    found.expect("a devlink instance that is not freed")
}

/// Returns a reporter that a driver has, which must not be destroyed.
fn reporter_of(reporter: *mut Reporter) -> &'static Reporter {
    let devlink = INSTANCE.with(|instance| instance.borrow().clone());
    let is_there = devlink.is_some_and(|one| one.reporter.get() == reporter);
    assert!(is_there, "a reporter that is not destroyed");
    // SAFETY: It is that of the instance. Its users end before it is destroyed.
    unsafe { &*reporter }
}

#[no_mangle]
unsafe extern "C" fn devlink_alloc_ns(
    ops: *const c_void,
    private: usize,
    _: *mut net,
    dev: *mut device,
) -> *mut Devlink {
    assert!(!ops.is_null() && private == 0);
    if !sim::may_allocate() {
        return null_mut();
    }
    let devlink = Rc::new(Devlink {
        lock: RawLock::of_class(Class::Name("devlink")),
        // SAFETY: The caller guarantees that the device is valid.
        device: unsafe { bindings::get_device(dev) },
        is_registered: Cell::new(false),
        reporter: Cell::new(null_mut()),
    });
    sim::count_allocated(size_of::<Devlink>());
    let raw = Rc::as_ptr(&devlink).cast_mut();
    let old = INSTANCE.with(|instance| instance.replace(Some(devlink)));
    assert!(old.is_none(), "a second devlink instance");
    raw
}

#[no_mangle]
unsafe extern "C" fn devlink_free(devlink: *mut Devlink) {
    let devlink = of(devlink);
    expect(&devlink, false, "devlink_free");
    if !devlink.reporter.get().is_null() {
        crate::warn("devlink_free: reporters are left".into());
    }
    // SAFETY: `devlink_alloc_ns` has taken a reference.
    unsafe { bindings::put_device(devlink.device) };
    sim::count_freed(size_of::<Devlink>());
    INSTANCE.with(|instance| instance.take());
}

#[no_mangle]
unsafe extern "C" fn devlink_register(devlink: *mut Devlink) {
    let devlink = of(devlink);
    devlink.locked(|| {
        expect(&devlink, false, "devlink_register");
        devlink.is_registered.set(true);
    });
}

#[no_mangle]
unsafe extern "C" fn devlink_unregister(devlink: *mut Devlink) {
    let devlink = of(devlink);
    devlink.locked(|| {
        expect(&devlink, true, "devlink_unregister");
        devlink.is_registered.set(false);
    });
}

#[no_mangle]
unsafe extern "C" fn devl_lock(devlink: *mut Devlink) {
    of(devlink).lock.lock(true);
}

#[no_mangle]
unsafe extern "C" fn devl_unlock(devlink: *mut Devlink) {
    of(devlink).lock.unlock(true);
}

#[no_mangle]
unsafe extern "C" fn devlink_health_reporter_create(
    devlink: *mut Devlink,
    ops: *const Ops,
    private: *mut c_void,
) -> *mut Reporter {
    let devlink = of(devlink);
    // SAFETY: The caller guarantees that the table is constant.
    let ops = unsafe { &*ops };
    devlink.locked(|| {
        if !devlink.reporter.get().is_null() {
            return EEXIST.to_ptr();
        }
        if ops.grace_period != 0 && ops.recover.is_none() {
            crate::warn("a reporter has a grace period, but can't recover".into());
            return EINVAL.to_ptr();
        }
        if !sim::may_allocate() {
            return ENOMEM.to_ptr();
        }
        let state = Shown {
            is_healthy: true,
            errors: 0,
            recoveries: 0,
            grace_period: ops.grace_period,
            auto_recover: ops.recover.is_some(),
            has_dump: false,
        };
        sim::count_allocated(size_of::<Reporter>());
        let reporter = Box::into_raw(Box::new(Reporter {
            devlink: devlink.clone(),
            ops,
            private,
            state: RefCell::new(state),
            dump: RefCell::default(),
            last_recovery: Cell::new(0),
        }));
        devlink.reporter.set(reporter);
        reporter
    })
}

#[no_mangle]
unsafe extern "C" fn devlink_health_reporter_destroy(reporter: *mut Reporter) {
    let devlink = reporter_of(reporter).devlink.clone();
    devlink.locked(|| {
        devlink.reporter.set(null_mut());
        sim::count_freed(size_of::<Reporter>());
        // SAFETY: `devlink_health_reporter_create` has made it. It has no users: they have the lock.
        drop(unsafe { Box::from_raw(reporter) });
    });
}

#[no_mangle]
unsafe extern "C" fn devlink_health_reporter_priv(reporter: *mut Reporter) -> *mut c_void {
    reporter_of(reporter).private
}

#[no_mangle]
unsafe extern "C" fn devlink_health_reporter_recovery_done(reporter: *mut Reporter) {
    reporter_of(reporter).count_recovery();
}

#[no_mangle]
unsafe extern "C" fn devlink_health_reporter_state_update(reporter: *mut Reporter, state: u32) {
    let reporter = reporter_of(reporter);
    let is_healthy = state == 0;
    if reporter.state.borrow().is_healthy != is_healthy {
        reporter.state.borrow_mut().is_healthy = is_healthy;
        reporter.notify();
    }
}

#[no_mangle]
unsafe extern "C" fn devlink_health_report(
    reporter: *mut Reporter,
    text: *const c_char,
    context: *mut c_void,
) -> c_int {
    let reporter = reporter_of(reporter);
    // SAFETY: The caller guarantees a text that ends with zero.
    let text = unsafe { CStr::from_ptr(text.cast()) };
    sim::log(format_args!("devlink: {}\n", text.to_string_lossy()));
    let was_healthy = {
        let mut state = reporter.state.borrow_mut();
        state.errors += 1;
        core::mem::replace(&mut state.is_healthy, false)
    };
    reporter.notify();
    let state = *reporter.state.borrow();
    let end = reporter.last_recovery.get() + state.grace_period * MILLISECOND;
    let is_early = reporter.last_recovery.get() != 0 && state.recoveries != 0 && sim::now() < end;
    if state.auto_recover && (!was_healthy || is_early) {
        return ECANCELED.to_errno();
    }
    let devlink = &reporter.devlink;
    let _ = devlink.locked(|| reporter.do_dump(context));
    if !reporter.state.borrow().auto_recover {
        return 0;
    }
    let result = devlink.locked(|| reporter.recover(context));
    result.map_or_else(Error::to_errno, |()| 0)
}

impl Reporter {
    fn notify(&self) {
        expect(&self.devlink, true, "devlink_recover_notify");
        // The message is allocated, which may take a while.
        sim::sleep(NOTIFICATION);
    }

    fn count_recovery(&self) {
        self.state.borrow_mut().recoveries += 1;
        self.last_recovery.set(sim::now());
    }

    fn pointer(&self) -> *mut Self {
        core::ptr::from_ref(self).cast_mut()
    }

    fn recover(&self, context: *mut c_void) -> Result {
        if self.state.borrow().is_healthy {
            return Ok(());
        }
        let recover = self.ops.recover.ok_or(EOPNOTSUPP)?;
        // SAFETY: The reporter is valid, and the lock is held.
        to_result(unsafe { recover(self.pointer(), context, null_mut()) })?;
        self.count_recovery();
        self.state.borrow_mut().is_healthy = true;
        self.notify();
        Ok(())
    }

    fn do_dump(&self, context: *mut c_void) -> Result {
        let dump = self.ops.dump.ok_or(EOPNOTSUPP)?;
        if self.dump.borrow().is_none() {
            let mut message = Message::default();
            // SAFETY: The reporter is valid, and the lock is held.
            to_result(unsafe { dump(self.pointer(), &raw mut message, context, null_mut()) })?;
            self.dump.replace(Some(message.finish()?));
        }
        Ok(())
    }
}

impl Message {
    fn put(&mut self, name: *const c_char, value: String) {
        // SAFETY: The caller guarantees a text that ends with zero.
        let name = unsafe { CStr::from_ptr(name.cast()) };
        self.has_failed |= !sim::may_allocate();
        self.pairs.push((name.to_string_lossy().into(), value));
        sim::point();
    }

    fn finish(self) -> Result<Self> {
        if self.has_failed {
            return Err(ENOMEM);
        }
        Ok(self)
    }
}

#[no_mangle]
unsafe extern "C" fn devlink_fmsg_string_pair_put(
    message: *mut Message,
    name: *const c_char,
    value: *const c_char,
) {
    // SAFETY: The caller guarantees a valid message, and texts that end with zero.
    unsafe {
        let value = CStr::from_ptr(value.cast());
        (*message).put(name, value.to_string_lossy().into());
    }
}

#[no_mangle]
unsafe extern "C" fn devlink_fmsg_u64_pair_put(
    message: *mut Message,
    name: *const c_char,
    value: u64,
) {
    // SAFETY: The caller guarantees a valid message.
    unsafe { (*message).put(name, value.to_string()) };
}

/// Calls `f` with the reporter of the registered instance, as for a netlink message of an operator.
fn as_operator<R>(f: impl FnOnce(&Reporter) -> Result<R>) -> Result<R> {
    let devlink = INSTANCE.with(|instance| instance.borrow().clone());
    let devlink = devlink.ok_or(ENODEV)?;
    sim::timed("a call of devlink", || {
        devlink.locked(|| {
            if !devlink.is_registered.get() {
                return Err(ENODEV);
            }
            // SAFETY: The lock is held, which its destruction takes.
            let reporter = unsafe { devlink.reporter.get().as_ref() };
            f(reporter.ok_or(EINVAL)?)
        })
    })
}

/// `devlink health show`.
///
/// # Errors
///
/// Those of netlink and of the driver, as for the other commands.
pub fn show() -> Result<Shown> {
    as_operator(|reporter| {
        let has_dump = reporter.dump.borrow().is_some();
        let shown = *reporter.state.borrow();
        Ok(Shown { has_dump, ..shown })
    })
}

/// `devlink health recover`.
///
/// # Errors
///
/// See [`show`].
pub fn recover() -> Result {
    as_operator(|reporter| reporter.recover(null_mut()))
}

/// `devlink health diagnose`.
///
/// # Errors
///
/// See [`show`].
pub fn diagnose() -> Result<Vec<(String, String)>> {
    as_operator(|reporter| {
        let diagnose = reporter.ops.diagnose.ok_or(EOPNOTSUPP)?;
        let mut message = Message::default();
        // SAFETY: The reporter is valid, and the lock is held.
        to_result(unsafe { diagnose(reporter.pointer(), &raw mut message, null_mut()) })?;
        Ok(message.finish()?.pairs)
    })
}

/// `devlink health dump show`, which keeps the dump until [`clear_dump`].
///
/// # Errors
///
/// See [`show`].
pub fn dump() -> Result<Vec<(String, String)>> {
    as_operator(|reporter| {
        reporter.do_dump(null_mut())?;
        let dump = reporter.dump.borrow();
        Ok(dump.as_ref().map_or(Vec::new(), |dump| dump.pairs.clone()))
    })
}

/// `devlink health dump clear`.
///
/// # Errors
///
/// See [`show`].
pub fn clear_dump() -> Result {
    as_operator(|reporter| {
        reporter.dump.replace(None);
        Ok(())
    })
}

/// `devlink health set` with `auto_recover` and `grace_period` (in milliseconds).
///
/// # Errors
///
/// See [`show`].
pub fn set(auto_recover: bool, grace_period: u64) -> Result {
    as_operator(|reporter| {
        let mut state = reporter.state.borrow_mut();
        (state.auto_recover, state.grace_period) = (auto_recover, grace_period);
        Ok(())
    })
}
