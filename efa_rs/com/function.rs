// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The PCI function of a device, and the ways to reset and stop it.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    bound::BoundDevice,
    health::Cause,
    reset::reset, //
};
use crate::{
    hw::regs::{
        ControllerVersion,
        DevSts,
        Register,
        ResetReason,
        Version, //
    },
    sys::{
        self,
        log,
        pci::Channel,
        pci_config::{
            self,
            Configuration, //
        }, //
    },
};

/// The oldest version of the admin interface that this driver supports.
const MIN_VERSION: Version = Version { major: 0, minor: 1 };

/// The oldest controller that this driver supports: major, minor and subminor version.
const MIN_CONTROLLER_VERSION: (u8, u8, u8) = (0, 0, 1);

/// Value read from a register if the device is gone.
const ALL_ONES: u32 = u32::MAX;

/// A PCI function. The stop lock guards it.
pub(super) struct Function<'bound> {
    device: Arc<BoundDevice<'bound>>,
    configuration: Configuration<'bound>,
    /// The version of the admin interface, if it was read since the last reset.
    version: Option<Version>,
    /// Whether the device was reset, and not used since. If not, it is reset before its next use.
    pub(super) is_fresh: bool,
    /// Whether the device was halted because all resets failed. It may resume DMA as soon as it is
    /// a bus master.
    is_suspect: bool,
}

impl<'bound> Function<'bound> {
    /// Takes over a function. `was_left_halted`: the previous binding left it halted.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(device: &Arc<BoundDevice<'bound>>, was_left_halted: bool) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            configuration: Configuration::new(device.pdev)?,
            version: None,
            is_fresh: false,
            is_suspect: was_left_halted,
        })
    }

    /// Resets the device if it was used since its last reset, and returns the version of its admin
    /// interface.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the driver may not use the function.
    /// - [`EOPNOTSUPP`] if the device is too old.
    /// - Those of a reset and of reading registers.
    pub(super) fn prepare(&mut self) -> Result<Version> {
        self.device.check_access()?;
        if !self.is_fresh {
            self.reset(ResetReason::Normal)?;
        }
        let version = match self.version {
            Some(version) => version,
            None => self.identify()?,
        };
        self.version = Some(version);
        Ok(version)
    }

    /// Reads the device's versions, and returns that of its admin interface.
    fn identify(&self) -> Result<Version> {
        let registers = &self.device.registers;
        let version = Version::from_raw(registers.read(Register::Version)?);
        if version < MIN_VERSION {
            dev_err!(
                self.device.dev(),
                "The device has admin API {}.{}, which is too old\n",
                version.major,
                version.minor
            );
            return Err(EOPNOTSUPP);
        }

        let controller = ControllerVersion::from_raw(registers.read(Register::ControllerVersion)?);
        if (controller.major, controller.minor, controller.subminor) < MIN_CONTROLLER_VERSION {
            dev_err!(
                self.device.dev(),
                "The device's controller has version {}.{}.{}, which is too old\n",
                controller.major,
                controller.minor,
                controller.subminor
            );
            return Err(EOPNOTSUPP);
        }
        Ok(version)
    }

    /// Resets the device. Afterwards it only writes responses of register reads to memory.
    ///
    /// Registers are read by DMA. If all resets failed when the device was halted, it becomes a bus
    /// master only after an FLR, if supported. It remains one only if the reset succeeds.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device was halted and is not present.
    /// - Those of [`reset`].
    /// - Those of `pcie_flr` if the device was halted and the FLR fails.
    fn reset(&mut self, reason: ResetReason) -> Result {
        let pdev = self.device.pdev;
        self.configuration.restore_if_lost();
        if self.is_suspect {
            self.device.isolate();
            // The FLR would wait a minute for an absent device.
            if !sys::pci::is_present(pdev) {
                return Err(ENODEV);
            }
            pci_config::function_level_reset(pdev)?;
        }
        pci_config::set_master(pdev);
        reset(self.device.dev(), &self.device.registers, reason).inspect_err(|_| {
            if self.is_suspect {
                self.device.isolate();
            }
        })?;
        // The reset may have changed the firmware.
        self.version = None;
        self.is_fresh = true;
        if self.is_suspect {
            self.is_suspect = false;
            pci_config::mark_halted(pdev, false);
        }
        Ok(())
    }

    /// Stops the device, whose session must not run any more: by a reset, else by an FLR and a
    /// reset, else by disabling its DMA. Returns whether it was reset or is gone.
    ///
    /// An FLR alone is not trusted. A device so broken that it needs one might resume DMA as soon
    /// as it is a bus master again.
    pub(super) fn stop(&mut self, reason: ResetReason) -> bool {
        self.is_fresh = false;
        match self.device.channel() {
            // A removed device does not answer. A working device may fail to answer once.
            Channel::Works if sys::pci::is_present(self.device.pdev) => {
                for _ in 0..2 {
                    if self.reset(reason).is_ok() {
                        return true;
                    }
                    self.is_suspect = true;
                }
                let what = "The device could not be reset; its DMA is disabled";
                log::failed(self.device.dev(), what, &EIO);
            }
            // The bus resets a frozen one next, or else gives it up. Until then only its
            // configuration may be accessed.
            Channel::Works | Channel::IsFrozen => (),
            Channel::IsGone => return true,
        }
        self.is_suspect = true;
        self.device.isolate();
        false
    }

    /// Returns the fault of a device that reports a fatal error or can't be read. A device that the
    /// bus has isolated is not read: the bus has the driver [stop](Self::stop) it next.
    pub(super) fn find_fault(&self) -> Option<Cause> {
        if self.device.channel() == Channel::IsFrozen {
            return None;
        }
        match self.device.registers.read(Register::DevSts) {
            Err(_) | Ok(ALL_ONES) => Some(Cause::RegisterTimeout),
            Ok(status) if DevSts::from_raw(status).fatal_error => Some(Cause::FatalError),
            Ok(_) => None,
        }
    }

    /// Ends the use of the function and disables the device's DMA.
    pub(super) fn retire(&self) {
        // A device that was not reset may still answer a read, and use memory in quarantine.
        self.device.isolate();
        // The core has set the mark with MSI-X. For a kernel that kexec starts, it has to be right.
        pci_config::mark_halted(self.device.pdev, self.is_suspect);
    }
}
