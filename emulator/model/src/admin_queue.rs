// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: fetched commands that wait for their completion.

use std::{collections::BTreeMap, time::Duration};

use efa_hw::{
    admin::{ACQ_PHASE_OFFSET, AcqEntry, AcqFlags, AcqHeader, AqEntry, CommandId},
    checksum,
    wire::At,
};

use crate::{
    DmaError, Host, Then,
    queue::Place,
    ring::{EventRing, SubmissionRing},
    state::AdminState,
};

/// A command that was executed and is not complete.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The command.
    pub(crate) command: AqEntry,
    /// How it ended.
    pub(crate) status: u8,
    /// Content of its completion.
    pub(crate) response: AcqEntry,
    /// What is wrong with its completion.
    pub(crate) fault: Option<Then>,
}

/// The admin queue.
#[derive(Debug, Default)]
pub(crate) struct AdminQueue {
    pub(crate) submission: Option<SubmissionRing>,
    pub(crate) completion: Option<EventRing>,
    /// Commands by when they complete and in which order they came.
    pending: BTreeMap<(Duration, u64), Pending>,
    submitted: u64,
    completed: u64,
    round_trips: u64,
    max_in_flight: usize,
}

impl AdminQueue {
    /// Forgets rings and commands; what is counted stays counted.
    pub(crate) fn reset(&mut self) {
        self.submission = None;
        self.completion = None;
        self.pending.clear();
    }

    /// Where completions are written, if that is known.
    pub(crate) fn place(&self) -> Option<Place> {
        self.completion.as_ref().map(EventRing::place)
    }

    /// How many more commands can be in flight.
    pub(crate) fn room(&self) -> usize {
        let depth = self.completion.as_ref().map_or(0, EventRing::depth);
        usize::from(depth).saturating_sub(self.pending.len())
    }

    /// Takes a command that completes at some time.
    pub(crate) fn submit(&mut self, due: Duration, pending: Pending) {
        self.round_trips += u64::from(self.pending.is_empty());
        self.pending.insert((due, self.submitted), pending);
        self.submitted += 1;
        self.max_in_flight = self.max_in_flight.max(self.pending.len());
    }

    /// When the next command completes.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.pending.keys().next().map(|(due, _)| *due)
    }

    /// Takes the next command that is to be complete by now.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<Pending> {
        let next = self.pending.first_entry()?;
        (next.key().0 <= now).then(|| next.remove())
    }

    /// Writes the completion of a command and returns it as it was written.
    pub(crate) fn complete(
        &mut self,
        host: &mut dyn Host,
        pending: &Pending,
        with_checksum: bool,
    ) -> Result<AcqEntry, DmaError> {
        let Some(ring) = &mut self.completion else {
            return Ok(pending.response);
        };
        let fault = pending.fault.clone().unwrap_or_default();
        let mut id = pending.command.header().command_id.id;
        if fault.wrong_id {
            // The driver can't have this command in flight as well: it has as many as fit into the
            // low bits at most.
            id ^= 0x800;
        }
        self.completed += 1;
        let mut entry = pending.response;
        for _ in 0..if fault.duplicate { 2 } else { 1 } {
            AcqHeader {
                command_id: CommandId { id },
                status: pending.status,
                flags: AcqFlags {
                    phase: ring.phase() != fault.wrong_phase,
                },
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

    pub(crate) fn state(&self) -> AdminState {
        AdminState {
            submitted: self.submitted,
            completed: self.completed,
            round_trips: self.round_trips,
            in_flight: self.pending.len(),
            max_in_flight: self.max_in_flight,
        }
    }
}
