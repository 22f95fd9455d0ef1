// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A registered device, as verbs receive it.

use core::mem::MaybeUninit;

use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    dma_bufs::DmaBufs,
    home::Home, //
};
use crate::ffi;

/// A device and the provider's data `D`.
///
/// # Invariants
///
/// References to this exist only while all fields are initialized.
#[repr(C)]
pub(crate) struct Device<D> {
    core: Opaque<ffi::ib_device>,
    home: MaybeUninit<Arc<Home>>,
    dma_bufs: MaybeUninit<Arc<DmaBufs>>,
    // Last, so that the offsets of the other fields do not depend on `D`.
    data: MaybeUninit<D>,
}

impl<D> Device<D> {
    /// Size in bytes that the core has to allocate.
    pub(super) const SIZE: usize = {
        // `kzalloc` guarantees this alignment on all architectures.
        assert!(align_of::<Self>() <= 8);
        size_of::<Self>()
    };

    /// Returns pointers to the fields of a device, which need not be initialized.
    ///
    /// # Safety
    ///
    /// `device` must have been allocated with [`Self::SIZE`] bytes.
    pub(super) unsafe fn slots(device: *mut ffi::ib_device) -> Slots<D> {
        let this: *mut Self = device.cast();
        // SAFETY: The caller guarantees that there is room for the field.
        let home = unsafe { &raw mut (*this).home };
        // SAFETY: The caller guarantees that there is room for the field.
        let dma_bufs = unsafe { &raw mut (*this).dma_bufs };
        // SAFETY: The caller guarantees that there is room for the field.
        let data = unsafe { &raw mut (*this).data };
        Slots {
            home: home.cast(),
            dma_bufs: dma_bufs.cast(),
            data: data.cast(),
        }
    }

    /// Returns the device behind the core's structure.
    ///
    /// # Safety
    ///
    /// `device` must have been allocated with [`Self::SIZE`] bytes. Its fields must be
    /// initialized, and must not be dropped for `'d`.
    pub(super) unsafe fn from_raw<'d>(device: *mut ffi::ib_device) -> &'d Self {
        // INVARIANT: The caller guarantees that the fields are initialized.
        // SAFETY: The caller guarantees that the memory is of this type.
        unsafe { &*device.cast() }
    }

    /// Returns the core's structure.
    pub(super) fn as_raw(&self) -> *mut ffi::ib_device {
        self.core.get()
    }

    /// Returns the home of the device: its name and network namespace.
    pub(super) fn home(&self) -> &Home {
        // SAFETY: By the type invariant the field is initialized.
        unsafe { self.home.assume_init_ref() }
    }

    /// Returns the DMA buffers whose memory the device uses.
    pub(super) fn dma_bufs(&self) -> &Arc<DmaBufs> {
        // SAFETY: By the type invariant the field is initialized.
        unsafe { self.dma_bufs.assume_init_ref() }
    }

    /// Returns the provider's data.
    pub(crate) fn data(&self) -> &D {
        // SAFETY: By the type invariant the data is initialized.
        unsafe { self.data.assume_init_ref() }
    }
}

/// Pointers to the fields of a device.
pub(super) struct Slots<D> {
    pub(super) home: *mut Arc<Home>,
    pub(super) dma_bufs: *mut Arc<DmaBufs>,
    pub(super) data: *mut D,
}

/// Returns the DMA buffers whose memory a device uses.
///
/// # Safety
///
/// `device` must be registered.
pub(super) unsafe fn dma_bufs(device: *mut ffi::ib_device) -> Arc<DmaBufs> {
    // SAFETY: The caller guarantees initialized fields. This one's offset does not depend on `D`.
    unsafe { Device::<()>::from_raw(device) }.dma_bufs().clone()
}

/// Returns the driver core's part of a device.
///
/// # Safety
///
/// `device` must be valid.
pub(super) unsafe fn dev(device: *mut ffi::ib_device) -> *mut bindings::device {
    // SAFETY: The caller guarantees that the device is valid. All variants of the union begin with it.
    unsafe { &raw mut (*device).__bindgen_anon_1 }.cast()
}
