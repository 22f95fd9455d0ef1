// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device from its binding to its driver on: what outlives its resets.

use kernel::{
    device::{
        Bound,
        Core,
        Device, //
    },
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use super::{
    lent::Epoch,
    quarantine::Quarantine,
    registers::{
        Registers,
        REGISTERS_SIZE, //
    },
    reset::reset,
    statistics::Statistics, //
};
use crate::{
    hw::{
        self,
        regs::{
            Caps,
            ControllerVersion,
            Register,
            ResetReason,
            Version, //
        },
    },
    sys::{
        self,
        attach::Binding,
        errno::eopnotsupp,
        log,
        mmio,
        pci_config::Configuration,
        work::Waker, //
    },
};

/// The oldest version of the admin interface that this driver speaks.
const MIN_VERSION: Version = Version { major: 0, minor: 1 };

/// The oldest controller that this driver works with: major, minor and subminor version.
const MIN_CONTROLLER_VERSION: (u8, u8, u8) = (0, 0, 1);

/// The version of a device that was not asked since its reset: older than any.
const UNKNOWN: u32 = 0;

/// A device that is bound to the driver.
pub(crate) struct Controller<'bound> {
    binding: Binding<'bound>,
    pdev: &'bound pci::Device<Bound>,
    configuration: Configuration<'bound>,
    registers: Arc<Registers<'bound>>,
    quarantine: Arc<Quarantine<'bound>>,
    statistics: Arc<Statistics>,
    waker: Waker,
    /// Whether the device was reset, and not used since.
    is_fresh: Atomic<bool>,
    /// The version of the admin interface, or [`UNKNOWN`].
    version: Atomic<u32>,
    /// Bits of the addresses that the device uses.
    address_width: Atomic<u32>,
}

impl<'bound> Controller<'bound> {
    /// Takes over an enabled device: resets it, and sets the width of its DMA addresses.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device has no registers.
    /// - [`EBUSY`] if somebody else uses them.
    /// - [`EFAULT`] if they can't be mapped.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of [`Self::prepare`].
    pub(crate) fn new(
        pdev: &'bound pci::Device<Core<'_>>,
        binding: Binding<'bound>,
        name: &'static CStr,
        waker: Waker,
    ) -> Result<Arc<Self>> {
        let dev: &Device<Bound> = pdev.as_ref();

        let bar = map_registers(pdev, name)
            .inspect_err(|error| log::failed(dev, "The registers are not available", error))?;
        let statistics = Arc::new(Statistics::default(), GFP_KERNEL)?;
        let controller = Arc::new(
            Self {
                binding,
                pdev,
                configuration: Configuration::new(pdev)?,
                registers: Registers::new(dev, bar)?,
                quarantine: Quarantine::new(dev, &statistics)?,
                statistics,
                waker,
                is_fresh: Atomic::new(false),
                version: Atomic::new(UNKNOWN),
                address_width: Atomic::new(0),
            },
            GFP_KERNEL,
        )?;

        controller.prepare()?;
        let width = Caps::from_raw(controller.registers.read(Register::Caps)?).dma_addr_width;
        sys::dma::set_address_width(pdev, width).inspect_err(|error| {
            dev_err!(
                dev,
                "DMA addresses of {} bits can't be used ({:?})\n",
                width,
                error
            );
        })?;
        controller.address_width.store(u32::from(width), Relaxed);
        Ok(controller)
    }

    /// Returns how many bytes the device can address.
    pub(crate) fn memory_size(&self) -> u64 {
        1u64.checked_shl(self.address_width.load(Relaxed))
            .unwrap_or(u64::MAX)
    }

