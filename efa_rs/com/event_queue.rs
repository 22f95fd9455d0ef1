// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event queues: which completion queues have something new, each with an interrupt of its own.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    },
};

use super::{
    admin_queue::AdminQueue,
    registers::Registers,
    subscribers::{
        CompletionHandler,
        Subscribers, //
    },
};
use crate::{
    hw::{
        eq::{
            self,
            Eqe,
            EqeCommon,
            EventType, //
        },
        regs::{
            EqDb,
            Register, //
        },
    },
    sys::{
        self,
        barrier::dma_rmb,
        dma::Entries,
        irq,
        irq_lock::{
            new_irq_lock,
            IrqLock, //
        },
        log::Hex,
        ratelimit::RateLimit, //
    },
};

/// The most entries in a ring, however many the device offers: the size of `depth` in the command.
const MAX_DEPTH: u32 = 1 << 15;

/// Returns the depth to use where the device takes at most `max`: a power of two, at least one.
pub(super) fn usable_depth(max: u32) -> u32 {
    match max.min(MAX_DEPTH).checked_ilog2() {
        Some(log) => 1 << log,
        None => 1,
    }
}

/// An event queue, with its interrupt.
pub(crate) struct EventQueue<H: CompletionHandler> {
    // The handler goes first: the ring that it reads is dropped after it.
    irq: irq::Registration<Handler<H>>,
    device_queue: DeviceQueue,
    subscribers: Arc<Subscribers<H>>,
}

/// What a completion queue needs to know of the event queue that reports its completions.
pub(crate) struct EventTarget<H: CompletionHandler> {
    /// The number that the device has given the event queue.
    pub(crate) eqn: u16,
    /// Who is told of completions.
    pub(crate) subscribers: Arc<Subscribers<H>>,
}

impl<H: CompletionHandler> EventQueue<H> {
    /// Returns what completion queues need to know of this one.
    pub(crate) fn target(&self) -> EventTarget<H> {
        EventTarget {
            eqn: self.device_queue.eqn,
            subscribers: self.subscribers.clone(),
        }
    }

    /// Handles no event any more: completions go unnoticed, and the doorbell is not rung.
    pub(crate) fn silence(&self) {
        self.irq.disable();
    }

    /// Creates an event queue of `depth` entries that interrupts by `vector`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command and of [`irq::Registration::new`].
    pub(super) fn new(
        pdev: &pci::Device<Bound>,
        admin: &Arc<AdminQueue>,
        registers: &Arc<Registers>,
        vectors: &Arc<irq::Vectors>,
        vector: u8,
        depth: u32,
    ) -> Result<Self> {
        let device_queue = DeviceQueue::create(pdev.as_ref(), admin, vector, depth)?;
        let subscribers = Subscribers::new()?;
        let handler = Handler {
            dev: AsRef::<Device<Bound>>::as_ref(pdev).into(),
            registers: registers.clone(),
            eqn: device_queue.eqn,
            ring: device_queue.ring.clone(),
            subscribers: subscribers.clone(),
        };
        handler.arm();

        // Queue N serves CPU N, as vector 0 is the admin queue's.
        let index = u32::from(vector).saturating_sub(1);
        let irq = irq::Registration::new(
            vectors,
            u32::from(vector),
            fmt!("efa-comp{}@pci:{}", index, sys::pci::name(pdev)),
            index,
            handler,
        )
        .inspect_err(|error| {
            let dev: &Device<Bound> = pdev.as_ref();
            sys::log::failed(dev, "A completion interrupt could not be requested", error);
        })?;

        Ok(Self {
            irq,
            device_queue,
            subscribers,
        })
    }
}

/// The device's side of the queue; destroyed when dropped.
struct DeviceQueue {
    admin: Arc<AdminQueue>,
    eqn: u16,
    ring: Arc<Ring>,
}

impl DeviceQueue {
    fn create(
        dev: &Device<Bound>,
        admin: &Arc<AdminQueue>,
        vector: u8,
        depth: u32,
    ) -> Result<Self> {
        let ring = Ring::new(dev, depth)?;
        match admin.create_eq(&ring.entries, vector) {
            Ok(eqn) => Ok(Self {
                admin: admin.clone(),
                eqn,
                ring,
            }),
            Err(error) => {
                if error.device_may_use_memory() {
                    admin.quarantine().keep(dev, "an event queue", ring);
                }
                Err(error.into())
            }
        }
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        if self.admin.destroy_eq(self.eqn).is_err() {
            self.admin
                .quarantine()
                .keep(self.admin.dev(), "an event queue", self.ring.clone());
        }
    }
}

/// The entries of an event queue, and how far they are consumed.
#[pin_data]
pub(super) struct Ring {
    entries: Entries<{ Eqe::SIZE }>,
    /// Binary logarithm of the number of entries.
    depth_shift: u32,
    #[pin]
    messages: RateLimit,
    /// Events ever consumed; their entry and phase follow from it.
    #[pin]
    consumed: IrqLock<u32>,
}

impl Ring {
    fn new(dev: &Device<Bound>, depth: u32) -> Result<Arc<Self>> {
        let entries = Entries::zeroed(dev, depth)?;

        Arc::pin_init(
            pin_init!(Self {
                entries,
                depth_shift: depth.trailing_zeros(),
                messages <- RateLimit::new(),
                consumed <- new_irq_lock!(0, "efa_eq"),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `handle` for at most one ring of events: a device can't keep the caller here.
    fn consume(&self, handle: impl Fn(&Eqe)) {
        let mut consumed = self.consumed.lock();

        for _ in 0..self.entries.count() {
            let first = self.entries.read_byte::<{ eq::PHASE_OFFSET }>(*consumed);
            let expected = *consumed >> self.depth_shift & 1 == 0;
            if EqeCommon::from_raw(u32::from(first)).phase != expected {
                break;
            }

            // The device writes the phase last.
            dma_rmb();
            handle(&Eqe::decode(&self.entries.read(*consumed)));
            *consumed = consumed.wrapping_add(1);
        }
    }
}

/// What an interrupt of an event queue needs.
struct Handler<H> {
    dev: ARef<Device>,
    registers: Arc<Registers>,
    eqn: u16,
    ring: Arc<Ring>,
    subscribers: Arc<Subscribers<H>>,
}

impl<H: CompletionHandler> Handler<H> {
    /// Asks for an interrupt for the next event.
    fn arm(&self) {
        let doorbell = EqDb {
            eqn: self.eqn,
            arm: true,
        };
        self.registers.write(Register::EqDb, doorbell.into_raw());
    }

    fn handle_event(&self, event: &Eqe) {
        let what = match EventType::try_from(event.common.event_type) {
            Ok(EventType::Completion) if self.subscribers.notify(event.cqn) => return,
            Ok(EventType::Completion) => "a completion queue that does not exist",
            Err(_) => "an event of an unknown type",
        };
        if self.ring.messages.allows() {
            dev_err!(
                &self.dev,
                "Event queue {} reports {} (type {}, queue {})\n",
                self.eqn,
                what,
                Hex(event.common.event_type.into()),
                event.cqn
            );
        }
    }
}

impl<H: CompletionHandler> irq::Handler for Handler<H> {
    fn handle(&self) {
        self.ring.consume(|event| self.handle_event(event));
        self.arm();
    }
}
