// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! One life of the device, from a reset to the next.

use kernel::{
    irq::ThreadedIrqReturn,
    pci::{
        IrqType,
        IrqTypes, //
    },
    prelude::*,
    sync::Arc, //
};

use super::{
    admin_queue::AdminQueue,
    aenq::Aenq,
    ah_cache::AhCache,
    attributes::Attributes,
    bound::BoundDevice,
    event_queue::{
        self,
        EventQueue,
        EventTarget, //
    },
    function::Function,
    health::{
        self,
        Cause,
        Health, //
    },
    host_info,
    lent::Epoch,
    reclaim::Reclaim, //
};
use crate::{
    hw::regs::{
        Caps,
        DevSts,
        Register,
        ResetReason,
        Version, //
    },
    sys::{
        self, irq,
        log::{
            self,
            Hex, //
        },
    },
};

/// The vector of the admin queue and of asynchronous events.
const MANAGEMENT_VECTOR: u8 = 0;

/// What the device and the driver have to do with each other until the next reset: queues, interrupts,
/// attributes.
///
/// A session is [started](Self::start), and ends when the device is halted. A reference that is kept longer
/// does no harm: commands fail, and memory was freed or is in quarantine.
pub(crate) struct Session<'bound> {
    // Dropped first, as the handlers use what is below.
    management: irq::Registration<'bound>,
    event_queues: KVec<EventQueue<'bound>>,
    admin: Arc<AdminQueue<'bound>>,
    aenq: Arc<Aenq<'bound>>,
    ah_cache: Arc<AhCache<'bound>>,
    attributes: Attributes,
    health: Arc<Health>,
    epoch: Arc<Epoch<'bound>>,
    reclaim: Arc<Reclaim<'bound>>,
    device: Arc<BoundDevice<'bound>>,
}

/// Stops the device when dropped: a session that could not be started.
struct Attempt<'a, 'bound> {
    function: &'a mut Function<'bound>,
    epoch: Option<Arc<Epoch<'bound>>>,
}

impl Drop for Attempt<'_, '_> {
    fn drop(&mut self) {
        if let Some(epoch) = &self.epoch {
            epoch.end(self.function.stop(ResetReason::InitError));
        }
    }
}

impl<'bound> Session<'bound> {
    /// Starts a session with a device that was just reset, and speaks this version of the admin interface.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device is not ready, or has failed, or if the driver may not use the function.
    /// - [`EOPNOTSUPP`] if the device lacks what the driver needs.
    /// - [`EINVAL`] if an attribute of the device makes no sense.
    /// - [`ENOSPC`] if there is no interrupt vector.
    /// - [`ETIME`] if the device does not answer.
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn start(
        device: &Arc<BoundDevice<'bound>>,
        function: &mut Function<'bound>,
        version: Version,
        epoch: Arc<Epoch<'bound>>,
    ) -> Result<Arc<Self>> {
        let dev = device.dev();
        let (registers, statistics) = (device.registers(), device.statistics());
        check_status(device)?;
        let caps = Caps::from_raw(registers.read(Register::Caps)?);
        let vectors = allocate_vectors(device)?;

        let health = Health::new(device.waker())?;
        let admin = AdminQueue::new(dev, registers, version, caps, &epoch, &health, statistics)?;
        let aenq = Aenq::new(dev, registers, &epoch, &health, statistics)?;

        // Dropped before the rings that the device has from here on, and after the interrupts.
        function.set_used();
        let mut attempt = Attempt {
            function,
            epoch: Some(epoch.clone()),
        };
        device.begin_start(&admin)?;
        admin.start(MANAGEMENT_VECTOR);
        aenq.start(MANAGEMENT_VECTOR);
        let management = request_management(device, &vectors, &admin, &aenq)?;
        admin.unmask_interrupts();

        let attributes = read_attributes(device, &admin)?;
        let parts = event_queue::Parts {
            binding: device.binding(),
            pdev: device.pdev(),
            registers,
            admin: &admin,
            epoch: &epoch,
            vectors: &vectors,
        };
        let event_queues = create_event_queues(&parts, &attributes)?;
        let ah_cache = AhCache::new(&admin)?;

        if attributes.takes_host_info() {
            // Nothing depends on it.
            let _ = host_info::send(device.pdev(), &admin, &epoch);
        }
        let session = Self {
            management,
            event_queues,
            ah_cache,
            aenq,
            attributes,
            health,
            reclaim: Reclaim::new(&admin, &epoch)?,
            admin,
            epoch,
            device: device.clone(),
        };
        let session = Arc::new(session, GFP_KERNEL)?;
        attempt.epoch = None;
        Ok(session)
    }

