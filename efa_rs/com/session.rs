// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A session: the use of the device between two resets.

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
    epoch::Epoch,
    event_queue::{
        self,
        EventQueue,
        EventTarget, //
    },
    function::Function,
    health::{
        Cause,
        KeepAlives, //
    },
    host_info,
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

/// State shared with the device between two resets: queues, interrupts and attributes.
///
/// A session is [started](Self::start), and ends when the device is halted. References may outlive
/// it: commands then fail, and memory was freed or is in quarantine.
pub(crate) struct Session<'bound> {
    // Dropped first, as the handlers use the fields below.
    irq: irq::Registration<'bound>,
    event_queues: KVec<EventQueue<'bound>>,
    management: Management<'bound>,
    ah_cache: Arc<AhCache<'bound>>,
    attributes: Attributes,
    reclaim: Arc<Reclaim<'bound>>,
}

/// An attempt to start a session. If it has failed, its drop stops the device.
struct Attempt<'a, 'bound> {
    function: &'a mut Function<'bound>,
    epoch: Option<&'a Epoch<'bound>>,
}

impl Drop for Attempt<'_, '_> {
    fn drop(&mut self) {
        if let Some(epoch) = self.epoch {
            epoch.end(self.function.stop(ResetReason::InitError));
        }
    }
}

impl<'bound> Session<'bound> {
    /// Starts a session with a device that was just reset and has admin interface `version`. Calls
    /// `begin` before the device gets the admin queue.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device is not ready, has failed, or must not be used.
    /// - [`EOPNOTSUPP`] if the device lacks a feature that the driver needs.
    /// - [`EINVAL`] if an attribute of the device is invalid.
    /// - [`ENOSPC`] if there is no interrupt vector.
    /// - [`ETIME`] if the device does not answer.
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn start(
        epoch: &Arc<Epoch<'bound>>,
        function: &mut Function<'bound>,
        version: Version,
        begin: impl FnOnce(&Arc<AdminQueue<'bound>>) -> Result,
    ) -> Result<Arc<Self>> {
        let device = &epoch.device;
        check_status(device)?;
        let caps = Caps::from_raw(device.registers.read(Register::Caps)?);
        let vectors = allocate_vectors(device)?;

        let management = Management {
            admin: AdminQueue::new(version, caps, epoch.clone())?,
            aenq: Aenq::new(epoch)?,
        };
        let admin = &management.admin;

        // Dropped before the rings, which the device uses from here on, and after the interrupts.
        function.is_fresh = false;
        let mut attempt = Attempt {
            function,
            epoch: Some(epoch),
        };
        begin(admin)?;
        admin.start(MANAGEMENT_VECTOR);
        management.aenq.start(MANAGEMENT_VECTOR);
        let irq = irq::Registration::new(
            device.binding,
            &vectors,
            MANAGEMENT_VECTOR,
            fmt!("efa-mgmnt@pci:{}", device.dev().name()),
            0,
            management.clone(),
        )
        .inspect_err(|error| {
            let what = "The management interrupt could not be requested";
            log::failed(device.dev(), what, error);
        })?;
        admin.mask_interrupts(false);

        let attributes = Attributes::read(admin)?;
        let hints = &attributes.hints;
        device.registers.set_read_timeout(hints.mmio_read_timeout);
        admin.set_completion_timeout(hints.admin_completion_timeout);
        attributes.enable_events(admin)?;
        let event_queues = create_event_queues(admin, &vectors, &attributes)?;
        let ah_cache = AhCache::new(admin)?;

        if attributes.takes_host_info() {
            // The driver works without it.
            let _ = host_info::send(admin);
        }
        let session = Self {
            irq,
            event_queues,
            ah_cache,
            attributes,
            reclaim: Reclaim::new(admin)?,
            management,
        };
        let session = Arc::new(session, GFP_KERNEL)?;
        attempt.epoch = None;
        Ok(session)
    }

    pub(crate) fn device(&self) -> &BoundDevice<'bound> {
        &self.epoch().device
    }

