// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tracepoints, `efa:` in `perf trace` and bpftrace; `ffi/trace.h` has their fields.
//!
//! [`kernel::tracepoint`] supports only tracepoints that C declares in the kernel's own headers. To
//! be replaced by a way to declare tracepoints in a module.

use kernel::{
    device::Device,
    ffi::{
        c_char,
        c_uint, //
    },
    str::CStr,
    time::Delta, //
};

use super::device::as_raw;
use crate::ffi;

/// Returns whether commands are traced, so that their names and latencies are needed.
#[inline]
pub(crate) fn are_commands_traced() -> bool {
    // SAFETY: There is no precondition.
    unsafe { ffi::efa_trace_commands_enabled() }
}

/// Traces that a command was submitted to the device.
pub(crate) fn command_submitted(dev: &Device, opcode: &str, id: u16) {
    let (text, length) = parts(opcode.as_bytes());
    // SAFETY: The device is valid, and the text as long as given.
    unsafe { ffi::efa_trace_command_submitted(as_raw(dev), text, length, id) }
}

/// Traces that the device has completed a command.
pub(crate) fn command_completed(dev: &Device, opcode: &str, status: u8, latency: Delta) {
    let (text, length) = parts(opcode.as_bytes());
    let latency = latency.as_micros_ceil().max(0).unsigned_abs();
    // SAFETY: The device is valid, and the text as long as given.
    unsafe { ffi::efa_trace_command_completed(as_raw(dev), text, length, status, latency) }
}

/// Traces that the device has reported an asynchronous event.
pub(crate) fn event(dev: &Device, group: u16, syndrome: u16) {
    // SAFETY: The device is valid.
    unsafe { ffi::efa_trace_event(as_raw(dev), group, syndrome) }
}

/// Traces the reset of a device in use.
pub(crate) fn reset(dev: &Device, reason: &CStr) {
    let (text, length) = parts(reason.to_bytes());
    // SAFETY: The device is valid, and the text as long as given.
    unsafe { ffi::efa_trace_reset(as_raw(dev), text, length) }
}

/// Traces a change of a device's state.
pub(crate) fn state(dev: &Device, state: &CStr) {
    let (text, length) = parts(state.to_bytes());
    // SAFETY: The device is valid, and the text as long as given.
    unsafe { ffi::efa_trace_state(as_raw(dev), text, length) }
}

/// Returns a text as C functions take it, with its length.
fn parts(text: &[u8]) -> (*const c_char, c_uint) {
    // CAST: These texts are short names.
    (text.as_ptr().cast(), text.len() as c_uint)
}
