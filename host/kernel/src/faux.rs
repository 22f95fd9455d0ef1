// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices of the faux bus.

use crate::{
    bindings,
    device::{self, Bound},
    error::{code::ENOMEM, Result},
    str::{CStr, CStrExt},
};

/// A device of the faux bus. It is always bound, and does no DMA.
pub struct Device(bindings::device);

// SAFETY: All tasks are in one thread.
unsafe impl Send for Device {}
// SAFETY: As above.
unsafe impl Sync for Device {}

impl AsRef<device::Device<Bound>> for Device {
    fn as_ref(&self) -> &device::Device<Bound> {
        // SAFETY: The device is valid, and bound until its registration ends.
        unsafe { device::Device::from_raw((&raw const self.0).cast_mut()) }
    }
}

/// An existing faux device. Its drop destroys it, and releases its resources.
pub struct Registration(Box<Device>);

impl Registration {
    /// Creates a device. The shim ignores the parent.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub fn new(name: &'static CStr, _parent: Option<&device::Device>) -> Result<Self> {
        if !sim::may_allocate() {
            return Err(ENOMEM);
        }
        let dev = bindings::device::new(name.as_char_ptr());
        Ok(Self(Box::new(Device(dev))))
    }
}

impl AsRef<Device> for Registration {
    fn as_ref(&self) -> &Device {
        &self.0
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.0 .0.release_resources();
    }
}
