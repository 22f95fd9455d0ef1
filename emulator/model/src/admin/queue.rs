// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: submitted commands, from the doorbell to the completion.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use efa_hw::{
    admin::{
        ACQ_PHASE_OFFSET, AcqEntry, AcqFlags, AcqHeader, AqEntry, Command, CommandId, Opcode,
        mr::{PageList, RegMr},
    },
    checksum,
    wire::At,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::ring::{EventRing, SubmissionRing};
use crate::{DmaError, Host, ProtocolError, Then, faults::then::HELD, queue::Place, resources::mr::Registration, view};

/// A command that was fetched.
#[derive(Debug)]
pub(crate) struct FetchedCommand {
    pub(crate) command: AqEntry,
    /// Time of the doorbell for the command, if known.
    pub(crate) rung: Option<Duration>,
    /// Fault to inject into the completion.
    pub(crate) fault: Option<Then>,
}

/// A command that was executed and is not completed.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) fetched: FetchedCommand,
    /// Status of the command.
    pub(crate) status: u8,
    /// Content of the completion.
    pub(crate) response: AcqEntry,
}

/// The admin queue.
#[derive(Debug, Default)]
pub(crate) struct AdminQueue {
    pub(crate) submission: Option<SubmissionRing>,
    pub(crate) completion: Option<EventRing>,
    /// A command that takes more than one call to execute. Later commands wait for it.
    pub(crate) executing: Option<(FetchedCommand, Box<Registration>)>,
    /// Time of the doorbell for each command that is submitted and not fetched, if known.
    pub(crate) rung: VecDeque<Option<Duration>>,
    /// Executed commands by due time and order of execution. A submission can't exceed the free entries of the completion
    /// queue, which also bounds the held commands.
    pending: BTreeMap<(Duration, u64), Pending>,
    submitted: u64,
    completed: u64,
    round_trips: u64,
    /// Whether no command was in flight when the driver submitted the next one.
    was_idle: bool,
    max_in_flight: usize,
}

view! {
    /// State of the admin queue.
    #[derive(Copy, Default)]
    AdminState from queue: &AdminQueue {
        /// Total number of submitted commands, counted when they are executed.
        submitted: u64 = queue.submitted,
        /// Total number of completed commands.
        completed: u64 = queue.completed,
        /// Total number of submissions while no command was in flight. This is how often the driver waited, regardless of the
        /// number of commands that it waited for.
        round_trips: u64 = queue.round_trips,
        /// Number of commands that are submitted and not completed.
        in_flight: usize = queue.in_flight(),
        /// Largest number of commands that were in flight at the same time.
        max_in_flight: usize = queue.max_in_flight,
    }
}

impl AdminQueue {
    /// Discards rings and commands, but keeps the counters.
    pub(crate) fn reset(&mut self) {
        self.submission = None;
        self.completion = None;
        self.executing = None;
        self.rung.clear();
        self.pending.clear();
        self.was_idle = false;
    }

    /// Memory of the completion queue, if configured.
    pub(crate) fn place(&self) -> Option<Place> {
        self.completion.as_ref().map(EventRing::place)
    }

    /// Number of commands that are fetched and not completed.
    fn fetched(&self) -> usize {
        self.pending.len() + usize::from(self.executing.is_some())
    }

