// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event queues, which report completion queues with new completions. Each has an interrupt.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    irq::ThreadedIrqReturn,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
};

use super::{
    admin_queue::AdminQueue,
    bound::BoundDevice,
    lent::{
        Epoch,
        Lent, //
    },
    subscribers::Subscribers, //
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
        dma::Entries,
        irq,
        lock::{
            new_irq_lock,
            IrqLock, //
        },
        log::Hex, //
    },
};

/// Limit on the entries of a ring: the largest power of two that `depth` in the command can hold.
const MAX_DEPTH: u32 = 1 << 15;

/// Limit on events handled at once in interrupt context, and with interrupts disabled. NAPI polls
/// as many at once.
const BUDGET: u32 = 64;

/// Pause after half a ring of events. A working device reports one event per armed completion
/// queue, and its rings have room for thousands.
const STORM_PAUSE: Delta = Delta::from_millis(10);

/// Returns the ring depth for a device with limit `max`: a power of two, at least one.
pub(super) fn usable_depth(max: u32) -> u32 {
    match max.min(MAX_DEPTH).checked_ilog2() {
        Some(log) => 1 << log,
        None => 1,
    }
}

/// An event queue, with its interrupt.
pub(super) struct EventQueue<'bound> {
    // Dropped first, as the handler reads the ring.
    irq: irq::Registration<'bound>,
    handler: Handler<'bound>,
    _ring: Lent<'bound, Ring<'bound>>,
    target: EventTarget,
}

/// The parts of an event queue that its completion queues use.
pub(crate) struct EventTarget {
    /// The number of the event queue.
    pub(crate) eqn: u16,
    /// The handlers of its events, by completion queue.
    pub(crate) subscribers: Arc<Subscribers>,
}

/// Parameters for the creation of event queues.
pub(super) struct Parts<'a, 'bound> {
    pub(super) device: &'a Arc<BoundDevice<'bound>>,
    pub(super) admin: &'a AdminQueue<'bound>,
    pub(super) epoch: &'a Arc<Epoch<'bound>>,
    pub(super) vectors: &'a irq::Vectors<'bound>,
}

impl<'bound> EventQueue<'bound> {
    /// Returns the parts that completion queues use.
    pub(super) fn target(&self) -> &EventTarget {
        &self.target
    }

    /// Disables the interrupt: events are no longer handled, and the doorbell is not rung.
    pub(super) fn disable_irq(&self) {
        self.irq.disable();
    }

    /// Handles the events whose interrupt was lost, and returns whether there are any. The device
    /// must be running.
    pub(super) fn check(&self) -> bool {
        self.irq.check(self.handler.ring.pending(), || {
            self.handler.handle_some();
            self.handler.arm();
        })
    }

    /// Creates an event queue of `depth` entries that uses interrupt `vector`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command and of [`irq::Registration::new`].
    pub(super) fn new(parts: &Parts<'_, 'bound>, vector: u8, depth: u32) -> Result<Self> {
        let dev = parts.device.dev();
        let ring = Lent::new(parts.epoch, &"an event queue", Ring::new(dev, depth)?)?;
        let eqn = ring
            .loan()
            .lend(|| parts.admin.create_eq(&ring.entries, vector))?;
        let subscribers = Subscribers::new()?;
        let handler = Handler {
            device: parts.device.clone(),
            eqn,
            ring: ring.memory().clone(),
            subscribers: subscribers.clone(),
        };
        handler.arm();

        // Queue N serves CPU N and has vector N + 1, as vector 0 is the admin queue's.
        let index = u32::from(vector).saturating_sub(1);
        let irq = irq::Registration::new(
            parts.device.binding(),
            parts.vectors,
            vector,
            fmt!("efa-comp{}@pci:{}", index, dev.name()),
            index,
            handler.clone(),
        )
        .inspect_err(|error| {
            sys::log::failed(dev, "A completion interrupt could not be requested", error);
        })?;

        Ok(Self {
            irq,
            handler,
            _ring: ring,
            target: EventTarget { eqn, subscribers },
        })
    }
}

