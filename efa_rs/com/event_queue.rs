// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event queues, which report completion queues with new completions. Each has an interrupt.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    irq::ThreadedIrqReturn,
    new_spinlock_irq, pci,
    prelude::*,
    sync::{
        barrier::{
            dma_mb,
            Read, //
        },
        Arc,
        SpinLockIrq, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
};

use super::{
    admin_queue::AdminQueue,
    lent::{
        Epoch,
        Lent, //
    },
    registers::Registers,
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
        attach::Binding,
        dma::Entries,
        irq,
        log::{
            Hex,
            Limited, //
        }, //
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
    pub(super) binding: Binding<'bound>,
    pub(super) pdev: &'bound pci::Device<Bound>,
    pub(super) registers: &'a Arc<Registers<'bound>>,
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
    pub(super) fn silence(&self) {
        self.irq.disable();
    }

    /// Creates an event queue of `depth` entries that uses interrupt `vector`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command and of [`irq::Registration::new`].
    pub(super) fn new(parts: &Parts<'_, 'bound>, vector: u8, depth: u32) -> Result<Self> {
        let pdev = parts.pdev;
        let dev: &Device<Bound> = pdev.as_ref();

        let ring = Lent::new(parts.epoch, "an event queue", Ring::new(dev, depth)?)?;
        let eqn = ring.lend(|| parts.admin.create_eq(&ring.entries, vector))?;
        let subscribers = Subscribers::new()?;
        let handler = Handler {
            registers: parts.registers.clone(),
            eqn,
            ring: ring.memory().clone(),
            subscribers: subscribers.clone(),
        };
        handler.arm();

        // Queue N serves CPU N and has vector N + 1, as vector 0 is the admin queue's.
        let index = u32::from(vector).saturating_sub(1);
        let irq = irq::Registration::new(
            parts.binding,
            parts.vectors,
            vector,
            fmt!("efa-comp{}@pci:{}", index, sys::pci::name(pdev)),
            index,
            handler,
        )
        .inspect_err(|error| {
            sys::log::failed(dev, "A completion interrupt could not be requested", error);
        })?;

        Ok(Self {
            irq,
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
    #[pin]
    messages: Limited<'bound>,
    /// Number of events consumed, which determines the next entry and its phase.
    #[pin]
    consumed: SpinLockIrq<u32>,
}

impl<'bound> Ring<'bound> {
    fn new(dev: &'bound Device<Bound>, depth: u32) -> Result<Arc<Self>> {
        let entries = Entries::zeroed(dev, depth)?;

        Arc::pin_init(
            pin_init!(Self {
                entries,
                depth_shift: depth.trailing_zeros(),
                messages <- Limited::new(dev),
                consumed <- new_spinlock_irq!(0, "efa_eq"),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `handle` for at most [`BUDGET`] events, and returns whether there may be more.
    fn consume(&self, handle: impl Fn(&Eqe)) -> bool {
        let mut consumed = self.consumed.lock();

        for _ in 0..BUDGET {
            let first = self.entries.read_byte::<{ eq::PHASE_OFFSET }>(*consumed);
            let expected = *consumed >> self.depth_shift & 1 == 0;
            if EqeCommon::from_raw(u32::from(first)).phase != expected {
                return false;
            }

            // The device writes the phase last.
            dma_mb(Read);
            handle(&Eqe::decode(&self.entries.read(*consumed)));
            *consumed = consumed.wrapping_add(1);
        }
        true
    }
}

/// The interrupt handler of an event queue.
struct Handler<'bound> {
    registers: Arc<Registers<'bound>>,
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
        self.registers.write(Register::EqDb, doorbell.into_raw());
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
        self.ring.messages.error(fmt!(
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