    /// Number of commands that are submitted and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.fetched() + usize::from(self.waiting())
    }

    /// Number of commands that are submitted and not fetched.
    pub(crate) fn waiting(&self) -> u16 {
        self.submission.as_ref().map_or(0, SubmissionRing::waiting)
    }

    /// Handles the doorbell. `submitted` is the total number of submitted commands, modulo 2^16.
    pub(crate) fn submit(&mut self, now: Option<Duration>, submitted: u16) -> Result<(), ProtocolError> {
        let (in_flight, fetched) = (self.in_flight(), self.fetched());
        let (Some(ring), Some(completion)) = (&mut self.submission, &self.completion) else {
            return Err(ProtocolError::NoQueue);
        };
        // Each command needs an entry in the completion queue.
        let room = usize::from(completion.depth()).saturating_sub(fetched);
        let room = room.min(ring.depth().into());
        ring.submit(submitted, room).map_err(|submitted| ProtocolError::Overflow { submitted, room })?;
        self.was_idle |= in_flight == 0;
        let waiting = ring.waiting().into();
        self.rung.resize(waiting, now);
        Ok(())
    }

    /// Queues an executed command for completion at `due`. Numbers increase in the order of execution.
    pub(crate) fn executed(&mut self, due: Duration, number: u64, pending: Pending) {
        self.round_trips += u64::from(std::mem::take(&mut self.was_idle));
        self.pending.insert((due, number), pending);
        self.submitted += 1;
        self.max_in_flight = self.max_in_flight.max(self.in_flight());
    }

    /// Due time of the next completion. Held commands have none.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let due = self.pending.keys().next().map(|(due, _)| *due);
        due.filter(|due| *due != HELD)
    }

    /// Held commands: their numbers, and the names under which they are held.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u64, &str)> {
        let held = self.pending.range((HELD, 0)..);
        held.filter_map(|((_, number), pending)| Some((*number, pending.fetched.fault.as_ref()?.hold.as_deref()?)))
    }

    /// Releases a held command, which completes when the device runs next.
    pub(crate) fn release(&mut self, number: u64) {
        if let Some(pending) = self.pending.remove(&(HELD, number)) {
            self.pending.insert((Duration::ZERO, number), pending);
        }
    }

    /// Returns the locations of the page lists of commands that are not completed. The longest ones have chunks, of which
    /// this is the first.
    pub(crate) fn page_lists(&self) -> impl Iterator<Item = Place> {
        let executing = self.executing.iter().map(|(fetched, _)| &fetched.command);
        let pending = self.pending.values().map(|pending| &pending.fetched.command);
        let commands = executing.chain(pending);
        let is_registration = |opcode| Opcode::try_from(opcode) == Ok(Opcode::RegMr);
        let registrations = commands.filter(move |entry| is_registration(entry.header().opcode));
        registrations.filter_map(|entry| match RegMr::from_request(&entry.request()).page_list()? {
            PageList::Direct(list) | PageList::Indirect(list) => {
                Some(Place { base: list.address, size: list.length.into() })
            }
            PageList::Inline(_) => None,
        })
    }

    /// Removes and returns the next command that is due.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<Pending> {
        let next = self.pending.first_entry()?;
        (next.key().0 <= now).then(|| next.remove())
    }

    /// Writes the completion of a command, with its fault, and returns the entry as written.
    pub(crate) fn complete(
        &mut self,
        host: &mut dyn Host,
        pending: &Pending,
        with_checksum: bool,
    ) -> Result<AcqEntry, DmaError> {
        let Some(ring) = &mut self.completion else {
            return Ok(pending.response);
        };
        let fault = pending.fetched.fault.clone().unwrap_or_default();
        let mut id = pending.fetched.command.header().command_id.id;
        if fault.wrong_id {
            // No command in flight has this id: the driver has no more commands in flight than fit into the low bits.
            id ^= 0x800;
        }
        self.completed += 1;
        let mut entry = pending.response;
        for _ in 0..fault.copies() {
            AcqHeader {
                command_id: CommandId { id },
                status: pending.status,
                flags: AcqFlags { phase: ring.phase() != fault.wrong_phase },
                checksum: 0,
            }
            .put(&mut entry);
            for byte in &fault.corrupt {
                if let Some(corrupt) = entry.get_mut(usize::from(byte.offset)) {
                    *corrupt = byte.value;
                }
            }
            if with_checksum {
                let checksum = checksum::of_entry(&entry) ^ u16::from(fault.wrong_checksum);
                At::<{ checksum::OFFSET }>::store(&mut entry, checksum.to_le_bytes());
            }
            ring.push(host, &entry, ACQ_PHASE_OFFSET)?;
        }
        Ok(entry)
    }
}
