// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI functions: what [`kernel::pci::Device`] lacks about their state.
//!
//! To be replaced by methods of it.

use kernel::{
    bindings,
    device::{
        Bound,
        DeviceContext, //
    },
    ffi::c_char,
    pci,
    prelude::*, //
};

/// Returns the C structure behind a PCI device.
pub(super) fn as_raw<Ctx: DeviceContext>(pdev: &pci::Device<Ctx>) -> *mut bindings::pci_dev {
    // CAST: `pci::Device` is a transparent wrapper of `Opaque<bindings::pci_dev>`.
    core::ptr::from_ref(pdev).cast_mut().cast()
}

/// State of a function as reported by the bus.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// The function can be used.
    Works,
    /// The bus has isolated it because of an error.
    IsFrozen,
    /// It has failed for good, or was removed.
    IsGone,
}

/// Returns the state of the function as reported by the bus.
pub(crate) fn channel(pdev: &pci::Device<Bound>) -> Channel {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    match unsafe { error_state(as_raw(pdev)) } {
        bindings::pci_channel_io_frozen => Channel::IsFrozen,
        bindings::pci_channel_io_perm_failure => Channel::IsGone,
        _ => Channel::Works,
    }
}

/// Returns the state of a function as C has it.
///
/// # Safety
///
/// `raw` must be a valid device.
pub(super) unsafe fn error_state(raw: *mut bindings::pci_dev) -> bindings::pci_channel_state_t {
    // SAFETY: The caller guarantees that the device is valid.
    let state = unsafe { &raw const (*raw).error_state };
    // SAFETY: The state is part of the valid device. The core writes it at any time, as a whole.
    unsafe { state.read_volatile() }
}

/// Returns whether the function still answers on its bus.
pub(crate) fn is_present(pdev: &pci::Device<Bound>) -> bool {
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    unsafe { bindings::pci_device_is_present(as_raw(pdev)) }
}

/// Sends a change uevent of the function to userspace, with `facts` of the form `NAME=value`.
pub(crate) fn announce(pdev: &pci::Device<Bound>, facts: &[&CStr; 2]) {
    let [first, second] = facts;
    let mut environment: [*mut c_char; 3] = [
        first.as_char_ptr().cast_mut(),
        second.as_char_ptr().cast_mut(),
        core::ptr::null_mut(),
    ];
    let action = bindings::kobject_action_KOBJ_CHANGE;
    // SAFETY: `as_raw` returns a valid `struct pci_dev`.
    let kobject = unsafe { &raw mut (*as_raw(pdev)).dev.kobj };
    // SAFETY: The object is that of a registered device. The texts, which the core only reads, are
    // valid during the call, and the list ends with null.
    unsafe { bindings::kobject_uevent_env(kobject, action, environment.as_mut_ptr()) };
}
