// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Values that are dropped with the binding of a device, even if safe code leaks their owner.
//!
//! In the kernel crate, values that must not outlive a binding are created by `unsafe` functions,
//! whose callers promise not to leak them ([`kernel::irq::Registration`],
//! `kernel::fwctl::Registration`). Here the device's list of resources is a second owner, so that
//! no promise is needed. The owner can't access the value, and therefore may outlive it. To be
//! replaced by [`kernel::devres::Devres`] once it can hold values that borrow from the binding.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    error::to_result,
    faux,
    ffi::c_void,
    prelude::*,
    types::ForeignOwnable, //
};

use super::device::as_raw;

/// The right to attach values that are valid for `'data` to a bound device.
///
/// `'data` is invariant: values that live shorter than the binding can't be attached to it.
///
/// # Invariants
///
/// Values that are valid for `'data` stay valid until the resources of `dev` have been released.
/// A mark is one of these resources until their release begins.
#[derive(Clone, Copy)]
pub(crate) struct Attachment<'a, 'data> {
    dev: &'a Device<Bound>,
    data: PhantomData<fn(&'data ()) -> &'data ()>,
}

/// The binding of a device to its driver, which lasts for `'bound`.
pub(crate) type Binding<'bound> = Attachment<'bound, 'bound>;

impl<'a> Attachment<'a, 'static> {
    /// Allows attaching values that borrow nothing to a device of the faux bus.
    ///
    /// Only the drop of the registration, which is code of the same module, releases the resources
    /// of this device. A device of another bus may be unbound after the module is gone.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    #[allow(
        dead_code,
        reason = "for drivers whose device is not of a bus, see samples/"
    )]
    pub(crate) fn of_faux(device: &'a faux::Registration) -> Result<Self> {
        // SAFETY: `'static` outlasts everything.
        unsafe { Self::new(device.as_ref().as_ref()) }
    }
}

impl<'a, 'data> Attachment<'a, 'data> {
    /// Allows attaching values that are valid for `'data`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    ///
    /// # Safety
    ///
    /// Values that are valid for `'data` must stay valid until the resources of `dev` are released.
    pub(super) unsafe fn new(dev: &'a Device<Bound>) -> Result<Self> {
        let raw = as_raw(dev);
        // SAFETY: The device is valid. The action has no effect, so it may run at any time.
        to_result(unsafe { bindings::devm_add_action_or_reset(raw, Some(MARK), raw.cast()) })?;

        // INVARIANT: The caller guarantees the validity. The mark was added.
        Ok(Self {
            dev,
            data: PhantomData,
        })
    }

    /// Returns whether the device still has its resources. Once their release has begun, it does not
    /// release what is added.
    fn has_resources(self) -> bool {
        let raw = as_raw(self.dev);
        // SAFETY: The device is valid. This only searches its actions.
        unsafe { bindings::devm_is_action_added(raw, Some(MARK), raw.cast()) }
    }

    /// Returns the device.
    pub(crate) fn dev(self) -> &'a Device<Bound> {
        self.dev
    }
}

/// A function that releases a value.
type Release = unsafe extern "C" fn(*mut c_void);

/// The action that marks a device whose resources have not been released. The driver core removes
/// all actions at once, and then runs them. This has one address, unlike the function.
static MARK: Release = no_release;

/// Releases nothing.
extern "C" fn no_release(_: *mut c_void) {}

/// The owner of a value that is attached to a device. The value is dropped with this owner, or when
/// the device is unbound, whichever is first.
///
/// # Invariants
///
/// `release` can be called once with `value`. The device has both as an action, or has run it.
pub(crate) struct Attached<'a> {
    dev: &'a Device<Bound>,
    release: Release,
    value: NonNull<c_void>,
}

// SAFETY: The value is `Send`, and so may be dropped by any task.
unsafe impl Send for Attached<'_> {}

// SAFETY: A shared reference gives access to nothing.
unsafe impl Sync for Attached<'_> {}

impl<'a> Attached<'a> {
    /// Initializes a value and attaches it.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - [`ENODEV`] if the device is being unbound, and drops the values that are attached to it.
    /// - Those of `value`.
    pub(crate) fn new<'data, T: Send + 'data>(
        host: Attachment<'a, 'data>,
        value: impl PinInit<T, Error>,
    ) -> Result<Self> {
        let value = KBox::pin_init(value, GFP_KERNEL)?.into_foreign();
        // Taken once, as the function may have several copies with different addresses.
        let release: Release = release::<T>;

        // SAFETY: The device is valid, and runs the action once, with the result of `into_foreign`.
        // By the invariant of `host` the value is valid until the device's resources are released,
        // which runs the action at the latest, or else the check below. If the action can't be added,
        // it runs at once.
        to_result(unsafe {
            bindings::devm_add_action_or_reset(as_raw(host.dev), Some(release), value)
        })?;

        // INVARIANT: The action was added.
        let attached = Self {
            dev: host.dev,
            release,
            value: NonNull::new(value.cast()).ok_or(EINVAL)?,
        };
        // If the release has begun before, the drop removes the action and releases the value.
        host.has_resources().then_some(attached).ok_or(ENODEV)
    }

    /// Returns whether the device has not begun to release its resources.
    pub(crate) fn is_attached(&self) -> bool {
        let value = self.value.as_ptr();
        // SAFETY: The device is valid. This only searches its actions.
        unsafe { bindings::devm_is_action_added(as_raw(self.dev), Some(self.release), value) }
    }

    /// Leaves the value to the device, which drops it when it is unbound.
    #[allow(
        dead_code,
        reason = "for drivers whose device is not of a bus, see samples/"
    )]
    pub(crate) fn leave(self) {
        core::mem::forget(self);
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let value = self.value.as_ptr();
        // SAFETY: The device is valid. The removal fails if the device has run the action, or is going
        // to, as it is unbound.
        let error = unsafe {
            bindings::devm_remove_action_nowarn(as_raw(self.dev), Some(self.release), value)
        };
        if error == 0 {
            // SAFETY: By the type invariant this can be called once. The device no longer calls it.
            unsafe { (self.release)(value) };
        }
    }
}

/// Drops the boxed `T` at `value`.
///
/// # Safety
///
/// `value` must be from `into_foreign` of a pinned box of a `T`, and not be used afterwards.
unsafe extern "C" fn release<T>(value: *mut c_void) {
    // SAFETY: The caller guarantees that `into_foreign` returned this, which is not used again.
    drop(unsafe { <Pin<KBox<T>> as ForeignOwnable>::from_foreign(value) });
}