    /// Returns the device from its binding on.
    pub(crate) fn device(&self) -> &BoundDevice<'bound> {
        &self.device
    }

    /// Returns the admin queue.
    pub(crate) fn admin(&self) -> &AdminQueue<'bound> {
        &self.admin
    }

    /// Returns the address handles that the device has.
    pub(crate) fn ah_cache(&self) -> &AhCache<'bound> {
        &self.ah_cache
    }

    /// Returns what the device can do.
    pub(crate) fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Returns whether the device may use the memory of this session.
    pub(crate) fn epoch(&self) -> &Arc<Epoch<'bound>> {
        &self.epoch
    }

    /// Returns where faults of the session are reported.
    #[cfg(kverbs)]
    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Returns what takes memory back.
    pub(crate) fn reclaim(&self) -> &Arc<Reclaim<'bound>> {
        &self.reclaim
    }

    /// Returns the event queue that reports the completions of queues with this completion vector.
    pub(crate) fn event_target(&self, comp_vector: usize) -> Option<&EventTarget> {
        self.event_queues.get(comp_vector).map(EventQueue::target)
    }

    /// Returns how many event queues there are.
    pub(crate) fn event_queues(&self) -> usize {
        self.event_queues.len()
    }

    /// Returns the fault that was reported, if any was, or that keep-alive events stay away.
    pub(super) fn fault(&self) -> Option<Cause> {
        if let Some(cause) = self.health.cause() {
            return Some(cause);
        }
        // A device that never sent keep-alive events is not watched.
        let hint = self.attributes.hints.driver_watchdog_timeout;
        let (silence, period) = self.aenq.keep_alive_silence()?;
        health::is_too_long(silence, period, hint).then_some(Cause::KeepAlive)
    }

    /// Reports a fault. Returns the first one of the session.
    pub(super) fn report(&self, cause: Cause) -> Cause {
        self.health.report(cause);
        self.health.cause().unwrap_or(cause)
    }

    /// Wakes all clients that wait for completions if the device has to flush some.
    pub(super) fn check_flush(&self) {
        if self.health.take_flush() {
            self.wake_waiters();
        }
    }

    /// Ends all commands and events. The device still has to be stopped.
    pub(super) fn close(&self) {
        self.admin.close();
        self.management.disable();
        for queue in &self.event_queues {
            queue.silence();
        }
    }

    /// Wakes all clients in the kernel that wait for completions, to poll those that the device does not report.
    pub(super) fn wake_waiters(&self) {
        for queue in &self.event_queues {
            queue.target().subscribers.wake();
        }
    }
}

/// Checks that the device is ready.
///
/// # Errors
///
/// - [`ENODEV`] if it is not, or has failed.
/// - Those of [`Registers::read`](super::registers::Registers::read).
fn check_status(device: &BoundDevice<'_>) -> Result {
    let status = DevSts::from_raw(device.registers().read(Register::DevSts)?);
    if status.ready && !status.fatal_error {
        return Ok(());
    }
    dev_err!(
        device.dev(),
        "The device is not ready, or has failed, after its reset ({})\n",
        Hex(status.into_raw())
    );
    Err(ENODEV)
}

/// Requests the interrupt of the management vector.
///
/// # Errors
///
/// Those of [`irq::Registration::new`].
fn request_management<'bound>(
    device: &BoundDevice<'bound>,
    vectors: &irq::Vectors<'bound>,
    admin: &Arc<AdminQueue<'bound>>,
    aenq: &Arc<Aenq<'bound>>,
) -> Result<irq::Registration<'bound>> {
    let handler = ManagementHandler {
        admin: admin.clone(),
        aenq: aenq.clone(),
    };
    irq::Registration::new(
        device.binding(),
        vectors,
        MANAGEMENT_VECTOR,
        fmt!("efa-mgmnt@pci:{}", sys::pci::name(device.pdev())),
        0,
        handler,
    )
    .inspect_err(|error| {
        let what = "The management interrupt could not be requested";
        log::failed(device.dev(), what, error);
    })
}

/// Allocates a vector for management and one for each CPU, or as many as there are.
fn allocate_vectors<'bound>(device: &BoundDevice<'bound>) -> Result<irq::Vectors<'bound>> {
    let wanted = sys::system::online_cpus().saturating_add(1);
    let types = IrqTypes::default().with(IrqType::MsiX);
    let vectors = device
        .pdev()
        .alloc_irq_vectors(1, wanted, types)
        .map_err(|error| {
            log::failed(device.dev(), "MSI-X could not be enabled", &error);
            ENOSPC
        })?;
    Ok(Arc::new(vectors, GFP_KERNEL)?)
}

/// Reads the attributes, follows what the device advises, and has it report events.
///
/// # Errors
///
/// Those of [`Attributes::read`] and [`Attributes::enable_events`].
fn read_attributes<'bound>(
    device: &BoundDevice<'bound>,
    admin: &AdminQueue<'bound>,
) -> Result<Attributes> {
    let attributes = Attributes::read(admin)?;
    let hints = &attributes.hints;
    device.registers().set_read_timeout(hints.mmio_read_timeout);
    admin.set_completion_timeout(hints.admin_completion_timeout);
    attributes.enable_events(admin)?;
    Ok(attributes)
}

/// Creates event queues, one for each vector that is left, as many as the device has.
fn create_event_queues<'bound>(
    parts: &event_queue::Parts<'_, 'bound>,
    attributes: &Attributes,
) -> Result<KVec<EventQueue<'bound>>> {
    let depth = event_queue::usable_depth(attributes.event_queues.max_eq_depth);
    let vectors = parts.vectors.len().min(u8::MAX.into());
    let count = vectors
        .saturating_sub(1)
        .min(attributes.event_queues.max_eq as usize);

    let mut queues = KVec::with_capacity(count, GFP_KERNEL)?;
    for vector in (1u8..).take(count) {
        queues.push(EventQueue::new(parts, vector, depth)?, GFP_KERNEL)?;
    }
    Ok(queues)
}

/// What an interrupt of the management vector needs.
struct ManagementHandler<'bound> {
    admin: Arc<AdminQueue<'bound>>,
    aenq: Arc<Aenq<'bound>>,
}

#[vtable]
impl irq::Handler for ManagementHandler<'_> {
    fn handle(&self) -> ThreadedIrqReturn {
        self.admin.handle_completions();
        self.aenq.handle_events();
        ThreadedIrqReturn::Handled
    }
}
