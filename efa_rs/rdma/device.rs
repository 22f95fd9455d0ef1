// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration of a device with the RDMA core.

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
    prelude::*, //
};

use super::{
    object::Object,
    ops::Ops,
    provider::Provider, //
};
use crate::ffi;

/// What the core wants to know of a device before it is registered.
pub(crate) struct NodeInfo {
    /// GUID of the node, as the device stores it.
    pub(crate) node_guid: u64,
    /// Number of vectors that completion events can be sent to; at least one.
    pub(crate) num_comp_vectors: u32,
    /// Whether the port has counters. The core reads them when it registers the device, and forgets
    /// what it has allocated for them if that fails.
    pub(crate) has_port_counters: bool,
}

/// A registered device; unregistered when dropped, and then no verb is running any more.
///
/// # Invariants
///
/// `device` is a registered device with a provider of type `T` behind it.
pub(crate) struct Registration<T: Provider> {
    device: NonNull<ffi::ib_device>,
    provider: PhantomData<T>,
}

// SAFETY: The device may be unregistered by any task, and a provider dropped by any.
unsafe impl<T: Provider> Send for Registration<T> {}

// SAFETY: A shared reference only gives access to the provider, which is `Sync`.
unsafe impl<T: Provider> Sync for Registration<T> {}

/// A device that is allocated and not registered; freed when dropped.
///
/// # Invariants
///
/// `device` came from `_ib_alloc_device`, has a provider of type `T` behind it, and is not
/// registered.
struct Allocated<T: Provider> {
    device: NonNull<ffi::ib_device>,
    provider: PhantomData<T>,
}

impl<T: Provider> Allocated<T> {
    fn new(provider: T) -> Result<Self> {
        // SAFETY: The size is that of a structure which starts with an `ib_device`; the network
        // namespace is the initial one, as for all devices with no namespace of their own.
        let device = unsafe {
            ffi::_ib_alloc_device(
                Object::<ffi::ib_device, T>::SIZE,
                &raw mut bindings::init_net,
            )
        };
        let device = NonNull::new(device).ok_or(ENOMEM)?;

        // SAFETY: The object was just allocated with the size that it takes.
        unsafe { Object::<ffi::ib_device, T>::init(device.as_ptr(), provider) };

        // INVARIANT: As above.
        Ok(Self {
            device,
            provider: PhantomData,
        })
    }
}

impl<T: Provider> Drop for Allocated<T> {
    fn drop(&mut self) {
        let device = self.device.as_ptr();

        // SAFETY: By the type invariant the device is not registered, so that nobody calls the
        // provider, and the provider is there to be dropped.
        unsafe {
            drop(Object::<ffi::ib_device, T>::take(device));
            ffi::ib_dealloc_device(device);
        }
    }
}

impl<T: Provider> Registration<T> {
    /// Registers a device of `module` below `parent`. Verbs may be called before this returns.
    ///
    /// `name` is the device's name, with `%d` where the core puts a number.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of `ib_register_device`.
    pub(crate) fn new(
        parent: &Device<Bound>,
        module: &'static ThisModule,
        name: &'static CStr,
        info: NodeInfo,
        provider: T,
    ) -> Result<Self> {
        // CAST: `Device` is a transparent wrapper of `Opaque<bindings::device>`.
        let parent = core::ptr::from_ref(parent)
            .cast_mut()
            .cast::<bindings::device>();
        let allocated = Allocated::new(provider)?;
        let device = allocated.device.as_ptr();

        // SAFETY: Nobody else knows of the device before it is registered.
        unsafe {
            (*device).node_type = ffi::RDMA_NODE_UNSPECIFIED as u8;
            (*device).node_guid = info.node_guid;
            (*device).phys_port_cnt = 1;
            (*device).num_comp_vectors = info
                .num_comp_vectors
                .try_into()
                .unwrap_or(kernel::ffi::c_int::MAX);
            (*device).__bindgen_anon_1.dev.as_mut().parent = parent;

            ffi::ib_set_device_ops(device, &Ops::<T>::TABLE);
            (*device).ops.owner = module.as_ptr();
            if !info.has_port_counters {
                (*device).ops.alloc_hw_port_stats = None;
            }
            (*device).driver_def = (&raw const ffi::efa_uapi_definitions).cast();
        }

        // SAFETY: The device is set up; `parent` is bound, and the owner of this registration
        // drops it before it is unbound.
        to_result(unsafe { ffi::ib_register_device(device, name.as_char_ptr(), parent) })?;

        core::mem::forget(allocated);
        // INVARIANT: The registration has just succeeded.
        Ok(Self {
            device: NonNull::new(device).ok_or(ENOMEM)?,
            provider: PhantomData,
        })
    }

    /// Returns the name that the device was given at its registration.
    pub(crate) fn name(&self) -> &CStr {
        // SAFETY: By the type invariant the device is registered, and so has a name.
        unsafe { CStr::from_char_ptr((&raw const (*self.device.as_ptr()).name).cast()) }
    }
}

impl<T: Provider> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the device is registered. The core waits for verbs that
        // run, and for the processes that have the device open to be detached.
        unsafe { ffi::ib_unregister_device(self.device.as_ptr()) };

        // INVARIANT: The device is not registered any more.
        drop(Allocated::<T> {
            device: self.device,
            provider: PhantomData,
        });
    }
}

/// Returns the provider behind a device.
///
/// # Safety
///
/// `device` must have been allocated by a [`Registration`] with the same `T`, and must not be freed
/// for `'a`.
pub(super) unsafe fn provider<'a, T: Provider>(device: *mut ffi::ib_device) -> &'a T {
    // SAFETY: The caller guarantees it; the provider is initialized before the core knows of the
    // device.
    unsafe { Object::<ffi::ib_device, T>::data(device) }
}

/// Returns the device that does the DMA.
///
/// # Safety
///
/// `device` must be registered by a [`Registration`], and stay so for `'a`.
pub(super) unsafe fn dma_device<'a>(device: *mut ffi::ib_device) -> &'a Device<Bound> {
    // SAFETY: This is the parent that the device was registered below, which is bound while it is
    // registered. `Device` is a transparent wrapper of the C structure.
    unsafe { &*(*device).dma_device.cast::<Device<Bound>>() }
}

/// Returns whether the generated bindings have the sizes that the C compiler gives the largest
/// structures. They differ only if the two were given different flags.
pub(crate) fn layouts_agree() -> bool {
    // SAFETY: Constants of the C half of this module.
    unsafe {
        size_of::<ffi::ib_device>() == ffi::efa_sizeof_ib_device
            && size_of::<ffi::ib_device_ops>() == ffi::efa_sizeof_ib_device_ops
            && size_of::<ffi::ib_ucontext>() == ffi::efa_sizeof_ib_ucontext
    }
}
