// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registration of a client, and the presence of devices.

use core::{
    marker::{
        PhantomData,
        PhantomPinned, //
    },
    ptr::{
        null_mut,
        NonNull, //
    }, //
};

use kernel::{
    error::{
        from_result,
        to_result, //
    },
    ffi::{
        c_int,
        c_void, //
    },
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        CondVar,
        Mutex, //
    },
    types::Opaque, //
};

use super::device::Device;
use crate::ffi;

/// A client of devices of the RDMA core. [`client_slot`] defines its slot.
pub(crate) trait Client: HasSlot {
    /// Name of the client in the core, and the recorded owner of its objects.
    const NAME: &'static CStr;

    /// The client's data of a device. `'a` is from `add` to the end of `remove`.
    type Data<'a>: Send + Sync + 'a;

    /// Handles an added device. If this fails, the client does not use the device.
    fn add<'a>(device: &'a Device) -> impl PinInit<Self::Data<'a>, Error> + 'a;

    /// Handles the imminent removal of the device. All its [users](Registration::with_first) must
    /// finish soon, as the core waits for them. The data is dropped afterwards.
    fn remove<'a>(device: &'a Device, data: Pin<&Self::Data<'a>>) {
        let _ = (device, data);
    }
}

/// A type with its own slot. Implemented by [`client_slot`].
///
/// # Safety
///
/// [`HasSlot::slot`] must return the same slot each time.
pub(crate) unsafe trait HasSlot: Sized + 'static {
    /// Returns the slot.
    fn slot() -> &'static Slot<Self>;
}

/// Defines the slot of a client.
macro_rules! client_slot {
    ($client:ty) => {
        const _: () = {
            static SLOT: $crate::rdma::client::Slot<$client> = $crate::rdma::client::Slot::empty();

            #[allow(unsafe_code, reason = "the macro is part of the layer")]
            // SAFETY: There is one such variable, which is returned each time.
            unsafe impl $crate::rdma::client::HasSlot for $client {
                fn slot() -> &'static $crate::rdma::client::Slot<Self> {
                    &SLOT
                }
            }
        };
    };
}
pub(crate) use client_slot;

/// Pointer to a client's registration, as the core's callbacks do not identify the client.
pub(crate) struct Slot<T>(Atomic<*mut c_void>, PhantomData<fn() -> T>);

impl<T> Slot<T> {
    /// Makes an empty slot.
    pub(crate) const fn empty() -> Self {
        Self(Atomic::new(null_mut()), PhantomData)
    }
}

/// A registered client; unregistered, and removed from all devices, when dropped.
///
/// A registration must not be leaked, as its callbacks would outlive the module. As with
/// [`kernel::driver::Registration`], a module keeps it in its data.
///
/// # Invariants
///
/// `client` is registered, and the client's slot points to this.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: Client> {
    #[pin]
    present: Mutex<KVec<Present<T>>>,
    /// Notified when a device has lost a user.
    #[pin]
    left: CondVar,
    #[pin]
    client: Opaque<ffi::ib_client>,
    #[pin]
    pinned: PhantomPinned,
}

// SAFETY: The core's functions for clients may be called by any task.
unsafe impl<T: Client> Send for Registration<T> {}

// SAFETY: A shared reference gives access to the data of devices, which is `Sync`, under a lock.
unsafe impl<T: Client> Sync for Registration<T> {}

/// A device that is present.
struct Present<T: Client> {
    presence: NonNull<Presence<T>>,
    users: usize,
    /// Whether the device is being removed.
    is_removing: bool,
}

// SAFETY: The pointee is `Send`, as its data and its device are.
unsafe impl<T: Client> Send for Present<T> {}

/// A device and the client's data.
///
/// # Invariants
///
/// `data` is an owned box, whose actual lifetime is that of the device.
struct Presence<T: Client> {
    data: NonNull<T::Data<'static>>,
    device: Pin<KBox<Device>>,
}

impl<T: Client> Presence<T> {
    /// Adds a device to the client.
    ///
    /// # Safety
    ///
    /// The device must be registered until the value is dropped.
    unsafe fn new(raw: NonNull<ffi::ib_device>) -> Result<KBox<Self>> {
        // SAFETY: The caller guarantees that it is registered, so that its parent is bound.
        let device = KBox::pin_init(unsafe { Device::new(raw, T::NAME) }, GFP_KERNEL)?;
        let data = KBox::pin_init(T::add(&device), GFP_KERNEL);
        let data = data.inspect_err(|_| {
            // SAFETY: The client's objects were dropped with its data, or leaked.
            unsafe { device.end() }
        })?;
        // SAFETY: The data is not moved by this.
        let data = KBox::into_raw(unsafe { Pin::into_inner_unchecked(data) });

        // INVARIANT: The ownership of the box has just passed to this.
        let presence = Self {
            // SAFETY: A box is never null.
            data: unsafe { NonNull::new_unchecked(data.cast()) },
            device,
        };
        Ok(KBox::new(presence, GFP_KERNEL)?)
    }

    /// Returns the data.
    fn data(&self) -> Pin<&T::Data<'_>> {
        // SAFETY: By the type invariant the data is valid as long as the device. Its layout does
        // not depend on the lifetime.
        let data = unsafe { self.data.cast().as_ref() };
        // SAFETY: By the type invariant the data does not move.
        unsafe { Pin::new_unchecked(data) }
    }
}

