// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Start and halt of a device, both under the stop lock.

use core::ops::Deref;

use kernel::{
    device::Core,
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
    bound::BoundDevice,
    epoch::{
        Epoch,
        Halt, //
    },
    function::Function,
    health::{
        self,
        Cause,
        KeepAlives, //
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
        atomic::Relaxed,
        attach::Binding,
        dma,
        pci_config::Enabled,
        pci_driver::Wakers, //
    },
};

/// Limit on the start of a session: twice the longest timeout of a command.
const START_TIMEOUT: Delta = Delta::from_millis(60_000);

/// State guarded by the stop lock.
struct Inner<'bound> {
    function: Function<'bound>,
    /// The session that uses the device, if any.
    session: Option<Arc<Session<'bound>>>,
    /// Those of this session.
    keep_alives: KeepAlives,
}

#[pin_data]
pub(crate) struct Controller<'bound> {
    device: Arc<BoundDevice<'bound>>,
    /// The stop lock: held while the device is reset, halted or started. Under it the driver takes
    /// only locks of registers, queues, interrupts, the quarantine and `starting`.
    #[pin]
    inner: Mutex<Inner<'bound>>,
    /// The admin queue of a session that is being started, and since when.
    #[pin]
    starting: Mutex<Option<(Arc<AdminQueue<'bound>>, Instant<Monotonic>)>>,
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
        wakers: Wakers,
    ) -> Result<Owner<'bound>> {
        let device = BoundDevice::new(pdev, binding, name, wakers)?;
        let function = Function::new(&device, enabled.was_left_halted)?;
        let inner = Inner {
            function,
            session: None,
            keep_alives: KeepAlives::new(0),
        };
        let controller = Owner(Arc::pin_init(
            pin_init!(Self {
                device,
                inner <- new_mutex!(inner, "efa_stop"),
                starting <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )?);

        controller.inner.lock().function.prepare()?;
        let width = Caps::from_raw(controller.registers.read(Register::Caps)?).dma_addr_width;
        dma::set_address_width(pdev, width).inspect_err(|error| {
            dev_err!(
                controller.dev(),
                "DMA addresses of {} bits can't be used ({:?})\n",
                width,
                error
            );
        })?;
        controller.address_width.store(width.into(), Relaxed);
        Ok(controller)
    }

    /// Resets the device, if it was used since its last reset, and starts a session. Frees the
    /// memory in quarantine after the reset.
    ///
    /// # Errors
    ///
    /// Those of [`Function::prepare`] and [`Session::start`].
    pub(super) fn start(self: &Arc<Self>) -> Result<Arc<Session<'bound>>> {
        self.inner.lock().function.prepare()?;
        self.quarantine.release();

        let mut inner = self.inner.lock();
        // The bus may have reset or suspended the device while the lock was free.
        let version = inner.function.prepare()?;
        let epoch = Epoch::new(self.device.clone(), self.clone())?;
        let session = Session::start(&epoch, &mut inner.function, version, |admin| {
            *self.starting.lock() = Some((admin.clone(), Instant::now()));
            self.check_access()
        });
        *self.starting.lock() = None;
        let session = session?;
        // From here on, `revoke` waits for the lock and halts this session.
        inner.session = Some(session.clone());
        inner.keep_alives = KeepAlives::new(self.statistics.keep_alive_rcvd.get());
        Ok(session)
    }

    /// Halts the device, and revokes the driver's access to it until [`Self::restore`]. A session
    /// that is being started fails soon.
    pub(super) fn revoke(&self, reason: ResetReason) {
        let mut starting = self.starting.lock();
        self.revoke_access();
        if let Some((admin, _)) = starting.take() {
            admin.in_flight.close();
        }
        drop(starting);
        let mut inner = self.inner.lock();
        if let Some(session) = inner.session.take() {
            inner.halt(&session, reason);
        }
        if reason == ResetReason::Shutdown {
            inner.function.retire();
        }
    }

    /// Restores the driver's access after [`Self::revoke`]. The next use needs a reset.
    pub(super) fn restore(&self) {
        self.needs_reset();
        self.restore_access();
    }

    /// Marks the device as used or changed, so that it is reset before its next use.
    pub(super) fn needs_reset(&self) {
        self.inner.lock().function.is_fresh = false;
    }

    /// Stops the device and ends its session, like [`Halt::halt`], but not because of a fault.
    pub(super) fn stop(&self, session: &Session<'bound>, reason: ResetReason) {
        let mut inner = self.inner.lock();
        inner.session = None;
        inner.halt(session, reason);
    }

    /// Checks the device, and halts it if it has failed. Called once a second, and after a fault was
    /// reported.
    ///
    /// The caller waits for nothing that depends on the device but registers and resets, so that a
    /// device is halted whatever other tasks wait for.
    pub(super) fn monitor(&self) {
        let mut starting = self.starting.lock();
        if let Some((admin, _)) = starting.take_if(|(_, at)| at.elapsed() > START_TIMEOUT) {
            dev_err!(self.dev(), "The device takes too long to start\n");
            admin.in_flight.close();
        }
        drop(starting);
        // The lock's owner starts, resets or halts the device.
        let failed = self.inner.try_lock().and_then(|mut inner| {
            let inner = &mut *inner;
            let session = inner.session.as_ref()?;
            let fault = session.find_fault(&mut inner.keep_alives);
            let fault = fault.or_else(|| inner.function.find_fault());
            if fault.is_none() {
                session.check_interrupts();
                if session.epoch().take_flush() {
                    session.wake_waiters();
                }
            }
            Some((session.epoch().clone(), fault?))
        });
        if let Some((epoch, cause)) = failed {
            epoch.halt(cause);
        }
        self.wakers.monitor.wake_after(health::INTERVAL);
    }

    /// Ends the use of the function: disables the device's DMA and frees the quarantine. There must
    /// be no session.
    pub(super) fn retire(&self) {
        self.inner.lock().function.retire();
        self.quarantine.end();
    }
}

impl<'bound> Inner<'bound> {
    fn halt(&mut self, session: &Session<'bound>, reason: ResetReason) {
        if session.epoch().is_halted() {
            return;
        }
        // Interrupt handlers and clients ring doorbells, which the device does not accept during a
        // reset.
        session.epoch().close();
        session.close();
        session.epoch().end(self.function.stop(reason));
        session.wake_waiters();
    }
}

impl<'bound> Halt<'bound> for Controller<'bound> {
    /// Called by the monitor, and if the device does not destroy an object, does not stop a queue
    /// pair, or does not release revoked memory. Sleeps during a reset by the register, an FLR, and
    /// another reset by the register. That is about 80 s if none is answered.
    fn halt(&self, epoch: &Epoch<'bound>, cause: Cause) {
        if epoch.is_halted() {
            return;
        }
        let mut inner = self.inner.lock();
        // The previous owner of the lock may have halted the device.
        if epoch.is_halted() {
            return;
        }
        if let Some(session) = inner.session.take() {
            epoch.report(cause);
            let cause = epoch.fault().unwrap_or(cause);
            inner.halt(&session, cause.reset_reason());
        }
    }
}
