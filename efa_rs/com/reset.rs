// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Resetting the device, after which it uses no memory of the host.

use kernel::{
    device::Device,
    io::poll::read_poll_timeout,
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
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
    sys::{
        self,
        errno::etime,
        log::{
            self,
            Hex, //
        },
    },
};

/// The unit of [`Caps::reset_timeout`], in milliseconds.
const RESET_TIMEOUT_UNIT_MS: i64 = 100;

/// How long to sleep between looks at the state of a reset.
const RESET_POLL_INTERVAL: Delta = Delta::from_millis(1);

/// Resets the device.
///
/// # Errors
///
/// - [`EINVAL`] if the device is not ready for a reset, or says that a reset takes no time.
/// - [`ETIME`] if a reset does not start or does not end in the time that the device has given.
/// - Those of [`Registers::read`].
pub(crate) fn reset(dev: &Device, registers: &Registers, reason: ResetReason) -> Result {
    let status = DevSts::from_raw(registers.read(Register::DevSts)?);
    if !status.ready {
        dev_err!(
            dev,
            "The device is not ready to be reset ({})\n",
            Hex(status.into_raw())
        );
        return Err(EINVAL);
    }

    let caps = Caps::from_raw(registers.read(Register::Caps)?);
    if caps.reset_timeout == 0 {
        dev_err!(dev, "The device gives no time for a reset\n");
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
        .inspect_err(|error| log::failed(dev, "A reset did not start", error))?;

    registers.write(Register::DevCtl, DevCtl::default().into_raw());
    wait_for(registers, false, timeout)
        .inspect_err(|error| log::failed(dev, "A reset did not end", error))
}

/// Waits until a reset is, or is not, in progress.
fn wait_for(registers: &Registers, in_progress: bool, timeout: Delta) -> Result {
    read_poll_timeout(
        || Ok(DevSts::from_raw(registers.read(Register::DevSts)?)),
        |status| status.reset_in_progress == in_progress,
        RESET_POLL_INTERVAL,
        timeout,
    )
    .map(|_| ())
    .map_err(|error| if error == ETIMEDOUT { etime() } else { error })
}

/// Resets the device when dropped.
///
/// Whatever memory the device may use must be dropped after this.
pub(super) struct ResetOnDrop {
    pdev: ARef<pci::Device>,
    registers: Arc<Registers>,
    reason: ResetReason,
}

impl ResetOnDrop {
    /// Resets the device with `reason` when dropped.
    pub(super) fn new(pdev: &pci::Device, registers: Arc<Registers>, reason: ResetReason) -> Self {
        Self {
            pdev: pdev.into(),
            registers,
            reason,
        }
    }

    /// Changes the reason.
    pub(super) fn set_reason(&mut self, reason: ResetReason) {
        self.reason = reason;
    }

    /// Resets the device now, or, where it refuses, takes its access to memory away.
    pub(super) fn stop_device(&self, reason: ResetReason) {
        let dev: &Device = (*self.pdev).as_ref();

        if let Err(error) = reset(dev, &self.registers, reason) {
            log::failed(
                dev,
                "The device could not be reset; its DMA is disabled",
                &error,
            );
            sys::pci::clear_master(&self.pdev);
        }
    }
}

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        self.stop_device(self.reason);
    }
}