    /// Returns the binding.
    pub(crate) fn binding(&self) -> Binding<'bound> {
        self.binding
    }

    /// Returns the PCI function.
    pub(crate) fn pdev(&self) -> &'bound pci::Device<Bound> {
        self.pdev
    }

    /// Returns the device, for messages.
    pub(crate) fn dev(&self) -> &'bound Device<Bound> {
        self.pdev.as_ref()
    }

    /// Returns the registers.
    pub(super) fn registers(&self) -> &Arc<Registers<'bound>> {
        &self.registers
    }

    /// Returns where memory goes that the device may still use.
    pub(super) fn quarantine(&self) -> &Arc<Quarantine<'bound>> {
        &self.quarantine
    }

    /// Returns what is counted of the device.
    pub(crate) fn statistics(&self) -> &Arc<Statistics> {
        &self.statistics
    }

    /// Returns who looks after the device when it is woken.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Says that the device has to be reset before it is used next, as something was done to it.
    pub(super) fn needs_reset(&self) {
        self.is_fresh.store(false, Relaxed);
    }

    /// Makes sure that the device was reset and not used since, and returns the version of its admin
    /// interface.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the device is too old.
    /// - Those of a reset and of reading registers.
    pub(super) fn prepare(&self) -> Result<Version> {
        if !self.is_fresh.load(Relaxed) {
            self.reset(ResetReason::Normal)?;
            self.quarantine.release();
        }
        match self.version.load(Relaxed) {
            UNKNOWN => {
                let version = self.identify()?;
                self.version.store(version.into_raw(), Relaxed);
                Ok(version)
            }
            version => Ok(Version::from_raw(version)),
        }
    }

    /// Reads the device's versions, and returns that of its admin interface.
    fn identify(&self) -> Result<Version> {
        let version = Version::from_raw(self.registers.read(Register::Version)?);
        if version < MIN_VERSION {
            dev_err!(
                self.dev(),
                "The device speaks admin API {}.{}, which is too old\n",
                version.major,
                version.minor
            );
            return Err(eopnotsupp());
        }

        let controller =
            ControllerVersion::from_raw(self.registers.read(Register::ControllerVersion)?);
        if (controller.major, controller.minor, controller.subminor) < MIN_CONTROLLER_VERSION {
            dev_err!(
                self.dev(),
                "The device's controller has version {}.{}.{}, which is too old\n",
                controller.major,
                controller.minor,
                controller.subminor
            );
            return Err(eopnotsupp());
        }
        Ok(version)
    }

    /// Resets the device, after which it uses no memory but that of answers.
    ///
    /// # Errors
    ///
    /// Those of [`reset`].
    fn reset(&self, reason: ResetReason) -> Result {
        self.configuration.restore_if_lost();
        sys::pci::set_master(self.pdev);
        reset(self.dev(), &self.registers, reason)?;
        // Its firmware may be another one now.
        self.version.store(UNKNOWN, Relaxed);
        self.is_fresh.store(true, Relaxed);
        Ok(())
    }

    /// Stops the device, so that it uses nothing of the session whose epoch this is any more: by a
    /// reset, else by one after a reset of the bus, else by taking its access to memory away.
    ///
    /// A reset of the bus alone is not trusted: a device that is so broken that it needs one might go on
    /// where it was as soon as it is a bus master again.
    ///
    /// Interrupt handlers are silent by now, as they ring doorbells, and during a reset the device takes
    /// none.
    pub(super) fn stop(&self, reason: ResetReason, epoch: &Epoch<'_>) {
        let was_reset = !sys::pci::is_present(self.pdev)
            || self.reset(reason).is_ok()
            || sys::pci::function_level_reset(self.pdev)
                .and_then(|()| self.reset(reason))
                .is_ok();
        if !was_reset {
            log::failed(
                self.dev(),
                "The device could not be reset; its DMA is disabled",
                &EIO,
            );
            self.isolate();
        }
        epoch.end(was_reset);
        if was_reset {
            // Not before the epoch had its end: whoever takes back what is in there waits for that, with a lock
            // that giving it back takes.
            self.quarantine.release();
        }
    }

    /// Takes the device's access to memory away.
    pub(super) fn isolate(&self) {
        sys::pci::clear_master(self.pdev);
    }
}

impl Drop for Controller<'_> {
    fn drop(&mut self) {
        // A device that was not reset may still answer a read, and use what is in quarantine: it must not
        // be able to when their memory is given back, which comes next. It is not left to the drop of the
        // quarantine, as what is in there may keep it.
        self.isolate();
        self.quarantine.release();
    }
}

/// Reserves and maps the BAR of the registers.
fn map_registers<'bound>(
    pdev: &'bound pci::Device<Bound>,
    name: &'static CStr,
) -> Result<pci::Bar<'bound, REGISTERS_SIZE>> {
    if !mmio::is_memory(pdev, hw::pci::REGISTER_BAR) {
        return Err(ENODEV);
    }
    pdev.iomap_region_sized(hw::pci::REGISTER_BAR.into(), name)
        .map_err(|error| if error == EBUSY { EBUSY } else { EFAULT })
}
