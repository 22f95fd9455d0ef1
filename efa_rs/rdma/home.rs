// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Name and network namespace of a device, kept from one registration to the next.

use core::ptr::NonNull;

use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    ffi::{
        c_char,
        c_int, //
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
};

use super::{
    attr::check_name,
    order::Place, //
};
use crate::ffi;

/// A name as the core stores it, with a terminating zero byte.
type Name = [c_char; ffi::IB_DEVICE_NAME_MAX as usize];

/// Name and network namespace of a device that is registered repeatedly.
///
/// An administrator may rename the device, or move it to a network namespace. Its unregistration
/// discards both, and the next registration restores them.
#[pin_data]
pub(crate) struct Home {
    pattern: &'static CStr,
    /// Cookie of the network namespace; 0, which is no cookie, if the device was never registered.
    net_cookie: Atomic<u64>,
    #[pin]
    place: Mutex<Place>,
    /// Name of the device; empty if it was never registered.
    #[pin]
    name: Mutex<Name>,
}

impl Home {
    /// Makes the home of a device that was never registered, in the initial network namespace. The
    /// core replaces `%d` in `pattern` by a number.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is another `%` in `pattern`, which the core reads as a format.
    /// - [`ENOMEM`] if there is no memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::rdma::Home;
    ///
    /// let home = Home::new(c"null%d")?;
    /// # let _ = home;
    /// # Ok::<(), Error>(())
    /// ```
    pub(crate) fn new(pattern: &'static CStr) -> Result<Arc<Self>> {
        check_name(pattern)?;
        Arc::pin_init(
            pin_init!(Self {
                pattern,
                net_cookie: Atomic::new(0),
                place <- new_mutex!(Place::new()),
                name <- new_mutex!([0; ffi::IB_DEVICE_NAME_MAX as usize]),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the network namespace, or the initial one if it no longer exists.
    pub(super) fn net(&self) -> Net {
        let cookie = self.net_cookie.load(Relaxed);
        // SAFETY: The function can be called with any number.
        let net = unsafe { ffi::efa_get_net(cookie) };
        // INVARIANT: The function has taken a reference.
        // SAFETY: The function returns a namespace, never null.
        Net(unsafe { NonNull::new_unchecked(net) })
    }

    /// Calls `register` with the previous name of the device, which userspace must not change. If it had
    /// none, or the name is in use or contains `%`, calls `register` with the pattern for new devices.
    fn with_name(
        &self,
        register: impl Fn(*const c_char, ffi::rdma_nl_name_assign_type) -> c_int,
    ) -> c_int {
        let name = *self.name.lock();
        // The core treats a name with this character as a pattern.
        if name[0] != 0 && !name.contains(&(b'%' as c_char)) {
            // Otherwise udev would rename the device as it renames new ones.
            let by_user = ffi::rdma_nl_name_assign_type_RDMA_NAME_ASSIGN_TYPE_USER;
            let error = register(name.as_ptr(), by_user);
            if error != ENFILE.to_errno() {
                return error;
            }
        }
        let unknown = ffi::rdma_nl_name_assign_type_RDMA_NAME_ASSIGN_TYPE_UNKNOWN;
        register(self.pattern.as_char_ptr(), unknown)
    }

    /// Registers a device below `parent`, as the previous one or with a name from the pattern. Returns 0 or a
    /// negative errno.
    ///
    /// # Safety
    ///
    /// As for `ib_register_device`.
    pub(super) unsafe fn register(
        &self,
        device: *mut ffi::ib_device,
        parent: &Device<Bound>,
        dma_device: *mut bindings::device,
    ) -> c_int {
        if !self.place.lock().take() {
            dev_warn!(parent, "The number of its device file may have changed\n");
        }
        let error = self.with_name(|name, assigned| {
            // SAFETY: The caller guarantees that the device is valid, and not registered yet.
            unsafe { (*device).name_assign_type = assigned };
            // SAFETY: The caller guarantees that the device can be registered.
            unsafe { ffi::ib_register_device(device, name, dma_device) }
        });
        let mut place = self.place.lock();
        place.end_turn();
        if error != 0 {
            place.leave();
        }
        error
    }

    /// Keeps the place of a device that is about to be unregistered.
    pub(super) fn leave(&self) {
        self.place.lock().leave();
    }

    /// Records the network namespace of a device.
    ///
    /// # Safety
    ///
    /// `device` must be registered, and must not be moved to another namespace meanwhile.
    pub(super) unsafe fn note_net(&self, device: *mut ffi::ib_device) {
        // SAFETY: The caller guarantees that the device is valid, and its namespace as well.
        let cookie = unsafe { ffi::efa_net_cookie(device) };
        self.net_cookie.store(cookie, Relaxed);
    }

    /// Records the name of a device.
    ///
    /// # Safety
    ///
    /// `device` must have been registered, and must not be renamed meanwhile.
    pub(super) unsafe fn note_name(&self, device: *mut ffi::ib_device) {
        // SAFETY: The caller guarantees that the device is valid, and that its name does not change.
        *self.name.lock() = unsafe { (*device).name };
    }
}

/// A reference to a network namespace.
///
/// # Invariants
///
/// The reference is owned.
pub(super) struct Net(NonNull<bindings::net>);

impl Net {
    /// Returns the core's structure, which is valid as long as this.
    pub(super) fn as_raw(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is owned.
        unsafe { ffi::efa_put_net(self.0.as_ptr()) }
    }
}
