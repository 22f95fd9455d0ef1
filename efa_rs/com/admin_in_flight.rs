// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The commands in flight: their entries in the rings, their slots, and the tasks that wait for them.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
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
        log::{
            Hex,
            Limited, //
        },
        time::to_jiffies, //
    },
};

/// How often a task looks for a completion whose interrupt may be missing.
const POLL_INTERVAL: Delta = Delta::from_millis(10);

/// The commands in flight.
#[pin_data]
pub(super) struct InFlight<'bound> {
    registers: Arc<Registers<'bound>>,
    rings: Rings<'bound>,
    /// The use of a slot with which the command ids of this session begin. It follows the last one of the
    /// session before, so that a late completion of that session matches no command of this one.
    first_use: u16,
    statistics: Arc<Statistics>,
    #[pin]
    messages: Limited<'bound>,
    #[pin]
    state: SpinLockIrq<State>,
    /// Signalled when the command in the slot of the same number is over.
    #[pin]
    over: [Completion; DEPTH as usize],
}

/// What submitters and the interrupt handler share.
struct State {
    slots: Slots,
    /// Completions ever consumed.
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
            // CAST: What is cut off is not part of an id.
            first_use: statistics.submitted_cmds.get() as u16,
            statistics,
            messages <- Limited::new(dev),
            state <- new_spinlock_irq!(state, "efa_admin_queue"),
            over <- pin_init::pin_init_array_from_fn(|_| Completion::new()),
        }))
    }

    /// Gives the rings to the device.
    pub(super) fn start(&self, msix_vector: u8) {
        self.rings.start(&self.registers, msix_vector);
    }

    /// Gives a command to the device. `None` if no slot is free, or none is used any more.
    #[inline]
    pub(super) fn submit(&self, request: &AqRequest) -> Option<Turn> {
        let mut state = self.state.lock();
        let turn = state.slots.occupy(self.first_use)?;
        self.over.get(usize::from(turn.slot))?.reinit();
        self.rings.submit(turn.number, turn.id, request);
        self.statistics.submitted_cmds.increment();
        // Under the lock, so that the device never sees the count go back.
        let count = turn.number.wrapping_add(1);
        self.registers.write(Register::AqProdDb, count.into());
        Some(turn)
    }

    /// Accepts no more commands, and aborts those in flight: their waiters wake up. A late completion is ignored.
    pub(super) fn close(&self) {
        self.abandon(&mut self.state.lock());
    }

    /// Does what [`Self::close`] does.
    fn abandon(&self, state: &mut State) {
        let lost = state.slots.close();
        for (slot, over) in (0..).zip(&self.over) {
            if lost >> slot & 1 != 0 {
                over.complete();
            }
        }
        self.statistics.abandoned_cmds.add(lost.count_ones().into());
    }

    /// Handles what the device has completed.
    pub(super) fn handle_completions(&self) {
        self.consume(&mut self.state.lock());
    }

    /// Handles at most one ring of completions: a device can't keep the caller here.
    fn consume(&self, state: &mut State) {
        for _ in 0..DEPTH {
            let Some(entry) = self.rings.completion(state.consumed) else {
                break;
            };
            state.consumed = state.consumed.wrapping_add(1);
            self.accept(&mut state.slots, &entry);
        }
    }

    /// Gives a completion to the command it belongs to.
    fn accept(&self, slots: &mut Slots, entry: &AcqEntry) {
        let header = AcqHeader::of(entry);
        if !self.rings.is_intact(entry) {
            self.messages.error(fmt!(
                "A completion has the wrong checksum ({}) and is ignored",
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
            // The device may complete what a closed queue has aborted.
            self.messages.error(fmt!(
                "A completion has the id {}, which no command has, and is ignored",
                Hex(id.into())
            ));
        }
    }

    /// Waits until the command in `slot` is over, for at most `timeout`. `is_polled`: looks for completions without an
    /// interrupt.
    #[inline]
    pub(super) fn wait(&self, slot: u16, timeout: Jiffies, is_polled: bool) {
        let Some(over) = self.over.get(usize::from(slot)) else {
            return;
        };
        if !is_polled {
            over.wait_timeout(timeout);
            return;
        }
        let interval = to_jiffies(POLL_INTERVAL);
        let mut left = timeout;
        while left != 0 {
            let step = left.min(interval);
            if over.wait_timeout(step) {
                return;
            }
            left -= step;
            self.handle_completions();
        }
    }

    /// Frees a slot, and copies the completion of its command. Returns whether that was there without its interrupt. A
    /// command that is not complete closes the queue, so that no other one is waited for.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Timeout`] if it is not complete.
    /// - [`CommandError::Abandoned`] if the queue was closed under it.
    pub(super) fn end(&self, slot: u16, entry: &mut AcqEntry) -> Result<bool, CommandError> {
        let mut state = self.state.lock();
        let is_late = !state.slots.is_over(slot);
        if is_late {
            self.consume(&mut state);
        }
        let is_lost = !state.slots.is_over(slot);
        if is_lost {
            self.abandon(&mut state);
        }
        let result = state.slots.release(slot, entry);
        if is_lost {
            return Err(CommandError::Timeout);
        }
        result.map(|()| is_late)
    }
}
