// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State of a device that exists from bind to unbind and needs no stop lock.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    pci,
    prelude::*,
    sync::Arc, //
};

use super::{
    quarantine::Quarantine,
    registers::{
        Registers,
        REGISTERS_SIZE, //
    },
    statistics::Statistics, //
};
use crate::{
    hw,
    sys::{
        self,
        atomic::{
            AtomicBool,
            AtomicU32,
            Relaxed, //
        },
        attach::Binding,
        log::Limited,
        mmio,
        pci::Channel,
        pci_driver::Wakers, //
    },
};

/// Limits on the messages that a device can cause, one for each kind. They outlive sessions, so that
/// a device which is reset often does not log more.
#[pin_data]
pub(super) struct Messages<'bound> {
    /// Commands that fail, but for those without a completion.
    #[pin]
    pub(super) commands: Limited<'bound>,
    /// Completions that are late or missing.
    #[pin]
    pub(super) late: Limited<'bound>,
    /// Completions that are ignored.
    #[pin]
    pub(super) ignored: Limited<'bound>,
    /// Asynchronous events.
    #[pin]
    pub(super) events: Limited<'bound>,
    /// Event queues and interrupts.
    #[pin]
    pub(super) queues: Limited<'bound>,
}

impl<'bound> Messages<'bound> {
    fn new(dev: &'bound Device) -> impl PinInit<Self> + use<'bound> {
        pin_init!(Self {
            commands <- Limited::new(dev),
            late <- Limited::new(dev),
            ignored <- Limited::new(dev),
            events <- Limited::new(dev),
            queues <- Limited::new(dev),
        })
    }
}

#[pin_data]
pub(crate) struct BoundDevice<'bound> {
    pub(super) binding: Binding<'bound>,
    pub(crate) pdev: &'bound pci::Device<Bound>,
    #[pin]
    pub(super) registers: Registers<'bound>,
    #[pin]
    pub(super) quarantine: Quarantine<'bound>,
    pub(crate) statistics: Arc<Statistics>,
    pub(super) wakers: Wakers,
    #[pin]
    pub(super) messages: Messages<'bound>,
    /// Width of the device's DMA addresses in bits.
    pub(super) address_width: AtomicU32,
    /// Whether the driver's access to the function is revoked.
    is_revoked: AtomicBool,
    /// Whether the bus has given the function to the driver while its state was frozen. The bus
    /// changes that state only if its own recovery succeeds, and not for another reset or binding.
    ignores_frozen: AtomicBool,
}

impl<'bound> BoundDevice<'bound> {
    /// Reserves and maps the registers.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device has no registers.
    /// - [`EBUSY`] if another driver uses them.
    /// - [`EFAULT`] if they can't be mapped.
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        pdev: &'bound pci::Device<Bound>,
        binding: Binding<'bound>,
        name: &'static CStr,
        wakers: Wakers,
    ) -> Result<Arc<Self>> {
        let dev = binding.dev();
        let bar = if mmio::is_memory(pdev, hw::pci::REGISTER_BAR) {
            pdev.iomap_region_sized::<REGISTERS_SIZE>(hw::pci::REGISTER_BAR.into(), name)
                .map_err(|error| if error == EBUSY { EBUSY } else { EFAULT })
        } else {
            Err(ENODEV)
        };
        let bar = bar
            .inspect_err(|error| sys::log::failed(dev, "The registers are not available", error))?;
        let statistics = Arc::new(Statistics::default(), GFP_KERNEL)?;
        Arc::pin_init(
            try_pin_init!(Self {
                binding,
                pdev,
                registers <- Registers::new(dev, bar)?,
                quarantine <- Quarantine::new(dev, &statistics),
                statistics,
                wakers,
                messages <- Messages::new(dev),
                address_width: AtomicU32::new(0),
                is_revoked: AtomicBool::new(false),
                ignores_frozen: AtomicBool::new(sys::pci::channel(pdev) == Channel::IsFrozen),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the size of the device's DMA address space in bytes.
    #[cfg(kverbs)]
    pub(crate) fn memory_size(&self) -> u64 {
        1u64.checked_shl(self.address_width.load(Relaxed))
            .unwrap_or(u64::MAX)
    }

    pub(crate) fn dev(&self) -> &'bound Device<Bound> {
        self.binding.dev()
    }

    /// Returns the state of the function.
    pub(super) fn channel(&self) -> Channel {
        match sys::pci::channel(self.pdev) {
            Channel::IsFrozen if self.ignores_frozen.load(Relaxed) => Channel::Works,
            channel => channel,
        }
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Relaxed)
    }

    /// Checks that the driver may use the function.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if access is revoked, or if the bus has isolated or lost the function.
    pub(super) fn check_access(&self) -> Result {
        if self.is_revoked() || self.channel() != Channel::Works {
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Revokes the driver's access to the function until [`Self::restore_access`].
    pub(super) fn revoke_access(&self) {
        self.is_revoked.store(true, Relaxed);
        self.ignores_frozen.store(false, Relaxed);
    }

    pub(super) fn restore_access(&self) {
        let is_frozen = sys::pci::channel(self.pdev) == Channel::IsFrozen;
        self.ignores_frozen.store(is_frozen, Relaxed);
        self.is_revoked.store(false, Relaxed);
    }

    /// Disables the device's DMA, unless the bus has lost the device.
    pub(super) fn isolate(&self) {
        if self.channel() != Channel::IsGone {
            sys::pci_config::clear_master(self.pdev);
        }
    }
}
