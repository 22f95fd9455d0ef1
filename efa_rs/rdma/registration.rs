// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration of a device with the RDMA core.

use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};

use kernel::{
    device::Bound,
    error::to_result,
    ffi::c_int,
    prelude::*,
    sync::Arc,
    ModuleMetadata, //
};

#[cfg(in_tree)]
use super::attr::check_name;

use super::{
    device::{
        dev,
        Device, //
    },
    dma_bufs::DmaBufs,
    home::{
        Home,
        Net, //
    },
    ops::Ops,
    provider::Provider, //
};
use crate::{
    ffi,
    sys::{
        self,
        attach::{
            Attached,
            Attachment, //
        },
    },
};

/// Properties of a device that the core needs for its registration.
pub(crate) struct NodeInfo {
    /// GUID of the node, as the device stores it.
    pub(crate) node_guid: u64,
    /// Number of vectors for completion events; 0 counts as one, as the core divides by it.
    pub(crate) num_comp_vectors: u32,
    /// Whether the ports have counters, if the provider can read them. The core reads them when it
    /// registers the device, and leaks their memory if that fails.
    pub(crate) has_port_counters: bool,
}

/// A registered device, whose data is valid for `'data`; unregistered when dropped.
///
/// After the drop no verb is running, and programs that have the device open have no objects on it. These
/// programs get the event of a fatal device error, and their later calls fail with `EIO`.
pub(crate) struct Registration<'a, 'data, P: Provider> {
    registered: Attached<'a>,
    data: PhantomData<P::Data<'data>>,
}

impl<'a, 'data, P: Provider> Registration<'a, 'data, P> {
    /// Registers a device below that of `host`. Verbs may be called before this returns.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of `data` and of `ib_register_device`.
    pub(crate) fn new(
        host: Attachment<'a, 'data>,
        #[cfg(in_tree)] name: &'static CStr,
        #[cfg(not(in_tree))] home: Arc<Home>,
        info: NodeInfo,
        data: impl PinInit<P::Data<'data>, Error>,
    ) -> Result<Self> {
        let registered = pin_init::pin_init_scope(move || {
            #[cfg(not(in_tree))]
            // This keeps the namespace alive until the device is registered in it.
            let (net, name) = (home.net(), home.clone());
            let mut allocated = Registered::<'data, P>::allocate(
                #[cfg(not(in_tree))]
                home,
                #[cfg(not(in_tree))]
                &net,
                data,
            )?;
            allocated.register(host.dev(), name, info)?;
            Ok(Ok::<_, Error>(allocated))
        });
        Ok(Self {
            registered: Attached::new(host, registered)?,
            data: PhantomData,
        })
    }

    /// Leaves the device registered until its parent is unbound.
    #[allow(
        dead_code,
        reason = "for drivers whose device is not of a bus, see samples/"
    )]
    pub(crate) fn leave(self) {
        self.registered.leave();
    }
}

/// A device that was allocated, and may be registered.
///
/// # Invariants
///
/// `device` was allocated with the size of a [`Device`], whose fields are initialized. It is
/// registered if `is_registered` is set.
struct Registered<'data, P: Provider> {
    device: NonNull<ffi::ib_device>,
    is_registered: bool,
    data: PhantomData<P::Data<'data>>,
}

// SAFETY: The device may be unregistered, and its data, which is `Send`, dropped by any task.
unsafe impl<P: Provider> Send for Registered<'_, P> {}

// SAFETY: A shared reference only gives access to the data, which is `Sync`.
unsafe impl<P: Provider> Sync for Registered<'_, P> {}

