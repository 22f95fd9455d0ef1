// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event queues. Completion queues use them.

use efa_hw::{
    admin::{
        NoData, Status,
        eq::{CreateEq, CreateEqResponse, DestroyEq},
    },
    eq::{Eqe, EqeCommon, EventType, PHASE_OFFSET},
    features::FeatureId,
    regs::EqDb,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::table::Table;
use crate::{
    DmaError, Host, Queue, QueueError, ensure,
    profile::attributes::Attributes,
    queue::{Place, write_entry},
    view,
};

/// An event queue.
#[derive(Debug, Default)]
pub(crate) struct Eq {
    pub(super) place: Place,
    vector: u16,
    pub(crate) armed: bool,
    /// Number of events ever posted, from which entry and phase of the next follow.
    posted: u32,
    /// Whether the interrupt for an event is pending until the driver arms the queue.
    waiting: bool,
}

view! {
    /// An event queue.
    EventQueue from (number, eq): (u16, &Eq) {
        /// Its number.
        number: u16 = number,
        /// Bus address.
        base: u64 = eq.place.base,
        /// Number of its entries.
        depth: u32 = eq.depth(),
        /// Its interrupt vector.
        vector: u16 = eq.vector,
        /// Total number of events posted.
        posted: u32 = eq.posted,
        /// Whether the driver has armed it, so that it raises an interrupt.
        armed: bool = eq.armed,
    }
}

impl Eq {
    /// Returns the number of entries.
    fn depth(&self) -> u32 {
        // CAST: `place` has at most `u16::MAX` entries.
        (self.place.size / Eqe::SIZE as u64) as u32
    }

    /// Posts an event.
    fn post(&mut self, host: &mut dyn Host, cqn: u16) -> Result<(), DmaError> {
        let depth = self.depth();
        let entry = Eqe {
            common: EqeCommon { phase: self.posted / depth % 2 == 0, event_type: EventType::Completion.into() },
            cqn,
        };
        let offset = u64::from(self.posted % depth) * Eqe::SIZE as u64;
        // The depth is a power of two, so that neither entry nor phase jump when this wraps.
        self.posted = self.posted.wrapping_add(1);
        write_entry(host, self.place.base + offset, &entry.encode(), PHASE_OFFSET)?;
        self.waiting = true;
        Ok(())
    }

    /// Disarms the queue and returns its interrupt, if it is armed and has unannounced events.
    fn announce(&mut self) -> Option<u16> {
        let due = self.armed && self.waiting;
        if due {
            self.armed = false;
            self.waiting = false;
        }
        due.then_some(self.vector)
    }
}

/// All event queues.
pub(crate) type Eqs = Table<Eq>;

impl Eqs {
    /// Arms an event queue, if it exists and the doorbell says so. Returns the interrupt that was pending until then.
    pub(crate) fn ring(&mut self, doorbell: EqDb) -> Result<Option<u16>, Status> {
        let eq = self.get_mut(doorbell.eqn)?;
        eq.armed |= doorbell.arm;
        Ok(eq.announce())
    }

    /// Returns the number of storm events that a queue accepts now; for a missing queue 1, whose failed post ends the storm.
    pub(crate) fn storm_room(&self, eqn: u16) -> u64 {
        match self.get(eqn) {
            Ok(eq) if eq.armed => (eq.depth() / 2).max(1).into(),
            Ok(_) => 0,
            Err(_) => 1,
        }
    }

    /// Posts events. Returns the interrupt to raise, if the event queue is armed.
    pub(crate) fn post(
        &mut self,
        host: &mut dyn Host,
        eqn: u16,
        cqn: u16,
        count: u64,
    ) -> Result<Option<u16>, QueueError> {
        let eq = self.get_mut(eqn);
        let eq = eq.map_err(|_| QueueError::Missing(Queue::Eq(eqn)))?;
        for _ in 0..count {
            eq.post(host, cqn)?;
        }
        Ok(eq.announce())
    }

    pub(crate) fn create(
        &mut self,
        attributes: &Attributes,
        vectors: u16,
        command: &CreateEq,
    ) -> Result<CreateEqResponse, Status> {
        let supported = attributes.supports(FeatureId::EventQueueAttr);
        ensure(supported, Status::UnsupportedOpcode)?;
        let size = u64::from(command.depth) * Eqe::SIZE as u64;
        let legal = command.depth.is_power_of_two()
            && u32::from(command.depth) <= attributes.max_eq_depth
            && usize::from(command.caps.entry_size_words) * 4 == Eqe::SIZE
            && u16::from(command.msix_vector) < vectors
            && command.events.completion
            && command.base_address != 0
            && command.base_address % Eqe::SIZE as u64 == 0
            && attributes.reaches(command.base_address, size);
        ensure(legal, Status::IllegalParameter)?;
        let eq = Eq {
            place: Place { base: command.base_address, size },
            vector: command.msix_vector.into(),
            ..Eq::default()
        };
        let eqn = self.insert(attributes, attributes.max_eq, eq)?;
        Ok(CreateEqResponse { eqn })
    }

    pub(crate) fn destroy(&mut self, command: &DestroyEq) -> Result<NoData, Status> {
        self.remove_unused(command.eqn)?;
        Ok(NoData {})
    }
}
