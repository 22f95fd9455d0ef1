// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device from its binding to its driver on: what outlives its resets.

use core::ops::Deref;

use kernel::{
    device::{
        Bound,
        Core,
        Device, //
    },
    new_mutex,
    pci,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

use super::{
    admin_queue::AdminQueue,
    health::{
        self,
        Cause, //
    },
    lent::{
        Epoch,
        Halt, //
    },
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
        log,
        mmio,
        pci::{
            Channel,
            Enabled, //
        },
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

/// A session, to whoever halts its device.
pub(super) trait Live<'bound>: Send + Sync {
    /// Returns the epoch of the session.
    fn epoch(&self) -> &Arc<Epoch<'bound>>;

    /// Reports a fault. Returns the first one of the session.
    fn report(&self, cause: Cause) -> Cause;

    /// Ends all commands and events. The device still has to be stopped.
    fn close(&self);

    /// Tells all who wait for completions that the device was stopped.
    fn tell_stopped(&self);
}

/// What the stop lock guards.
pub(super) struct Function<'bound> {
    /// The session that uses the device.
    session: Option<Arc<dyn Live<'bound> + 'bound>>,
    /// Whether the device was reset, and not used since.
    is_fresh: bool,
    /// Whether the device was halted because no reset worked. It may go on with DMA as soon as it is a bus
    /// master.
    is_suspect: bool,
}

impl Function<'_> {
    /// Says that the device is used, so that it has to be reset before it is used next.
    pub(super) fn set_used(&mut self) {
        self.is_fresh = false;
    }
}

/// A device that is bound to the driver.
#[pin_data]
pub(crate) struct Controller<'bound> {
    binding: Binding<'bound>,
    pdev: &'bound pci::Device<Bound>,
    configuration: Configuration<'bound>,
    registers: Arc<Registers<'bound>>,
    quarantine: Arc<Quarantine<'bound>>,
    statistics: Arc<Statistics>,
    waker: Waker,
    /// Whether the driver must not use the function.
    is_revoked: Atomic<bool>,
    /// The admin queue of a session that is being started.
    #[pin]
    starting: Mutex<Option<Arc<AdminQueue<'bound>>>>,
    /// The stop lock: held while the device is reset, halted, or brought up. No other lock of the driver but those of
    /// registers, queues and interrupts is taken under it.
    #[pin]
    function: Mutex<Function<'bound>>,
    /// The version of the admin interface, or [`UNKNOWN`].
    version: Atomic<u32>,
    /// Bits of the addresses that the device uses.
    address_width: Atomic<u32>,
}

/// The controller of a binding, which is [retired](Controller::retire) when this is dropped.
pub(crate) struct Owner<'bound>(Arc<Controller<'bound>>);

