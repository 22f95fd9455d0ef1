// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Reset of the device, which afterwards uses host memory only for responses of register reads.

use kernel::{
    device::Device,
    io::poll::read_poll_timeout,
    prelude::*,
    time::Delta, //
};

use super::registers::Registers;
use crate::{
    hw::regs::{
        Caps,
        DevCtl,
        DevSts,
        Register,
        ResetReason, //
    },
    sys::log::{
        self,
        Hex, //
    },
};

/// The unit of [`Caps::reset_timeout`], in milliseconds.
const RESET_TIMEOUT_UNIT_MS: i64 = 100;

/// Interval at which the state of a reset is polled.
const RESET_POLL_INTERVAL: Delta = Delta::from_millis(1);

/// Resets the device.
///
/// # Errors
///
/// - [`EINVAL`] if the device is not ready for a reset, or announces that a reset takes no time.
/// - [`ETIME`] if a reset does not start or end within the timeout that the device announces.
/// - [`ENODEV`] if the device reports a fatal error after the reset.
/// - Those of [`Registers::read`].
pub(super) fn reset(dev: &Device, registers: &Registers<'_>, reason: ResetReason) -> Result {
    // A reset by the bus or a power loss may have cleared the address.
    registers.announce_response();
    let status = DevSts::from_raw(registers.read(Register::DevSts)?);
    if !status.ready {
        dev_err!(
            dev,
            "Device isn't ready, can't reset device ({})\n",
            Hex(status.into_raw())
        );
        return Err(EINVAL);
    }

    let caps = Caps::from_raw(registers.read(Register::Caps)?);
    if caps.reset_timeout == 0 {
        dev_err!(dev, "The device announces no timeout for a reset\n");
        return Err(EINVAL);
    }
    let timeout = Delta::from_millis(i64::from(caps.reset_timeout) * RESET_TIMEOUT_UNIT_MS);

    let control = DevCtl {
        dev_reset: true,
        reset_reason: reason.into(),
        ..DevCtl::default()
    };
    registers.write(Register::DevCtl, control.into_raw());
    registers.announce_response();
    wait_for(registers, true, timeout)
        .inspect_err(|error| log::failed(dev, "Reset indication didn't turn on", error))?;

    registers.write(Register::DevCtl, DevCtl::default().into_raw());
    let status = wait_for(registers, false, timeout)
        .inspect_err(|error| log::failed(dev, "Reset indication didn't turn off", error))?;
    if status.fatal_error {
        dev_err!(
            dev,
            "The device reports a fatal error after its reset ({})\n",
            Hex(status.into_raw())
        );
        return Err(ENODEV);
    }
    Ok(())
}

/// Waits until the status shows a reset as `in_progress` or not, and returns the status.
fn wait_for(registers: &Registers<'_>, in_progress: bool, timeout: Delta) -> Result<DevSts> {
    let read = || Ok(DevSts::from_raw(registers.read(Register::DevSts)?));
    let is_over = |status: &DevSts| status.reset_in_progress == in_progress;
    let result = read_poll_timeout(read, is_over, RESET_POLL_INTERVAL, timeout);
    if result.as_ref().is_err_and(|error| *error == ETIMEDOUT) {
        // The CPU may have run something else between the last poll and the look at the clock.
        return Some(read()?).filter(is_over).ok_or(ETIME);
    }
    result
}
