// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device's management half as a whole: what is set up before anything else can be done.

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
    admin_queue::AdminQueue,
    aenq::Aenq,
    attributes::Attributes,
    event_queue::{
        self,
        EventQueue, //
    },
    host_info,
    registers::Registers,
    reset::ResetOnDrop,
    subscribers::CompletionHandler, //
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
        self,
        irq,
        log::Hex, //
    },
};

/// The vector of the admin queue and of asynchronous events.
const MANAGEMENT_VECTOR: u8 = 0;

/// The device's queues for management and their interrupt.
///
/// Fields are dropped in their order. The interrupt goes first: its handler rings a doorbell, and
/// during a reset the device takes none. The reset comes next, as after it the device does not use
/// memory.
pub(crate) struct Controller {
    irq: irq::Registration<ManagementHandler>,
    reset: ResetOnDrop,
    admin: Arc<AdminQueue>,
    aenq: Arc<Aenq>,
    registers: Arc<Registers>,
    vectors: Arc<irq::Vectors>,
}

impl Controller {
    /// Starts the admin queue of a device that was reset.
    ///
    /// Until [`Self::started`] is called, a drop tells the device that the driver failed to start.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the device is not ready.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of [`Registers::read`] and [`irq::Registration::new`].
    pub(crate) fn start(
        pdev: &pci::Device<Bound>,
        registers: Arc<Registers>,
        vectors: Arc<irq::Vectors>,
        version: Version,
    ) -> Result<Self> {
        let dev: &Device<Bound> = pdev.as_ref();

        let status = DevSts::from_raw(registers.read(Register::DevSts)?);
        if !status.ready {
            dev_err!(
                dev,
                "The device is not ready after its reset ({})\n",
                Hex(status.into_raw())
            );
            return Err(ENODEV);
        }
        let caps = Caps::from_raw(registers.read(Register::Caps)?);

        let admin = AdminQueue::new(dev, &registers, version, caps)?;
        let aenq = Aenq::new(dev, &registers)?;

        // Dropped before the rings that the device has from here on.
        let reset = ResetOnDrop::new(pdev, registers.clone(), ResetReason::InitError);
        admin.start(MANAGEMENT_VECTOR);
        aenq.start(MANAGEMENT_VECTOR);

        let irq = irq::Registration::new(
            &vectors,
            u32::from(MANAGEMENT_VECTOR),
            fmt!("efa-mgmnt@pci:{}", sys::pci::name(pdev)),
            0,
            ManagementHandler {
                admin: admin.clone(),
                aenq: aenq.clone(),
            },
        )
        .inspect_err(|error| {
            sys::log::failed(
                dev,
                "The management interrupt could not be requested",
                error,
            );
        })?;
        admin.unmask_interrupts();

        Ok(Self {
            irq,
            reset,
            admin,
            aenq,
            registers,
            vectors,
        })
    }

    /// Reads what the device is and can do, and sets both sides up accordingly.
    ///
    /// # Errors
    ///
    /// Those of [`Attributes`].
    pub(crate) fn negotiate(&self) -> Result<Attributes> {
        let attributes = Attributes::read(&self.admin)?;

        let hints = attributes.read_hints(&self.admin)?;
        self.registers.set_read_timeout(hints.mmio_read_timeout);
        self.admin
            .set_completion_timeout(hints.admin_completion_timeout);

        attributes.enable_events(&self.admin)?;
        Ok(attributes)
    }

    /// Creates event queues, one for each vector that is left, as many as the device has.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of [`EventQueue::new`].
    pub(crate) fn create_event_queues<H: CompletionHandler>(
        &self,
        pdev: &pci::Device<Bound>,
        attributes: &Attributes,
    ) -> Result<KVec<EventQueue<H>>> {
        let depth = event_queue::usable_depth(attributes.event_queues.max_eq_depth);
        let vectors = self.vectors.count().min(u32::from(u8::MAX));
        let count = attributes.event_queues.max_eq.min(vectors - 1);

        let mut queues = KVec::new();
        for vector in (1u8..).take(count as usize) {
            let queue = EventQueue::new(
                pdev,
                &self.admin,
                &self.registers,
                &self.vectors,
                vector,
                depth,
            )?;
            queues.push(queue, GFP_KERNEL)?;
        }
        Ok(queues)
    }

    /// Tells the device what system it is in, if it wants to know.
    pub(crate) fn send_host_info(&self, pdev: &pci::Device<Bound>, attributes: &Attributes) {
        if attributes.takes_host_info() {
            host_info::send(pdev, &self.admin);
        }
    }

    /// Says that the driver has started: programs can use the device, and the next reset is an
    /// ordinary one.
    pub(crate) fn started(&mut self) {
        self.reset.set_reason(ResetReason::Normal);
    }

    /// Stops the device for good: it uses no memory after this, and every command fails. Event
    /// queues are to be silenced before.
    pub(crate) fn shutdown(&self) {
        self.admin.close();
        self.irq.disable();
        self.reset.stop_device(ResetReason::Shutdown);
        self.admin.abandon_commands();
    }

    /// Returns the admin queue.
    pub(crate) fn admin(&self) -> &Arc<AdminQueue> {
        &self.admin
    }

    /// Returns what counts keep-alive events.
    pub(crate) fn keep_alives(&self) -> KeepAlives {
        KeepAlives(self.aenq.clone())
    }
}

/// The count of keep-alive events.
pub(crate) struct KeepAlives(Arc<Aenq>);

impl KeepAlives {
    /// Returns how many there were.
    pub(crate) fn get(&self) -> u64 {
        self.0.keep_alives()
    }
}

/// What an interrupt of the management vector needs.
struct ManagementHandler {
    admin: Arc<AdminQueue>,
    aenq: Arc<Aenq>,
}

impl irq::Handler for ManagementHandler {
    fn handle(&self) {
        self.admin.handle_completions();
        self.aenq.handle_events();
    }
}