impl<'data, P: Provider> Registered<'data, P> {
    /// Allocates a device with `data` in a network namespace.
    fn allocate(
        #[cfg(not(in_tree))] home: Arc<Home>,
        #[cfg(not(in_tree))] net: &Net,
        data: impl PinInit<P::Data<'data>, Error>,
    ) -> Result<Self> {
        #[cfg(in_tree)]
        let net = &raw mut ffi::init_net;
        #[cfg(not(in_tree))]
        let net = net.as_raw();
        // SAFETY: The size is that of a structure which starts with an `ib_device`; the network
        // namespace is valid.
        let device = unsafe { ffi::_ib_alloc_device(Device::<P::Data<'data>>::SIZE, net) };
        let device = NonNull::new(device).ok_or(ENOMEM)?;

        // SAFETY: The device was just allocated with this size.
        let slots = unsafe { Device::<P::Data<'data>>::slots(device.as_ptr()) };
        let fill = || {
            let dma_bufs = DmaBufs::new()?;
            // SAFETY: The slot is not in use, and does not move.
            unsafe { pin_init::raw_try_init(slots.data, data) }?;
            // SAFETY: The slot is not in use.
            unsafe { slots.dma_bufs.write(dma_bufs) };
            Ok(())
        };
        fill().inspect_err(|_: &Error| {
            // SAFETY: The device was just allocated, and nothing uses it.
            unsafe { ffi::ib_dealloc_device(device.as_ptr()) }
        })?;
        // SAFETY: The slot is not in use.
        unsafe { slots.home.write(home) };

        // INVARIANT: All have just been initialized.
        Ok(Self {
            device,
            is_registered: false,
            data: PhantomData,
        })
    }

    /// Registers the device below `host`.
    fn register(
        &mut self,
        host: &kernel::device::Device<Bound>,
        #[cfg(in_tree)] name: &CStr,
        #[cfg(not(in_tree))] home: Arc<Home>,
        info: NodeInfo,
    ) -> Result {
        #[cfg(in_tree)]
        check_name(name)?;
        let device = self.device.as_ptr();
        let parent = sys::device::as_raw(host);

        // SAFETY: By the type invariant, the device is valid.
        let dev = unsafe { dev(device) };
        // SAFETY: Nothing else uses the device before it is registered.
        unsafe { (*dev).parent = parent };
        // SAFETY: The device is not registered yet. The table is constant.
        unsafe { ffi::ib_set_device_ops(device, &Ops::<P>::TABLE) };
        // SAFETY: Nothing else uses the device before it is registered.
        let raw = unsafe { &mut *device };
        raw.ops.owner = <P::OwnerModule as ModuleMetadata>::THIS_MODULE.as_ptr();
        raw.ops.set_uverbs_robust_udata(P::ROBUST_UDATA.into());
        if !info.has_port_counters {
            raw.ops.alloc_hw_port_stats = None;
        }
        raw.node_type = ffi::RDMA_NODE_UNSPECIFIED as u8;
        raw.node_guid = info.node_guid;
        raw.phys_port_cnt = P::PORTS;
        raw.num_comp_vectors = info
            .num_comp_vectors
            .max(1)
            .try_into()
            .unwrap_or(c_int::MAX);
        raw.driver_def = P::UAPI.map_or(core::ptr::null(), |list| list.as_ptr().cast());

        // A device without DMA parameters, such as one of the faux bus, does no DMA.
        // SAFETY: `parent` is a valid device.
        let does_dma = unsafe { !(*parent).dma_parms.is_null() };
        let dma_device = if does_dma { parent } else { null_mut() };

        #[cfg(in_tree)]
        // SAFETY: The device is set up; `host` is bound, and this is dropped before it is unbound.
        let error = unsafe { ffi::ib_register_device(device, name.as_char_ptr(), dma_device) };
        #[cfg(not(in_tree))]
        // SAFETY: The device is set up; `host` is bound, and this is dropped before it is unbound.
        let error = unsafe { home.register(device, host, dma_device) };
        to_result(error)?;
        // INVARIANT: The registration has just succeeded.
        self.is_registered = true;
        Ok(())
    }
}

impl<P: Provider> Drop for Registered<'_, P> {
    fn drop(&mut self) {
        let device = self.device.as_ptr();

        // SAFETY: By the type invariant, the fields are initialized. They are dropped below.
        let fields = unsafe { Device::<P::Data<'_>>::from_raw(device) };
        if self.is_registered {
            fields.home().leave();
            if P::has_failed(fields) {
                let event = ffi::ib_event {
                    device,
                    element: Default::default(),
                    event: ffi::ib_event_type_IB_EVENT_DEVICE_FATAL,
                };
                // SAFETY: The core copies the event. The unregistration waits until it was handled.
                unsafe { ffi::ib_dispatch_event(&event) };
            }
            // SAFETY: By the type invariant the device is registered. The core waits for running
            // verbs, and destroys programs' objects of the device.
            unsafe { ffi::ib_unregister_device(device) };
            // SAFETY: The device was registered. The core renames registered devices only.
            unsafe { fields.home().note_name(device) };
        }
        // Programs may have used the device before its registration failed.
        fields.dma_bufs().end_all();

        // SAFETY: By the type invariant, the device was allocated with this size.
        let slots = unsafe { Device::<P::Data<'_>>::slots(device) };
        // SAFETY: By the type invariant, the data is initialized. The device is not registered, so the data is not
        // in use.
        unsafe { slots.data.drop_in_place() };
        // SAFETY: By the type invariant, the list is initialized. It is not used any more.
        unsafe { slots.dma_bufs.drop_in_place() };
        // SAFETY: By the type invariant, the home is initialized. It is not used any more.
        unsafe { slots.home.drop_in_place() };
        // SAFETY: The device is not registered, and this is its last use.
        unsafe { ffi::ib_dealloc_device(device) };
    }
}