impl<T: Client> Drop for Presence<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this is a box, which is not used any more.
        drop(unsafe { KBox::<T::Data<'_>>::from_raw(self.data.as_ptr().cast()) });
        // SAFETY: The client's objects are not used without its data.
        unsafe { self.device.end() };
    }
}

impl<T: Client> Registration<T> {
    /// Registers a client. Devices may be added before this returns.
    ///
    /// # Errors
    ///
    /// - [`EBUSY`] if the client is registered already.
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            present <- new_mutex!(KVec::new(), "rdma_client_present"),
            left <- new_condvar!("rdma_client_left"),
            // INVARIANT: Success registers the client and sets the slot; a failure does neither.
            client <- Opaque::try_ffi_init(move |slot: *mut ffi::ib_client| {
                let own = T::slot();
                own.0.cmpxchg(null_mut(), this.as_ptr().cast(), Full).map_err(|_| EBUSY)?;
                let client = ffi::ib_client {
                    name: T::NAME.as_char_ptr(),
                    add: Some(Self::add),
                    remove: Some(Self::remove),
                    ..Default::default()
                };
                // SAFETY: There is room for a client.
                unsafe { slot.write(client) };
                // SAFETY: The client does not move. Its callbacks only use initialized fields.
                to_result(unsafe { ffi::ib_register_client(slot) })
                .inspect_err(|_| own.0.store(null_mut(), Release))
            }),
            pinned: PhantomPinned,
        }? Error)
    }

    /// Calls `f` with the data of the first added device that is not being removed, if any.
    ///
    /// The device is present during the call: its removal waits, after [`Client::remove`].
    pub(crate) fn with_first<R>(
        &self,
        f: impl for<'a> FnOnce(Pin<&T::Data<'a>>) -> R,
    ) -> Option<R> {
        let presence = {
            let mut present = self.present.lock();
            let first = present.iter_mut().find(|one| !one.is_removing)?;
            first.users += 1;
            first.presence
        };
        // SAFETY: It exists as long as it has users. `f` takes any lifetime, so its result borrows
        // nothing.
        let result = f(unsafe { presence.as_ref() }.data());

        let mut present = self.present.lock();
        if let Some(one) = present.iter_mut().find(|one| one.presence == presence) {
            one.users -= 1;
        }
        self.left.notify_all();
        Some(result)
    }

    /// Called by the core for each device.
    ///
    /// # Safety
    ///
    /// The client must be registered, or being registered, and so must be the device.
    unsafe extern "C" fn add(device: *mut ffi::ib_device) -> c_int {
        from_result(|| {
            let this: *mut Self = T::slot().0.load(Acquire).cast();
            // SAFETY: The slot points to the registration, whose field is initialized.
            let present = unsafe { &(*this).present };
            // SAFETY: The slot points to the registration, whose field is initialized.
            let client = unsafe { &(*this).client }.get();
            let device = NonNull::new(device).ok_or(EINVAL)?;
            // SAFETY: The core passes registered devices, and calls `remove` before unregistration.
            let presence = unsafe { Presence::<T>::new(device) }?;

            let mut present = present.lock();
            present.reserve(1, GFP_KERNEL)?;
            let presence = KBox::into_raw(presence);
            let one = Present {
                // SAFETY: A box is never null.
                presence: unsafe { NonNull::new_unchecked(presence) },
                users: 0,
                is_removing: false,
            };
            // The capacity was reserved above.
            let _ = present.push_within_capacity(one);
            // SAFETY: Both are valid, and the core is adding them to each other.
            unsafe { ffi::ib_set_client_data(device.as_ptr(), client, presence.cast()) };
            Ok(0)
        })
    }

    /// Called by the core before a device or the client is unregistered.
    ///
    /// # Safety
    ///
    /// The client must be registered, and `data` the pointer that [`Self::add`] has passed on.
    unsafe extern "C" fn remove(_device: *mut ffi::ib_device, data: *mut c_void) {
        let Some(presence) = NonNull::new(data.cast::<Presence<T>>()) else {
            return;
        };
        let this: *mut Self = T::slot().0.load(Acquire).cast();
        // SAFETY: The slot points to the registration, whose field is initialized.
        let present = unsafe { &(*this).present };
        // SAFETY: The slot points to the registration, whose field is initialized.
        let left = unsafe { &(*this).left };
        if let Some(one) = present
            .lock()
            .iter_mut()
            .find(|one| one.presence == presence)
        {
            one.is_removing = true;
        }

        // SAFETY: `add` has passed its ownership to the core. Only the code below frees the box.
        let its = unsafe { presence.as_ref() };
        T::remove(&its.device, its.data());

        let mut guard = present.lock();
        while let Some(index) = guard.iter().position(|one| one.presence == presence) {
            if guard[index].users == 0 {
                let _ = guard.remove(index);
                break;
            }
            left.wait(&mut guard);
        }
        drop(guard);
        // SAFETY: This was a box whose ownership `add` has passed to the core, and nothing uses it any more.
        drop(unsafe { KBox::from_raw(presence.as_ptr()) });
    }
}

#[pinned_drop]
impl<T: Client> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the client is registered.
        unsafe { ffi::ib_unregister_client(self.client.get()) };
        T::slot().0.store(null_mut(), Release);
    }
}
