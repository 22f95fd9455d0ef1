// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A registered device, as verbs are given it.

use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};

use kernel::{
    bindings,
    ffi::c_void,
    fmt,
    prelude::*,
    types::Opaque, //
};

use crate::ffi;

/// A device and the provider's data `D`.
///
/// # Invariants
///
/// References to this exist only while the data is initialized.
#[repr(C)]
pub(crate) struct Device<D> {
    core: Opaque<ffi::ib_device>,
    data: MaybeUninit<D>,
}

impl<D> Device<D> {
    /// How many bytes the core has to allocate.
    pub(super) const SIZE: usize = {
        // What `kzalloc` guarantees on all architectures.
        assert!(align_of::<Self>() <= 8);
        size_of::<Self>()
    };

    /// Returns where the data of a device goes.
    ///
    /// # Safety
    ///
    /// `device` must have been allocated with [`Self::SIZE`] bytes.
    pub(super) unsafe fn slot(device: *mut ffi::ib_device) -> *mut D {
        // SAFETY: The caller guarantees that there is room for the data.
        unsafe { (&raw mut (*device.cast::<Self>()).data).cast() }
    }

    /// Returns the device behind the core's structure.
    ///
    /// # Safety
    ///
    /// `device` must have been allocated with [`Self::SIZE`] bytes. Its data must be initialized, and
    /// must not be dropped for `'d`.
    pub(super) unsafe fn from_raw<'d>(device: *mut ffi::ib_device) -> &'d Self
    where
        D: 'd,
    {
        // INVARIANT: The caller guarantees that the data is there.
        // SAFETY: The caller guarantees that the memory is of this type.
        unsafe { &*device.cast() }
    }

    /// Returns the core's structure.
    pub(super) fn as_raw(&self) -> *mut ffi::ib_device {
        self.core.get()
    }

    /// Returns the provider's data.
    pub(crate) fn data(&self) -> &D {
        // SAFETY: By the type invariant the data is initialized.
        unsafe { self.data.assume_init_ref() }
    }

    /// Logs a message with the name of the device.
    pub(crate) fn info(&self, message: fmt::Arguments<'_>) {
        let message: *const c_void = core::ptr::from_ref(&message).cast();
        // SAFETY: `%pA` takes a pointer to formatted arguments, and the device is valid.
        unsafe { ffi::ibdev_info(self.as_raw(), c"%pA".as_char_ptr(), message) }
    }
}

/// Keeps the memory of a device alive.
pub(super) struct DeviceRef<'a> {
    device: *mut ffi::ib_device,
    registration: PhantomData<&'a ()>,
}

// SAFETY: Reference counts may be used by any task.
unsafe impl Send for DeviceRef<'_> {}

// SAFETY: A shared reference gives access to nothing.
unsafe impl Sync for DeviceRef<'_> {}

impl DeviceRef<'_> {
    /// Takes a reference.
    ///
    /// # Safety
    ///
    /// `device` must be valid, and of a registration whose data is valid for the lifetime that the
    /// caller gives the value.
    pub(super) unsafe fn new(device: *mut ffi::ib_device) -> Self {
        // SAFETY: The caller guarantees that the device is valid.
        unsafe { bindings::get_device((*device).__bindgen_anon_1.dev.as_mut()) };
        Self {
            device,
            registration: PhantomData,
        }
    }
}

impl Drop for DeviceRef<'_> {
    fn drop(&mut self) {
        // SAFETY: Gives back the reference that `new` took.
        unsafe { bindings::put_device((*self.device).__bindgen_anon_1.dev.as_mut()) }
    }
}
