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
    controller::{
        Controller,
        Function,
        Live, //
    },
    event_queue::{
        self,
        EventQueue,
        EventTarget, //
    },
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
/// A session is [opened](Self::open), and ends when the device is halted. Whoever holds one longer
/// can't do any harm: commands fail, and memory was freed or is in quarantine.
pub(crate) struct Session<'bound> {
    // Interrupts go first: what their handlers use is below.
    management: irq::Registration<'bound, ManagementHandler<'bound>>,
    event_queues: KVec<EventQueue<'bound>>,
    admin: Arc<AdminQueue<'bound>>,
    aenq: Arc<Aenq<'bound>>,
    ah_cache: Arc<AhCache<'bound>>,
    attributes: Attributes,
    health: Arc<Health>,
    epoch: Arc<Epoch<'bound>>,
    reclaim: Arc<Reclaim<'bound>>,
    controller: Arc<Controller<'bound>>,
}

/// Stops the device when dropped: a session that could not be started.
struct Attempt<'a, 'bound> {
    controller: &'a Controller<'bound>,
    function: &'a mut Function<'bound>,
    epoch: Option<Arc<Epoch<'bound>>>,
}

impl Drop for Attempt<'_, '_> {
    fn drop(&mut self) {
        if let Some(epoch) = &self.epoch {
            self.controller
                .stop_function(self.function, epoch, ResetReason::InitError);
        }
    }
}

impl<'bound> Session<'bound> {
    /// Resets the device, if it was used since its last reset, and starts a session.
    ///
    /// # Errors
    ///
    /// Those of [`Controller::start`] and [`Self::start`].
    pub(super) fn open(controller: &Arc<Controller<'bound>>) -> Result<Arc<Self>> {
        controller.start(|function, version| Self::start(controller, function, version))
    }

    /// Starts a session with a device that was just reset, and speaks this version of the admin interface.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device is not ready, or has failed, or if the driver may not use the function.
    /// - `EOPNOTSUPP` if the device lacks what the driver needs.
    /// - [`EINVAL`] if an attribute of the device makes no sense.
    /// - [`ENOSPC`] if there is no interrupt vector.
    /// - [`ETIME`] if the device does not answer.
    /// - [`ENOMEM`] if there is no memory.
    fn start(
        controller: &Arc<Controller<'bound>>,
        function: &mut Function<'bound>,
        version: Version,
    ) -> Result<Arc<Self>> {
        let (dev, pdev) = (controller.dev(), controller.pdev());
        let registers = controller.registers();

        let status = DevSts::from_raw(registers.read(Register::DevSts)?);
        if !status.ready || status.fatal_error {
            dev_err!(
                dev,
                "The device is not ready, or has failed, after its reset ({})\n",
                Hex(status.into_raw())
            );
            return Err(ENODEV);
        }
        let caps = Caps::from_raw(registers.read(Register::Caps)?);
        let vectors = allocate_vectors(controller)?;

        let epoch = Epoch::new(controller.clone(), controller.quarantine())?;
        let health = Health::new(controller.waker())?;
        let statistics = controller.statistics();
        let admin = AdminQueue::new(dev, registers, version, caps, &epoch, &health, statistics)?;
        let aenq = Aenq::new(dev, registers, &epoch, &health, statistics)?;

        // Dropped before the rings that the device has from here on, and after the interrupts.
        let mut attempt = Attempt {
            controller,
            function,
            epoch: Some(epoch.clone()),
        };
        attempt.function.set_used();
        controller.set_starting(&admin)?;
        admin.start(MANAGEMENT_VECTOR);
        aenq.start(MANAGEMENT_VECTOR);

        let management = irq::Registration::new(
            controller.binding(),
            &vectors,
            MANAGEMENT_VECTOR,
            fmt!("efa-mgmnt@pci:{}", sys::pci::name(pdev)),
            0,
            ManagementHandler {
                admin: admin.clone(),
                aenq: aenq.clone(),
            },
        )
        .inspect_err(|error| {
            log::failed(
                dev,
                "The management interrupt could not be requested",
                error,
            );
        })?;
        admin.unmask_interrupts();

        let attributes = Attributes::read(&admin)?;
        registers.set_read_timeout(attributes.hints.mmio_read_timeout);
        admin.set_completion_timeout(attributes.hints.admin_completion_timeout);
        attributes.enable_events(&admin)?;

        let parts = event_queue::Parts {
            binding: controller.binding(),
            pdev,
            registers,
            admin: &admin,
            epoch: &epoch,
            vectors: &vectors,
        };
        let event_queues = create_event_queues(&parts, &attributes)?;
        let ah_cache = AhCache::new(&admin)?;

        if attributes.takes_host_info() {
            // Nothing depends on it.
            let _ = host_info::send(pdev, &admin, &epoch);
        }

        let reclaim = Reclaim::new(&admin, &epoch)?;
        let session = Arc::new(
            Self {
                management,
                event_queues,
                admin,
                aenq,
                ah_cache,
                attributes,
                health,
                epoch,
                reclaim,
                controller: controller.clone(),
            },
            GFP_KERNEL,
        )?;
        attempt.epoch = None;
        Ok(session)
    }

    /// Returns the device from its binding on.
    pub(crate) fn controller(&self) -> &Arc<Controller<'bound>> {
        &self.controller
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

    /// Returns whether the device may use what it was told of in this session.
    pub(crate) fn epoch(&self) -> &Arc<Epoch<'bound>> {
        &self.epoch
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

    /// Returns what is wrong with the device, if anything is.
    pub(super) fn find_fault(&self) -> Option<Cause> {
        if let Some(cause) = self.health.cause() {
            return Some(cause);
        }
        // A device that never sent keep-alive events is not watched.
        let hint = self.attributes.hints.driver_watchdog_timeout;
        let silence = self.aenq.keep_alive_silence();
        if silence.is_some_and(|(silence, period)| health::is_too_long(silence, period, hint)) {
            return Some(Cause::KeepAlive);
        }
        self.controller.find_fault(&self.epoch)
    }
}

impl<'bound> Live<'bound> for Session<'bound> {
    fn epoch(&self) -> &Arc<Epoch<'bound>> {
        &self.epoch
    }

    fn report(&self, cause: Cause) -> Cause {
        self.health.report(cause);
        self.health.cause().unwrap_or(cause)
    }

    fn close(&self) {
        self.admin.close();
        self.management.disable();
        for queue in &self.event_queues {
            queue.silence();
        }
    }

    fn tell_stopped(&self) {
        for queue in &self.event_queues {
            queue.target().subscribers.stopped();
        }
    }
}

/// Allocates a vector for management and one for each CPU, or as many as there are.
fn allocate_vectors<'bound>(controller: &Controller<'bound>) -> Result<irq::Vectors<'bound>> {
    let wanted = sys::system::online_cpus().saturating_add(1);
    let types = IrqTypes::default().with(IrqType::MsiX);
    let vectors = controller
        .pdev()
        .alloc_irq_vectors(1, wanted, types)
        .map_err(|error| {
            log::failed(controller.dev(), "MSI-X could not be enabled", &error);
            ENOSPC
        })?;
    Ok(Arc::new(vectors, GFP_KERNEL)?)
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
