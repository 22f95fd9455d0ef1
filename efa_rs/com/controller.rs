// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Starting and halting a device, each under the stop lock.

use core::ops::Deref;

use kernel::{
    device::Core,
    new_mutex,
    pci,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    bound::BoundDevice,
    function::Function,
    health::Cause,
    lent::{
        Epoch,
        Halt, //
    },
    session::Session, //
};
use crate::{
    hw::regs::{
        Caps,
        Register,
        ResetReason, //
    },
    sys::{
        attach::Binding,
        dma,
        pci::Enabled,
        work::Waker, //
    },
};

/// What the stop lock guards.
struct Inner<'bound> {
    function: Function<'bound>,
    /// The session that uses the device.
    session: Option<Arc<Session<'bound>>>,
}

/// What starts and halts a device.
#[pin_data]
pub(crate) struct Controller<'bound> {
    device: Arc<BoundDevice<'bound>>,
    /// The stop lock: held while the device is reset, halted, or brought up. No other lock of the driver but those of
    /// registers, queues and interrupts is taken under it.
    #[pin]
    inner: Mutex<Inner<'bound>>,
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

impl<'bound> Deref for Controller<'bound> {
    type Target = BoundDevice<'bound>;

    fn deref(&self) -> &Self::Target {
        &self.device
    }
}

impl<'bound> Controller<'bound> {
    /// Takes over an enabled device: resets it, and sets the width of its DMA addresses.
    ///
    /// # Errors
    ///
    /// - Those of [`BoundDevice::new`], [`Function::prepare`] and `set_address_width`.
    pub(crate) fn bind(
        pdev: &'bound pci::Device<Core<'_>>,
        enabled: &Enabled<'bound>,
        binding: Binding<'bound>,
        name: &'static CStr,
        waker: Waker,
    ) -> Result<Owner<'bound>> {
        let device = BoundDevice::new(pdev, binding, name, waker)?;
        let function = Function::new(&device, enabled.was_left_halted())?;
        let inner = Inner {
            function,
            session: None,
        };
        let controller = Owner(Arc::pin_init(
            pin_init!(Self {
                device,
                inner <- new_mutex!(inner, "efa_stop"),
            }),
            GFP_KERNEL,
        )?);

        controller.inner.lock().function.prepare()?;
        let width = Caps::from_raw(controller.registers().read(Register::Caps)?).dma_addr_width;
        dma::set_address_width(pdev, width).inspect_err(|error| {
            dev_err!(
                controller.dev(),
                "DMA addresses of {} bits can't be used ({:?})\n",
                width,
                error
            );
        })?;
        controller.set_address_width(width);
        Ok(controller)
    }

    /// Resets the device, if it was used since its last reset, and starts a session. What is in quarantine is freed
    /// after the reset.
    ///
    /// # Errors
    ///
    /// Those of [`Function::prepare`] and [`Session::start`].
    pub(super) fn start(self: &Arc<Self>) -> Result<Arc<Session<'bound>>> {
        self.inner.lock().function.prepare()?;
        self.quarantine().release();

        let mut inner = self.inner.lock();
        // The bus may have had it meanwhile.
        let version = inner.function.prepare()?;
        let epoch = Epoch::new(self.clone(), self.quarantine())?;
        let session = Session::start(&self.device, &mut inner.function, version, epoch);
        self.end_start();
        let session = session?;
        // A revocation of access now waits for the lock.
        inner.session = Some(session.clone());
        Ok(session)
    }

    /// Halts the device, and keeps the driver from using it until [`Self::restore`]. A session that is being started
    /// fails soon.
    pub(super) fn revoke(&self, is_shutdown: bool) {
        let reason = if is_shutdown {
            ResetReason::Shutdown
        } else {
            ResetReason::OsTrigger
        };
        self.revoke_access();
        let mut inner = self.inner.lock();
        match inner.session.take() {
            Some(session) => inner.halt(&session, reason),
            None if is_shutdown => self.isolate(),
            None => (),
        }
    }

    /// Lets the driver use the function again after [`Self::revoke`]: it has to be reset.
    pub(super) fn restore(&self) {
        self.needs_reset();
        self.restore_access();
    }

    /// Notes that the device has to be reset before it is used next, as something was done to it.
    pub(super) fn needs_reset(&self) {
        self.inner.lock().function.set_used();
    }

    /// Does what [`Halt::halt`] does where it is not because of a fault.
    pub(super) fn stop(&self, session: &Session<'bound>, reason: ResetReason) {
        let mut inner = self.inner.lock();
        inner.session = None;
        inner.halt(session, reason);
    }

    /// Returns what is wrong with the device of a session, if anything is, unless it was stopped.
    pub(super) fn find_fault(&self, session: &Session<'bound>) -> Option<Cause> {
        session.fault().or_else(|| {
            let inner = self.inner.lock();
            if session.epoch().is_halted() {
                return None;
            }
            inner.function.find_fault()
        })
    }

    /// Ends the use of the function: the device has no access to memory, and what it may have used is freed. No
    /// session is left.
    pub(super) fn retire(&self) {
        self.inner.lock().function.retire();
        self.quarantine().end();
    }
}

impl<'bound> Inner<'bound> {
    /// Stops the device and ends a session.
    fn halt(&mut self, session: &Session<'bound>, reason: ResetReason) {
        if session.epoch().is_halted() {
            return;
        }
        // Interrupt handlers ring doorbells, and during a reset the device takes none.
        session.close();
        session.epoch().end(self.function.stop(reason));
        session.wake_waiters();
    }
}

impl<'bound> Halt<'bound> for Controller<'bound> {
    /// Called by recovery, shutdown, the bus, a destroy that is not answered, and an exporter that revokes memory. Sleeps
    /// for as long as a reset by the register, one by the bus, and another one by the register take. That is about 80 s if
    /// the device answers none of them.
    fn halt(&self, epoch: &Epoch<'bound>, cause: Cause) {
        if epoch.is_halted() {
            return;
        }
        let mut inner = self.inner.lock();
        // The last owner of the lock may have stopped it.
        if epoch.is_halted() {
            return;
        }
        if let Some(session) = inner.session.take() {
            let cause = session.report(cause);
            inner.halt(&session, cause.reset_reason());
        }
    }
}