impl<'bound> Deref for Owner<'bound> {
    type Target = Arc<Controller<'bound>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        self.0.retire();
    }
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
    pub(crate) fn bind(
        pdev: &'bound pci::Device<Core<'_>>,
        enabled: &Enabled<'bound>,
        binding: Binding<'bound>,
        name: &'static CStr,
        waker: Waker,
    ) -> Result<Owner<'bound>> {
        let dev: &Device<Bound> = pdev.as_ref();

        let bar = map_registers(pdev, name)
            .inspect_err(|error| log::failed(dev, "The registers are not available", error))?;
        let statistics = Arc::new(Statistics::default(), GFP_KERNEL)?;
        let controller = Owner(Arc::pin_init(
            try_pin_init!(Self {
                binding,
                pdev,
                configuration: Configuration::new(pdev)?,
                registers: Registers::new(dev, bar)?,
                quarantine: Quarantine::new(dev, &statistics)?,
                statistics,
                waker,
                is_revoked: Atomic::new(false),
                starting <- new_mutex!(None),
                function <- new_mutex!(
                    Function {
                        session: None,
                        is_fresh: false,
                        is_suspect: enabled.was_left_halted(),
                    },
                    "efa_stop"
                ),
                version: Atomic::new(UNKNOWN),
                address_width: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )?);

        controller.prepare(&mut controller.function.lock())?;
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

    /// Returns the memory that the device may still use.
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

    /// Has `start` start a session with a device that was just reset, and speaks this version of the admin interface. What is in
    /// quarantine is freed after the reset.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the driver may not use the function.
    /// - Those of [`Self::prepare`] and `start`.
    pub(super) fn start<S: Live<'bound> + 'bound>(
        &self,
        start: impl FnOnce(&mut Function<'bound>, Version) -> Result<Arc<S>>,
    ) -> Result<Arc<S>> {
        let mut function = self.function.lock();
        self.prepare(&mut function)?;
        drop(function);
        self.quarantine.release();

        let mut function = self.function.lock();
        // The bus may have had it meanwhile.
        let version = self.prepare(&mut function)?;
        let session = start(&mut function, version);
        *self.starting.lock() = None;
        let session = session?;
        // Whoever revokes access now waits for the lock.
        function.session = Some(session.clone());
        Ok(session)
    }

    /// Has [`Self::revoke_access`] close this queue, of a session that is being started.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the driver may not use the function.
    pub(super) fn set_starting(&self, admin: &Arc<AdminQueue<'bound>>) -> Result {
        *self.starting.lock() = Some(admin.clone());
        self.check_access()
    }

    /// Checks that the driver may use the function.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if it may not, or if the bus has isolated the function.
    fn check_access(&self) -> Result {
        if self.is_revoked.load(Relaxed) || sys::pci::channel(self.pdev) != Channel::Works {
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Halts the device, and keeps the driver from using it until [`Self::restore_access`]. A session that is being started
    /// fails soon.
    pub(super) fn revoke_access(&self, is_shutdown: bool) {
        let reason = if is_shutdown {
            ResetReason::Shutdown
        } else {
            ResetReason::OsTrigger
        };
        let mut starting = self.starting.lock();
        self.is_revoked.store(true, Relaxed);
        if let Some(admin) = starting.take() {
            admin.close();
        }
        drop(starting);

        let mut function = self.function.lock();
        match function.session.take() {
            Some(session) => self.halt_session(&mut function, &*session, reason),
            None if is_shutdown => self.isolate(),
            None => (),
        }
    }

    /// Lets the driver use the function again after [`Self::revoke_access`]: it has to be reset.
    pub(super) fn restore_access(&self) {
        self.needs_reset();
        self.is_revoked.store(false, Relaxed);
    }

    /// Says that the device has to be reset before it is used next, as something was done to it.
    pub(super) fn needs_reset(&self) {
        self.function.lock().set_used();
    }

    /// Makes sure that the device was reset and not used since, and returns the version of its admin
    /// interface.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the driver may not use the function.
    /// - `EOPNOTSUPP` if the device is too old.
    /// - Those of a reset and of reading registers.
    fn prepare(&self, function: &mut Function<'bound>) -> Result<Version> {
        self.check_access()?;
        if !function.is_fresh {
            self.reset(function, ResetReason::Normal)?;
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
            return Err(EOPNOTSUPP);
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
            return Err(EOPNOTSUPP);
        }
        Ok(version)
    }

    /// Resets the device, after which it uses no memory but that of answers.
    ///
    /// Registers are read by DMA. A device that was halted because no reset worked becomes a bus master only after a
    /// reset by the bus (FLR). Where the function has none, it is a bus master for the reset only.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device is halted, and not there.
    /// - Those of [`reset`].
    /// - Those of `pcie_flr` if the device is halted, and the bus can't reset it.
    fn reset(&self, function: &mut Function<'bound>, reason: ResetReason) -> Result {
        self.configuration.restore_if_lost();
        if function.is_suspect {
            self.isolate();
            // The bus would wait for it for a minute.
            if !sys::pci::is_present(self.pdev) {
                return Err(ENODEV);
            }
            if let Err(error) = sys::pci::function_level_reset(self.pdev) {
                if error != ENOTTY {
                    return Err(error);
                }
            }
        }
        sys::pci::set_master(self.pdev);
        reset(self.dev(), &self.registers, reason).inspect_err(|_| {
            if function.is_suspect {
                self.isolate();
            }
        })?;
        // Its firmware may be another one now.
        self.version.store(UNKNOWN, Relaxed);
        function.is_fresh = true;
        if function.is_suspect {
            function.is_suspect = false;
            sys::pci::mark_halted(self.pdev, false);
        }
        Ok(())
    }

    /// Does what [`Halt::halt`] does where it is not because of a fault.
    pub(super) fn stop(&self, session: &dyn Live<'bound>, reason: ResetReason) {
        let mut function = self.function.lock();
        function.session = None;
        self.halt_session(&mut function, session, reason);
    }

    /// Stops the device and ends a session.
    fn halt_session(
        &self,
        function: &mut Function<'bound>,
        session: &dyn Live<'bound>,
        reason: ResetReason,
    ) {
        if session.epoch().is_halted() {
            return;
        }
        // Interrupt handlers ring doorbells, and during a reset the device takes none.
        session.close();
        self.stop_function(function, session.epoch(), reason);
        session.tell_stopped();
    }

    /// Stops the device, of whose session nothing runs any more: by a reset, else by one after a reset of the
    /// bus, else by taking its access to memory away.
    ///
    /// A reset of the bus alone is not trusted: a device that is so broken that it needs one might go on
    /// where it was as soon as it is a bus master again.
    pub(super) fn stop_function(
        &self,
        function: &mut Function<'bound>,
        epoch: &Epoch<'bound>,
        reason: ResetReason,
    ) {
        function.is_fresh = false;
        let was_reset = match sys::pci::channel(self.pdev) {
            Channel::Works => self.try_resets(function, reason),
            // The bus resets it next. Until then only its configuration may be accessed.
            Channel::IsFrozen => {
                self.isolate();
                false
            }
            Channel::IsGone => true,
        };
        epoch.end(was_reset);
    }

    /// Resets the device, or else isolates it. Returns whether it was reset.
    fn try_resets(&self, function: &mut Function<'bound>, reason: ResetReason) -> bool {
        // A device that was pulled out does not answer. One that works may fail to answer once.
        if sys::pci::is_present(self.pdev) {
            if self.reset(function, reason).is_ok() {
                return true;
            }
            function.is_suspect = true;
            if self.reset(function, reason).is_ok() {
                return true;
            }
            log::failed(
                self.dev(),
                "The device could not be reset; its DMA is disabled",
                &EIO,
            );
        }
        function.is_suspect = true;
        self.isolate();
        false
    }

    /// Looks whether the device says that it has failed, or can't be read at all, unless it was stopped.
    pub(super) fn find_fault(&self, epoch: &Epoch<'bound>) -> Option<Cause> {
        let _function = self.function.lock();
        if epoch.is_halted() {
            return None;
        }
        health::read_status(&self.registers)
    }

    /// Takes the device's access to memory away.
    pub(super) fn isolate(&self) {
        if sys::pci::channel(self.pdev) != Channel::IsGone {
            sys::pci::clear_master(self.pdev);
        }
    }

    /// Ends the use of the function: the device has no access to memory, and what it may have used is freed. No
    /// session is left.
    pub(super) fn retire(&self) {
        let function = self.function.lock();
        // A device that was not reset may still answer a read, and use what is in quarantine.
        self.isolate();
        if function.is_suspect {
            sys::pci::mark_halted(self.pdev, true);
        }
        drop(function);
        self.quarantine.end();
    }
}

impl<'bound> Halt<'bound> for Controller<'bound> {
    /// Called by whoever needs the device stopped: recovery, shutdown, the bus, a destroy that is not answered,
    /// an exporter that revokes memory. Sleeps for as long as a reset by the register, one by the bus, and another
    /// one by the register take: about 80 s if the device answers none of them, and the bus waits for it.
    fn halt(&self, epoch: &Epoch<'bound>, cause: Cause) {
        if epoch.is_halted() {
            return;
        }
        let mut function = self.function.lock();
        // Whoever had the lock may have stopped it.
        if epoch.is_halted() {
            return;
        }
        if let Some(session) = function.session.take() {
            let cause = session.report(cause);
            self.halt_session(&mut function, &*session, cause.reset_reason());
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
