// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The commands in flight: their ring entries, their slots, and the tasks that wait for them.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::Arc,
    time::{
        Delta,
        Jiffies, //
    },
};

use super::{
    admin_rings::{
        Rings,
        DEPTH, //
    },
    admin_slots::{
        Slots,
        Turn, //
    },
    error::CommandError,
    lent::Epoch,
    registers::Registers,
    statistics::Statistics, //
};
use crate::{
    hw::{
        admin::{
            AcqEntry,
            AcqHeader,
            AqRequest, //
        },
        regs::{
            Register,
            Version, //
        },
    },
    sys::{
        completion::Completion,
        lock::{
            new_irq_lock,
            IrqLock, //
        },
        log::{
            Hex,
            Limited, //
        },
        time::to_jiffies, //
    },
};

/// Interval at which a waiting task polls for completions after an interrupt was missed.
const POLL_INTERVAL: Delta = Delta::from_millis(10);

/// The commands in flight.
#[pin_data]
pub(super) struct InFlight<'bound> {
    registers: Arc<Registers<'bound>>,
    rings: Rings<'bound>,
    /// First value of the counter in this session's command ids. It continues that of the previous
    /// session, so that late completions of that session match no command of this one.
    first_use: u16,
    statistics: Arc<Statistics>,
    #[pin]
    messages: Limited<'bound>,
    #[pin]
    state: IrqLock<State>,
    /// Signalled, by slot, when the slot's command has completed or was aborted.
    #[pin]
    over: [Completion; DEPTH as usize],
}

/// State shared by submitters and the interrupt handler.
struct State {
    slots: Slots,
    /// Number of completions consumed in this session, modulo 2^16.
    consumed: u16,
}

impl<'bound> InFlight<'bound> {
    /// Returns an initializer for rings that the device does not use before [`Self::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        dev: &'bound Device<Bound>,
        registers: &Arc<Registers<'bound>>,
        version: Version,
        epoch: &Arc<Epoch<'bound>>,
        statistics: &Arc<Statistics>,
    ) -> Result<impl PinInit<Self> + use<'bound>> {
        let rings = Rings::new(dev, version, epoch)?;
        let (registers, statistics) = (registers.clone(), statistics.clone());
        let state = State {
            slots: Slots::new(),
            consumed: 0,
        };

        Ok(pin_init!(Self {
            registers,
            rings,
            // CAST: The truncated bits are not part of an id.
            first_use: statistics.submitted_cmds.get() as u16,
            statistics,
            messages <- Limited::new(dev),
            state <- new_irq_lock!(state, c"efa_admin_queue"),
            over <- pin_init::pin_init_array_from_fn(|_| Completion::new()),
        }))
    }

    /// Gives the rings to the device.
    pub(super) fn start(&self, msix_vector: u8) {
        self.rings.start(&self.registers, msix_vector);
    }

    /// Submits a command to the device. Returns `None` if no slot is free or the queue is closed.
    #[inline]
    pub(super) fn submit(&self, request: &AqRequest) -> Option<Turn> {
        self.state.with(|state| {
            let turn = state.slots.occupy(self.first_use)?;
            self.over.get(usize::from(turn.slot))?.reinit();
            self.rings.submit(turn.number, turn.id, request);
            self.statistics.submitted_cmds.increment();
            // Written under the lock, so that the device sees the counts in order.
            let count = turn.number.wrapping_add(1);
            self.registers.write(Register::AqProdDb, count.into());
            Some(turn)
        })
    }

    /// Rejects new commands and aborts those in flight, waking waiters. Ignores late completions.
    pub(super) fn close(&self) {
        self.state.with(|state| self.abandon(state));
    }

    /// Implements [`Self::close`] with the lock held.
    fn abandon(&self, state: &mut State) {
        let lost = state.slots.close();
        for (slot, over) in (0..).zip(&self.over) {
            if lost >> slot & 1 != 0 {
                over.complete();
            }
        }
        self.statistics.abandoned_cmds.add(lost.count_ones().into());
    }

    /// Handles the completions that the device has written.
    pub(super) fn handle_completions(&self) {
        self.state.with(|state| self.consume(state));
    }

    /// Handles at most [`DEPTH`] completions, so that a faulty device can't keep the caller busy.
    fn consume(&self, state: &mut State) {
        for _ in 0..DEPTH {
            let Some(entry) = self.rings.completion(state.consumed) else {
                break;
            };
            state.consumed = state.consumed.wrapping_add(1);
            self.accept(&mut state.slots, &entry);
        }
    }

    /// Stores a completion for its command and wakes the waiter.
    fn accept(&self, slots: &mut Slots, entry: &AcqEntry) {
        let header = AcqHeader::of(entry);
        if !self.rings.is_intact(entry) {
            self.messages.error(fmt!(
                "Received completion with invalid checksum ({}), which is ignored",
                Hex(header.checksum.into())
            ));
            return;
        }

        let id = header.command_id.id;
        let slot = slots.complete(id, entry);
        if let Some(over) = slot.and_then(|slot| self.over.get(usize::from(slot))) {
            self.statistics.completed_cmds.increment();
            over.complete();
        } else if slots.is_open() {
            // In a closed queue, the device may complete commands that were aborted.
            self.messages.error(fmt!(
                "Received completion with unexpected command id {}, which is ignored",
                Hex(id.into())
            ));
        }
    }

    /// Waits for the command in `slot`, for at most `timeout`, and returns the rest of this time. If
    /// `is_polled`, also polls for completions without an interrupt.
    #[inline]
    pub(super) fn wait(&self, slot: u16, timeout: Jiffies, is_polled: bool) -> Jiffies {
        let Some(over) = self.over.get(usize::from(slot)) else {
            return timeout;
        };
        if !is_polled {
            return over.wait_timeout(timeout);
        }
        let interval = to_jiffies(POLL_INTERVAL);
        let mut left = timeout;
        while left != 0 {
            let step = left.min(interval);
            if over.wait_timeout(step) != 0 {
                break;
            }
            left -= step;
            self.handle_completions();
        }
        left
    }

    /// Frees a slot and copies its completion. Returns whether that was present without an
    /// interrupt. If it is missing, closes the queue, so that no other command is waited for.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Timeout`] if the command has not completed.
    /// - [`CommandError::Abandoned`] if the queue was closed while the command was in flight.
    pub(super) fn end(&self, slot: u16, entry: &mut AcqEntry) -> Result<bool, CommandError> {
        self.state.with(|state| {
            let is_late = !state.slots.is_over(slot);
            if is_late {
                self.consume(state);
            }
            let is_lost = !state.slots.is_over(slot);
            if is_lost {
                self.abandon(state);
            }
            let result = state.slots.release(slot, entry);
            if is_lost {
                return Err(CommandError::Timeout);
            }
            result.map(|()| is_late)
        })
    }
}
