// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The commands in flight: their ring entries, their slots, and the tasks that wait for them.

use core::array::from_fn;

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    },
};

use super::{
    admin_rings::{
        Rings,
        DEPTH,
        DEPTH_SHIFT, //
    },
    bound::BoundDevice,
    epoch::Epoch,
    error::CommandError,
    statistics::Statistics, //
};
use crate::{
    hw::{
        admin::{
            AcqEntry,
            AcqHeader,
            AqRequest,
            COMMAND_ID_BITS, //
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
        log::Hex,
        time::to_jiffies, //
    },
};

/// Interval at which a waiting task polls for completions after an interrupt was missed.
const POLL_INTERVAL: Delta = Delta::from_millis(10);

const COMMAND_ID_MASK: u16 = (1 << COMMAND_ID_BITS) - 1;

/// The commands in flight. Each has a slot, whose number is in the low bits of the command's id. The
/// high bits count all commands, so that duplicate and late completions are recognised.
#[pin_data]
pub(super) struct InFlight<'bound> {
    device: Arc<BoundDevice<'bound>>,
    pub(super) rings: Rings<'bound>,
    /// First value of the counter in this session's command ids. It continues that of the previous
    /// session, so that late completions of that session match no command of this one.
    first_use: u16,
    statistics: Arc<Statistics>,
    #[pin]
    state: IrqLock<State>,
    /// Signalled, by slot, when the slot's command has completed or was aborted.
    #[pin]
    over: [Completion; DEPTH as usize],
}

/// State shared by submitters and the interrupt handler.
struct State {
    /// Whether commands are accepted. Once false, this stays so.
    is_open: bool,
    /// Number of commands submitted in this session, modulo 2^16.
    submitted: u16,
    /// Number of completions consumed in this session, modulo 2^16.
    consumed: u16,
    slots: [Slot; DEPTH as usize],
}

struct Slot {
    /// The id of the last command. Its low bits are the number of the slot.
    id: u16,
    stage: Stage,
}

enum Stage {
    Free,
    /// The device executes it.
    InFlight,
    /// The device has completed it.
    Completed(AcqEntry),
    /// It was aborted when the queue was closed.
    Abandoned,
}

#[inline]
fn slot_of(id: u16) -> usize {
    usize::from(id & (DEPTH - 1))
}