/// The ring of an event queue and its consumer counter.
#[pin_data]
struct Ring<'bound> {
    entries: Entries<'bound, { Eqe::SIZE }>,
    /// Binary logarithm of the number of entries.
    depth_shift: u32,
    /// Number of events consumed, which determines the next entry and its phase.
    #[pin]
    consumed: IrqLock<u32>,
}

impl<'bound> Ring<'bound> {
    fn new(dev: &'bound Device<Bound>, depth: u32) -> Result<Arc<Self>> {
        let entries = Entries::zeroed(dev, depth)?;

        Arc::pin_init(
            pin_init!(Self {
                entries,
                depth_shift: depth.trailing_zeros(),
                consumed <- new_irq_lock!(0, c"efa_eq"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether the device has written the event with this number.
    fn has(&self, number: u32) -> bool {
        let first = self.entries.read_byte::<{ eq::PHASE_OFFSET }>(number);
        let expected = number >> self.depth_shift & 1 == 0;
        EqeCommon::from_raw(u32::from(first)).phase == expected
    }

    /// Returns the number of the next event, if it has been written.
    fn pending(&self) -> Option<u32> {
        let number = self.consumed.with(|consumed| *consumed);
        self.has(number).then_some(number)
    }

    /// Calls `handle` for at most [`BUDGET`] events, and returns whether there may be more.
    fn consume(&self, handle: impl Fn(&Eqe)) -> bool {
        self.consumed.with(|consumed| {
            for _ in 0..BUDGET {
                if !self.has(*consumed) {
                    return false;
                }
                handle(&Eqe::decode(&self.entries.read(*consumed)));
                *consumed = consumed.wrapping_add(1);
            }
            true
        })
    }
}

/// The interrupt handler of an event queue.
#[derive(Clone)]
struct Handler<'bound> {
    device: Arc<BoundDevice<'bound>>,
    eqn: u16,
    ring: Arc<Ring<'bound>>,
    subscribers: Arc<Subscribers>,
}

impl Handler<'_> {
    /// Arms the event queue, so that the next event raises an interrupt.
    fn arm(&self) {
        let doorbell = EqDb {
            eqn: self.eqn,
            arm: true,
        };
        let registers = self.device.registers();
        registers.write(Register::EqDb, doorbell.into_raw());
    }

    /// Handles at most [`BUDGET`] events, and returns whether there may be more.
    fn handle_some(&self) -> bool {
        self.ring.consume(|event| self.handle_event(event))
    }

    fn handle_event(&self, event: &Eqe) {
        let what = match EventType::try_from(event.common.event_type) {
            Ok(EventType::Completion) if self.subscribers.notify(event.cqn) => return,
            Ok(EventType::Completion) => "a completion queue that does not exist",
            Err(_) => "an event of an unknown type",
        };
        self.device.messages().error(fmt!(
            "Event queue {} reports {} (type {}, queue {})",
            self.eqn,
            what,
            Hex(event.common.event_type.into()),
            event.cqn
        ));
    }
}

#[vtable]
impl irq::Handler for Handler<'_> {
    fn handle(&self) -> ThreadedIrqReturn {
        if self.handle_some() {
            return ThreadedIrqReturn::WakeThread;
        }
        self.arm();
        ThreadedIrqReturn::Handled
    }

    /// Handles at most one ring of events, including [`BUDGET`] in interrupt context. After half a
    /// ring it sleeps before it arms the queue, as the thread has a real-time priority.
    fn handle_threaded(&self) {
        let rounds = self.ring.entries.count().div_ceil(BUDGET) as usize;
        let full = (1..rounds).take_while(|_| self.handle_some()).count();
        if 2 * (full + 1) >= rounds {
            fsleep(STORM_PAUSE);
        }
        self.arm();
    }
}
