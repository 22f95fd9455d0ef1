// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event queues, which report completion queues with new completions. Each has an interrupt.

use kernel::{
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
    lent::Lent,
    subscribers::Subscribers, //
};
use crate::{
    hw::{
        admin::eq::{
            CreateEq,
            CreateEqCaps, //
        },
        eq::{
            self,
            Eqe,
            EqeCommon,
            EventType, //
        },
        features::EqEvents,
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
    1 << max.min(MAX_DEPTH).checked_ilog2().unwrap_or(0)
}

pub(super) struct EventQueue<'bound> {
    // Dropped first, so that the device's memory is freed after the last interrupt.
    pub(super) irq: irq::Registration<'bound>,
    handler: Arc<Handler<'bound>>,
}

/// The parts of an event queue that its completion queues use.
pub(crate) struct EventTarget {
    pub(crate) eqn: u16,
    /// The handlers of its events, by completion queue.
    pub(crate) subscribers: Arc<Subscribers>,
}

impl<'bound> EventQueue<'bound> {
    pub(super) fn target(&self) -> &EventTarget {
        &self.handler.target
    }

    /// Handles the events whose interrupt was lost, and returns whether there are any. The device
    /// must be running.
    pub(super) fn check(&self) -> bool {
        self.irq.check(self.handler.pending(), || {
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
    pub(super) fn new(
        admin: &AdminQueue<'bound>,
        vectors: &irq::Vectors<'bound>,
        vector: u8,
        depth: u32,
    ) -> Result<Self> {
        let device = &admin.epoch.device;
        let entries = Arc::new(Entries::zeroed(device.dev(), depth)?, GFP_KERNEL)?;
        let entries = Lent::new(&admin.epoch, &"an event queue", entries)?;
        let command = CreateEq {
            // CAST: At most [`MAX_DEPTH`].
            depth: depth as u16,
            msix_vector: vector,
            caps: CreateEqCaps {
                entry_size_words: (Eqe::SIZE / 4) as u8,
            },
            base_address: entries.dma_address(),
            events: EqEvents { completion: true },
        };
        let eqn = entries.loan().lend(|| admin.execute(&command))?.eqn;
        let subscribers = Subscribers::new()?;
        let handler = Arc::pin_init(
            pin_init!(Handler {
                device: device.clone(),
                target: EventTarget { eqn, subscribers },
                entries,
                consumed <- new_irq_lock!(0, c"efa_eq"),
            }),
            GFP_KERNEL,
        )?;
        handler.arm();

        // Queue N serves CPU N and has vector N + 1, as vector 0 is the admin queue's.
        let index = u32::from(vector).saturating_sub(1);
        let irq = irq::Registration::new(
            device.binding,
            vectors,
            vector,
            fmt!("efa-comp{}@pci:{}", index, device.dev().name()),
            index,
            handler.clone(),
        )
        .inspect_err(|error| {
            let what = "A completion interrupt could not be requested";
            sys::log::failed(device.dev(), what, error);
        })?;

        Ok(Self { irq, handler })
    }
}

/// The ring of an event queue, and the handler of its interrupt.
#[pin_data]
struct Handler<'bound> {
    device: Arc<BoundDevice<'bound>>,
    target: EventTarget,
    entries: Lent<'bound, Entries<'bound, { Eqe::SIZE }>>,
    /// Number of events consumed, which determines the next entry and its phase.
    #[pin]
    consumed: IrqLock<u32>,
}

impl Handler<'_> {
    /// Arms the event queue, so that the next event raises an interrupt.
    fn arm(&self) {
        let doorbell = EqDb {
            eqn: self.target.eqn,
            arm: true,
        };
        let registers = &self.device.registers;
        registers.write(Register::EqDb, doorbell.into_raw());
    }

    /// Returns whether the device has written the event with this number.
    fn has(&self, number: u32) -> bool {
        let first = self.entries.read_byte::<{ eq::PHASE_OFFSET }>(number);
        // Set in the first pass over the ring, and toggled each pass.
        let expected = number & self.entries.count() == 0;
        EqeCommon::from_raw(u32::from(first)).phase == expected
    }

    /// Returns the number of the next event, if it has been written.
    fn pending(&self) -> Option<u32> {
        let number = self.consumed.with(|consumed| *consumed);
        self.has(number).then_some(number)
    }

    /// Handles at most [`BUDGET`] events, and returns whether there may be more.
    fn handle_some(&self) -> bool {
        self.consumed.with(|consumed| {
            for _ in 0..BUDGET {
                if !self.has(*consumed) {
                    return false;
                }
                self.handle_event(&Eqe::decode(&self.entries.read(*consumed)));
                *consumed = consumed.wrapping_add(1);
            }
            true
        })
    }

    fn handle_event(&self, event: &Eqe) {
        let target = &self.target;
        let what = match EventType::try_from(event.common.event_type) {
            Ok(EventType::Completion) if target.subscribers.notify(event.cqn) => return,
            Ok(EventType::Completion) => "a completion queue that does not exist",
            Err(_) => "an event of an unknown type",
        };
        self.device.messages.queues.error(fmt!(
            "Event queue {} reports {} (type {}, queue {})",
            target.eqn,
            what,
            Hex(event.common.event_type.into()),
            event.cqn
        ));
    }
}

#[vtable]
impl irq::Handler for Arc<Handler<'_>> {
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
        let rounds = self.entries.count().div_ceil(BUDGET) as usize;
        let full = (1..rounds).take_while(|_| self.handle_some()).count();
        if 2 * (full + 1) >= rounds {
            fsleep(STORM_PAUSE);
        }
        self.arm();
    }
}
