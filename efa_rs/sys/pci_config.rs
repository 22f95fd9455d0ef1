// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The configuration of a PCI function: memory decoding, bus mastering, what is lost without power,
//! and reset.
//!
//! To be replaced once [`kernel::pci`] can save and restore a configuration, reset a function, and
//! undo `enable_device_mem` and `set_master`.

use core::ptr::NonNull;

use kernel::{
    bindings,
    device::{
        Bound,
        Core, //
    },
    error::to_result,
    ffi::c_int,
    pci,
    prelude::*, //
};

use super::pci::as_raw;

/// Enables bus mastering, so that the function can access memory.
pub(crate) fn set_master(pdev: &pci::Device<Bound>) {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`, which is bound to this driver.
    unsafe { bindings::pci_set_master(as_raw(pdev)) }
}

/// Disables bus mastering, so that the function can't access memory.
pub(crate) fn clear_master(pdev: &pci::Device<Bound>) {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`, which is bound to this driver.
    unsafe { bindings::pci_clear_master(as_raw(pdev)) }
}

/// Marks the function, which is no bus master, as not reset, or removes the mark. The mark is the
/// INTx disable bit: the function uses MSI-X only.
pub(crate) fn mark_halted(pdev: &pci::Device<Bound>, is_halted: bool) {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`, whose configuration is its driver's.
    unsafe { bindings::pci_intx(as_raw(pdev), c_int::from(!is_halted)) }
}

/// Returns the command register of the function.
fn command(pdev: &pci::Device<Bound>) -> u32 {
    let mut command = 0;
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    unsafe {
        bindings::pci_read_config_word(as_raw(pdev), bindings::PCI_COMMAND as c_int, &mut command);
    }
    command.into()
}

/// Resets the function by FLR if it supports that, and restores its configuration. Afterwards it is
/// idle.
///
/// # Errors
///
/// - `ENOTTY` if the function was inaccessible, or is not ready a minute after the FLR.
/// - Those of `pcie_flr`.
pub(crate) fn function_level_reset(pdev: &pci::Device<Bound>) -> Result {
    let raw = as_raw(pdev);
    // SAFETY: `raw` is a valid `struct pci_dev`. This only checks whether FLR is supported.
    if unsafe { bindings::pcie_reset_flr(raw, true) } != 0 {
        return Ok(());
    }
    // Accesses by userspace wait until the FLR is over. If the bus has locked them out, to reset the
    // function next, it waits for this driver.
    // SAFETY: `raw` is a valid `struct pci_dev`.
    let is_locked = unsafe { bindings::pci_cfg_access_trylock(raw) };
    // SAFETY: This driver may change the saved state of the function, which is bound to it.
    unsafe { bindings::pci_save_state(raw) };
    // SAFETY: This driver may reset the function, which is bound to it.
    let result = to_result(unsafe { bindings::pcie_reset_flr(raw, false) });
    // SAFETY: The configuration that is written is the function's own, which was saved above.
    unsafe { bindings::pci_restore_state(raw) };
    if is_locked {
        // SAFETY: The lock was taken above.
        unsafe { bindings::pci_cfg_access_unlock(raw) };
    }
    result
}

/// A function whose memory decoding is enabled; disabled when dropped.
pub(crate) struct Enabled<'bound> {
    pdev: &'bound pci::Device<Bound>,
    /// Whether the function was [left halted](mark_halted) by its previous driver.
    pub(crate) was_left_halted: bool,
}

impl<'bound> Enabled<'bound> {
    /// Enables memory decoding.
    ///
    /// # Errors
    ///
    /// Those of `pci_enable_device_mem`.
    pub(crate) fn new(pdev: &'bound pci::Device<Core<'_>>) -> Result<Self> {
        let marks = bindings::PCI_COMMAND_INTX_DISABLE | bindings::PCI_COMMAND_MASTER;
        let command = command(pdev);
        // A failed read returns all bits; such a function may have the mark.
        let was_left_halted =
            command == u32::from(u16::MAX) || command & marks == bindings::PCI_COMMAND_INTX_DISABLE;
        pdev.enable_device_mem()?;
        if was_left_halted {
            // The core may have removed the mark, which is valid until a reset succeeds.
            mark_halted(pdev, true);
        }
        Ok(Self {
            pdev,
            was_left_halted,
        })
    }
}

impl Drop for Enabled<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is bound, and was enabled by `new`.
        unsafe { bindings::pci_disable_device(as_raw(self.pdev)) }
    }
}

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