    pub(crate) fn admin(&self) -> &AdminQueue<'bound> {
        &self.management.admin
    }

    pub(crate) fn ah_cache(&self) -> &AhCache<'bound> {
        &self.ah_cache
    }

    pub(crate) fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Returns the epoch, which states whether the device may use the memory of this session.
    pub(crate) fn epoch(&self) -> &Arc<Epoch<'bound>> {
        &self.admin().epoch
    }

    /// Returns the object that revokes memory from the device.
    pub(crate) fn reclaim(&self) -> &Arc<Reclaim<'bound>> {
        &self.reclaim
    }

    /// Returns the event queue that reports the completions of queues with this completion vector.
    pub(crate) fn event_target(&self, comp_vector: usize) -> Option<&EventTarget> {
        self.event_queues.get(comp_vector).map(EventQueue::target)
    }

    pub(crate) fn event_queues(&self) -> usize {
        self.event_queues.len()
    }

    /// Returns the reported fault, if any, or a fault because keep-alive events are missing.
    pub(super) fn find_fault(&self, keep_alives: &mut KeepAlives) -> Option<Cause> {
        let received = self.device().statistics.keep_alive_rcvd.get();
        let hint = self.attributes.hints.driver_watchdog_timeout;
        let are_missing = keep_alives.check(received, hint);
        self.epoch()
            .fault()
            .or(are_missing.then_some(Cause::KeepAlive))
    }

    /// Handles events whose interrupt was lost, and counts these interrupts. The device must be
    /// running.
    pub(super) fn check_interrupts(&self) {
        let pending = self.management.aenq.pending();
        let is_lost = self.irq.check(pending, || self.management.handle_all());
        let queues = self.event_queues.iter();
        let lost = usize::from(is_lost) + queues.filter(|queue| queue.check()).count();
        if lost != 0 {
            self.device().statistics.lost_interrupts.add(lost as u64);
            let message = "An interrupt was lost; its events were handled without it";
            self.device().messages.queues.warning(fmt!("{message}"));
        }
    }

    /// Aborts all commands and disables the interrupts. The device still has to be stopped.
    pub(super) fn close(&self) {
        self.admin().in_flight.close();
        self.irq.disable();
        for queue in &self.event_queues {
            queue.irq.disable();
        }
    }

    /// Wakes all kernel clients that wait for completions, to poll those without an event.
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
/// - [`ENODEV`] if it is not ready, or has failed.
/// - Those of [`Registers::read`](super::registers::Registers::read).
fn check_status(device: &BoundDevice<'_>) -> Result {
    let status = DevSts::from_raw(device.registers.read(Register::DevSts)?);
    if status.ready && !status.fatal_error {
        return Ok(());
    }
    dev_err!(
        device.dev(),
        "Device isn't ready, abort com init: status {} after its reset\n",
        Hex(status.into_raw())
    );
    Err(ENODEV)
}

/// Allocates a vector for management and one per online CPU, or fewer if not all are available.
fn allocate_vectors<'bound>(device: &BoundDevice<'bound>) -> Result<irq::Vectors<'bound>> {
    let wanted = sys::system::online_cpus().saturating_add(1);
    let types = IrqTypes::default().with(IrqType::MsiX);
    let vectors = device
        .pdev
        .alloc_irq_vectors(1, wanted, types)
        .map_err(|error| {
            log::failed(device.dev(), "Failed to enable MSI-X", &error);
            ENOSPC
        })?;
    Ok(Arc::new(vectors, GFP_KERNEL)?)
}

/// Creates an event queue for each remaining vector, up to the limit of the device.
fn create_event_queues<'bound>(
    admin: &AdminQueue<'bound>,
    vectors: &irq::Vectors<'bound>,
    attributes: &Attributes,
) -> Result<KVec<EventQueue<'bound>>> {
    let depth = event_queue::usable_depth(attributes.event_queues.max_eq_depth);
    let count = vectors
        .len()
        .min(u8::MAX.into())
        .saturating_sub(1)
        .min(attributes.event_queues.max_eq as usize);

    let mut queues = KVec::with_capacity(count, GFP_KERNEL)?;
    for vector in (1u8..).take(count) {
        queues.push(EventQueue::new(admin, vectors, vector, depth)?, GFP_KERNEL)?;
    }
    Ok(queues)
}

/// The two queues of the management interrupt.
#[derive(Clone)]
struct Management<'bound> {
    admin: Arc<AdminQueue<'bound>>,
    aenq: Arc<Aenq<'bound>>,
}

impl Management<'_> {
    fn handle_all(&self) {
        self.admin.in_flight.handle_completions();
        self.aenq.handle_events();
    }
}

#[vtable]
impl irq::Handler for Management<'_> {
    fn handle(&self) -> ThreadedIrqReturn {
        self.handle_all();
        ThreadedIrqReturn::Handled
    }
}
