// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Values that end with the binding of a device, even if safe code leaks their owner.
//!
//! In the kernel crate, what must not outlive a binding is made by `unsafe` functions, whose callers
//! promise not to leak it ([`kernel::irq::Registration`], [`kernel::fwctl::Registration`]). Here the
//! device's own list of resources is the second owner, so that no such promise is needed. To be
//! replaced by [`kernel::devres::Devres`] once it can hold what borrows from the binding.

use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    error::to_result,
    ffi::c_void,
    prelude::*,
    types::ForeignOwnable, //
};

use super::device::as_raw;

/// The right to attach what is valid for `'data` to a bound device.
///
/// `'data` is invariant: who gets this for a binding can't attach what lives shorter than that.
///
/// # Invariants
///
/// What is valid for `'data` is so until the resources of `dev` have been released.
pub(crate) struct Attachment<'a, 'data> {
    dev: &'a Device<Bound>,
    data: PhantomData<fn(&'data ()) -> &'data ()>,
}

impl Clone for Attachment<'_, '_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Attachment<'_, '_> {}

/// The binding of a device to its driver, which lasts for `'bound`.
pub(crate) type Binding<'bound> = Attachment<'bound, 'bound>;

impl<'a> Attachment<'a, 'static> {
    /// Allows to attach what borrows nothing.
    #[allow(
        dead_code,
        reason = "for drivers whose device is not of a bus, see samples/"
    )]
    pub(crate) fn of_static(dev: &'a Device<Bound>) -> Self {
        // INVARIANT: `'static` outlasts everything.
        Self {
            dev,
            data: PhantomData,
        }
    }
}

impl<'a, 'data> Attachment<'a, 'data> {
    /// Allows to attach what is valid for `'data`.
    ///
    /// # Safety
    ///
    /// What is valid for `'data` must be so until the resources of `dev` have been released.
    pub(super) unsafe fn new(dev: &'a Device<Bound>) -> Self {
        // INVARIANT: The caller guarantees it.
        Self {
            dev,
            data: PhantomData,
        }
    }

    /// Returns the device.
    pub(crate) fn dev(self) -> &'a Device<Bound> {
        self.dev
    }
}

/// A value that is attached to a device: dropped with this owner, or else when the device is
/// unbound.
///
/// # Invariants
///
/// `value` is a box's content, which [`release`] drops: the device has this as an action.
pub(crate) struct Attached<'a, T> {
    dev: &'a Device<Bound>,
    value: NonNull<T>,
}

// SAFETY: The value may be dropped by any task, as `T` is `Send`.
unsafe impl<T: Send> Send for Attached<'_, T> {}

// SAFETY: A shared reference gives access to a shared reference to `T`, which is `Sync`.
unsafe impl<T: Send + Sync> Sync for Attached<'_, T> {}

impl<'a, T: Send> Attached<'a, T> {
    /// Initializes a value and attaches it.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of `value`.
    pub(crate) fn new<'data>(
        host: Attachment<'a, 'data>,
        value: impl PinInit<T, Error>,
    ) -> Result<Self>
    where
        T: 'data,
    {
        let value = KBox::pin_init(value, GFP_KERNEL)?.into_foreign();

        // SAFETY: The device is valid, and runs the action once, with what `into_foreign` returned. By
        // the invariant of `host` the value is valid until the device's resources are released, which
        // runs the action at the latest. If the action can't be added, it runs at once.
        to_result(unsafe {
            bindings::devm_add_action_or_reset(as_raw(host.dev), Some(release::<T>), value)
        })?;

        // INVARIANT: The action was added.
        Ok(Self {
            dev: host.dev,
            value: NonNull::new(value.cast()).ok_or(EINVAL)?,
        })
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

impl<T> Deref for Attached<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant the value lives until the action runs, which this owner's
        // drop has not done, and the unbinding of the device, which is bound for `'a`, neither.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Attached<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the device has this action, which frees the value: nobody
        // has a reference to it any more.
        unsafe {
            bindings::devm_release_action(
                as_raw(self.dev),
                Some(release::<T>),
                self.value.as_ptr().cast(),
            )
        }
    }
}

/// Drops the boxed `T` at `value`.
///
/// # Safety
///
/// `value` must be what `into_foreign` of a pinned box of a `T` returned. It must not be used afterwards.
unsafe extern "C" fn release<T>(value: *mut c_void) {
    // SAFETY: The caller guarantees that `into_foreign` returned this, and that nobody else takes it back.
    drop(unsafe { <Pin<KBox<T>> as ForeignOwnable>::from_foreign(value) });
}
