// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The configuration of a PCI function, which is lost without power.
//!
//! To be replaced once [`kernel::pci`] can save and restore it.

use core::ptr::NonNull;

use kernel::{
    bindings,
    device::Bound,
    pci,
    prelude::*, //
};

use super::pci::{
    as_raw,
    command, //
};

/// The configuration of a function, saved when its driver took the function over.
///
/// # Invariants
///
/// `state` was created by `pci_store_saved_state` for `pdev`, and is owned.
pub(crate) struct Configuration<'bound> {
    pdev: &'bound pci::Device<Bound>,
    state: NonNull<bindings::pci_saved_state>,
}

// SAFETY: The state is memory that any task may use and free.
unsafe impl Send for Configuration<'_> {}

// SAFETY: A shared reference only reads the state.
unsafe impl Sync for Configuration<'_> {}

impl<'bound> Configuration<'bound> {
    /// Saves the current configuration.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(pdev: &'bound pci::Device<Bound>) -> Result<Self> {
        let raw = as_raw(pdev);
        // SAFETY: The pointer is valid, and the driver of a function may change its saved state.
        unsafe { bindings::pci_save_state(raw) };
        // SAFETY: The pointer is valid. This only copies what was just saved.
        let state = unsafe { bindings::pci_store_saved_state(raw) };
        // INVARIANT: It was just created.
        Ok(Self {
            pdev,
            state: NonNull::new(state).ok_or(ENOMEM)?,
        })
    }

    /// Restores it if the function has lost power, and therefore decodes no memory.
    pub(crate) fn restore_if_lost(&self) {
        if command(self.pdev) & bindings::PCI_COMMAND_MEMORY != 0 {
            return;
        }
        let raw = as_raw(self.pdev);
        // SAFETY: By the type invariant the state is of this function. It becomes the saved state
        // of the function, which the driver may change.
        let result = unsafe { bindings::pci_load_saved_state(raw, self.state.as_ptr()) };
        if result == 0 {
            // SAFETY: The pointer is valid. The configuration that is written was just loaded, and
            // is the function's own.
            unsafe { bindings::pci_restore_state(raw) };
        }
    }
}

impl Drop for Configuration<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the state is owned; it was allocated by `kzalloc`.
        unsafe { bindings::kfree(self.state.as_ptr().cast()) }
    }
}
