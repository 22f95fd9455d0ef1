// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State of a device that exists from bind to unbind and needs no stop lock.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    pci,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use super::{
    admin_queue::AdminQueue,
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

/// Limit on the start of a session: twice the longest timeout of a command.
const START_TIMEOUT: Delta = Delta::from_millis(60_000);

/// A device that is bound to the driver.
#[pin_data]
pub(crate) struct BoundDevice<'bound> {
    binding: Binding<'bound>,
    pdev: &'bound pci::Device<Bound>,
    registers: Arc<Registers<'bound>>,
    quarantine: Arc<Quarantine<'bound>>,
    statistics: Arc<Statistics>,
    wakers: Wakers,
    /// Messages of event queues.
    #[pin]
    messages: Limited<'bound>,
    /// Width of the device's DMA addresses in bits.
    address_width: AtomicU32,
    /// Whether the driver's access to the function is revoked.
    is_revoked: AtomicBool,
    /// Whether the bus has given the function to the driver while its state was frozen. The bus
    /// changes that state only if its own recovery succeeds, and not for another reset or binding.
    ignores_frozen: AtomicBool,
    /// The admin queue of a session that is being started, and since when.
    #[pin]
    starting: Mutex<Option<(Arc<AdminQueue<'bound>>, Instant<Monotonic>)>>,
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
        let dev: &Device<Bound> = pdev.as_ref();
        let bar = map_registers(pdev, name)
            .inspect_err(|error| sys::log::failed(dev, "The registers are not available", error))?;
        let statistics = Arc::new(Statistics::default(), GFP_KERNEL)?;
        Arc::pin_init(
            try_pin_init!(Self {
                binding,
                pdev,
                registers: Registers::new(dev, bar)?,
                quarantine: Quarantine::new(dev, &statistics)?,
                statistics,
                wakers,
                messages <- Limited::new(dev),
                address_width: AtomicU32::new(0),
                is_revoked: AtomicBool::new(false),
                ignores_frozen: AtomicBool::new(sys::pci::channel(pdev) == Channel::IsFrozen),
                starting <- new_mutex!(None),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Sets the width of the device's DMA addresses.
    pub(super) fn set_address_width(&self, bits: u8) {
        self.address_width.store(bits.into(), Relaxed);
    }

    /// Returns the size of the device's DMA address space in bytes.
    #[cfg(kverbs)]
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

    /// Returns the quarantine of memory that the device may still use.
    pub(super) fn quarantine(&self) -> &Arc<Quarantine<'bound>> {
        &self.quarantine
    }

    /// Returns the device's counters.
    pub(crate) fn statistics(&self) -> &Arc<Statistics> {
        &self.statistics
    }

    /// Returns the wakers of the work items.
    pub(super) fn wakers(&self) -> &Wakers {
        &self.wakers
    }

    /// Returns the messages of event queues, which share one rate limit.
    pub(super) fn messages(&self) -> &Limited<'bound> {
        &self.messages
    }

    /// Returns the state of the function.
    pub(super) fn channel(&self) -> Channel {
        match sys::pci::channel(self.pdev) {
            Channel::IsFrozen if self.ignores_frozen.load(Relaxed) => Channel::Works,
            channel => channel,
        }
    }

    /// Returns whether the driver's access to the function is revoked.
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

    /// Has [`Self::revoke_access`] close the admin queue of a session that is being started.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check_access`].
    pub(super) fn begin_start(&self, admin: &Arc<AdminQueue<'bound>>) -> Result {
        *self.starting.lock() = Some((admin.clone(), Instant::now()));
        self.check_access()
    }

    /// Closes the admin queue of a session whose start has taken longer than [`START_TIMEOUT`].
    pub(super) fn check_start(&self) {
        let mut starting = self.starting.lock();
        if let Some((admin, _)) = starting.take_if(|(_, at)| at.elapsed() > START_TIMEOUT) {
            dev_err!(self.dev(), "The device takes too long to start\n");
            admin.close();
        }
    }

    /// Undoes [`Self::begin_start`].
    pub(super) fn end_start(&self) {
        *self.starting.lock() = None;
    }

    /// Revokes the driver's access to the function until [`Self::restore_access`]. A session that
    /// is being started fails soon, as its admin queue is closed.
    pub(super) fn revoke_access(&self) {
        let mut starting = self.starting.lock();
        self.is_revoked.store(true, Relaxed);
        self.ignores_frozen.store(false, Relaxed);
        if let Some((admin, _)) = starting.take() {
            admin.close();
        }
    }

    /// Restores the driver's access to the function.
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