impl<'bound> InFlight<'bound> {
    /// Returns an initializer for rings that the device does not use before [`Rings::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        version: Version,
        epoch: &Arc<Epoch<'bound>>,
    ) -> Result<impl PinInit<Self> + use<'bound>> {
        let rings = Rings::new(version, epoch)?;
        let device = epoch.device.clone();
        let statistics = device.statistics.clone();
        let state = State {
            is_open: true,
            submitted: 0,
            consumed: 0,
            slots: from_fn(|index| Slot {
                // CAST: Less than 32.
                id: index as u16,
                stage: Stage::Free,
            }),
        };

        Ok(pin_init!(Self {
            device,
            rings,
            // CAST: The truncated bits are not part of an id.
            first_use: statistics.submitted_cmds.get() as u16,
            statistics,
            state <- new_irq_lock!(state, c"efa_admin_queue"),
            over <- pin_init::pin_init_array_from_fn(|_| Completion::new()),
        }))
    }

    /// Submits a command, and returns its id, or `None` if no slot is free or the queue is closed.
    #[inline]
    pub(super) fn submit(&self, request: &AqRequest) -> Option<u16> {
        self.state.with(|state| {
            if !state.is_open {
                return None;
            }
            let mut slots = state.slots.iter_mut();
            let slot = slots.find(|slot| matches!(slot.stage, Stage::Free))?;
            let number = state.submitted;
            let count = number.wrapping_add(1);
            let id = (slot.id & (DEPTH - 1) | number.wrapping_add(self.first_use) << DEPTH_SHIFT)
                & COMMAND_ID_MASK;
            self.over.get(slot_of(id))?.reinit();
            (slot.id, slot.stage) = (id, Stage::InFlight);
            state.submitted = count;
            self.rings.submit(number, id, request);
            self.statistics.submitted_cmds.increment();
            let registers = &self.device.registers;
            // Written under the lock, so that the device sees the counts in order.
            registers.write(Register::AqProdDb, count.into());
            Some(id)
        })
    }

    /// Rejects new commands and aborts those in flight, waking waiters. Ignores late completions.
    pub(super) fn close(&self) {
        self.state.with(|state| self.close_locked(state));
    }

    fn close_locked(&self, state: &mut State) {
        state.is_open = false;
        for (slot, over) in state.slots.iter_mut().zip(&self.over) {
            if let Stage::InFlight = slot.stage {
                slot.stage = Stage::Abandoned;
                self.statistics.abandoned_cmds.increment();
                over.complete();
            }
        }
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
            self.accept(state, &entry);
        }
    }

    fn accept(&self, state: &mut State, entry: &AcqEntry) {
        let header = AcqHeader::of(entry);
        if !self.rings.is_intact(entry) {
            self.device.messages.ignored.error(fmt!(
                "Received completion with invalid checksum ({}), which is ignored",
                Hex(header.checksum.into())
            ));
            return;
        }

        let id = header.command_id.id;
        let index = slot_of(id);
        match (state.slots.get_mut(index), self.over.get(index)) {
            (Some(slot), Some(over)) if slot.id == id && matches!(slot.stage, Stage::InFlight) => {
                slot.stage = Stage::Completed(*entry);
                self.statistics.completed_cmds.increment();
                over.complete();
            }
            // In a closed queue, the device may complete commands that were aborted.
            _ if !state.is_open => (),
            _ => self.device.messages.ignored.error(fmt!(
                "Received completion with unexpected command id {}, which is ignored",
                Hex(id.into())
            )),
        }
    }

    /// Waits for a command, for at most `timeout`, and returns the rest of this time. If `is_polled`,
    /// also polls for completions without an interrupt.
    #[inline]
    pub(super) fn wait(&self, id: u16, timeout: Jiffies, is_polled: bool) -> Jiffies {
        let Some(over) = self.over.get(slot_of(id)) else {
            return timeout;
        };
        if !is_polled {
            return over.wait_timeout(timeout);
        }
        let (start, interval) = (Instant::<Monotonic>::now(), to_jiffies(POLL_INTERVAL));
        let mut left = timeout;
        while left != 0 && over.wait_timeout(left.min(interval)) == 0 {
            self.handle_completions();
            // A wait may take longer than its timeout.
            left = timeout.saturating_sub(to_jiffies(start.elapsed()));
        }
        left
    }

    /// Frees a command's slot and copies its completion. Returns whether that was present without
    /// an interrupt. If it is missing, closes the queue, so that no other command is waited for.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Timeout`] if the command has not completed.
    /// - [`CommandError::Abandoned`] if the queue was closed while the command was in flight.
    pub(super) fn end(&self, id: u16, entry: &mut AcqEntry) -> Result<bool, CommandError> {
        self.state.with(|state| {
            let is_late = state.is_in_flight(id);
            if is_late {
                self.consume(state);
            }
            let is_lost = is_late && state.is_in_flight(id);
            if is_lost {
                self.close_locked(state);
            }
            let slot = state.slots.get_mut(slot_of(id));
            let slot = slot.ok_or(CommandError::Abandoned)?;
            let result = match &slot.stage {
                Stage::Completed(completion) => {
                    *entry = *completion;
                    Ok(is_late)
                }
                _ if is_lost => Err(CommandError::Timeout),
                _ => Err(CommandError::Abandoned),
            };
            slot.stage = Stage::Free;
            result
        })
    }
}

impl State {
    /// Returns whether the command with this id has neither completed nor was aborted.
    #[inline]
    fn is_in_flight(&self, id: u16) -> bool {
        let slot = self.slots.get(slot_of(id));
        slot.is_some_and(|slot| matches!(slot.stage, Stage::InFlight))
    }
}
