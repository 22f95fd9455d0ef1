// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues. Queue pairs use them.

use efa_hw::{
    admin::{
        NoData, Status,
        cq::{CreateCq, CreateCqResponse, CreateCqResponseFlags, DestroyCq},
    },
    io::{CDESC_FLAGS_OFFSET, Cdesc, CdescFlags, CqDb},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{eq::Eqs, table::Table, uar::Uars};
use crate::{
    Corruption, DmaError, Host, Queue, QueueError, ensure,
    profile::{
        attributes::Attributes,
        bars::{Bars, Doorbell},
    },
    program_error::{ProgramError, Since},
    queue::Place,
    trace::TraceEvent,
    view,
};

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) uar: u16,
    /// Event queue for its events, if any.
    eqn: Option<u16>,
    pub(super) place: Place,
    /// Bytes in an entry.
    entry_size: usize,
    /// Entries in a sub-queue, a power of two.
    depth: u32,
    /// Number of completions ever posted to each sub-queue, from which their entries and phases follow.
    posted: Vec<u32>,
    /// Whether completions have the addresses of peers that have no address handle.
    pub(crate) has_src_addr: bool,
    /// Whether completions of send queues have request ids of 64 bits.
    pub(super) has_long_ids: bool,
    /// Whether the next completion raises an event.
    armed: bool,
    /// Number of completions of work requests since the last doorbell of any work queue that uses it, or its own.
    since_doorbell: u32,
    /// Number of completions that events have announced: all that were posted when the last one was raised.
    announced: u32,
}

view! {
    /// A completion queue.
    CompletionQueue from (number, cq): (u16, &Cq) {
        /// Its number.
        number: u16 = number,
        /// Bus address.
        base: u64 = cq.place.base,
        /// Size of an entry in bytes.
        entry_size: usize = cq.entry_size,
        /// Number of entries of each sub-queue.
        depth: u32 = cq.depth,
        /// Total number of completions posted to each sub-queue.
        posted: Vec<u32> = cq.posted.clone(),
        /// Its event queue.
        eq: Option<u16> = cq.eqn,
        /// Whether the next completion raises an event.
        armed: bool = cq.armed,
    }
}

impl Cq {
    /// Posts a completion to a sub-queue. Returns the event queue to notify, if any.
    ///
    /// If the program polls too slowly, new completions overwrite the oldest: its queue is too small.
    pub(super) fn post(
        &mut self,
        host: &mut dyn Host,
        (number, sub_cq): (u16, u16),
        mut completion: Cdesc,
        corrupt: &[Corruption],
    ) -> Result<Option<u16>, DmaError> {
        let Some(count) = self.posted.get_mut(usize::from(sub_cq)) else {
            return Ok(None);
        };
        let posted = *count;
        // The depth is a power of two, so that neither entry nor phase jump when this wraps.
        *count = posted.wrapping_add(1);
        completion.flags.phase = posted / self.depth % 2 == 0;
        let index = u64::from(sub_cq) * u64::from(self.depth) + u64::from(posted % self.depth);
        let mut entry = completion.encode();
        for byte in corrupt {
            if let Some(corrupt) = entry.get_mut(usize::from(byte.offset)) {
                *corrupt = byte.value;
            }
        }
        if !corrupt.is_empty() {
            // With the wrong phase, the program would not see a completion.
            let flags = CdescFlags::from_raw(entry[CDESC_FLAGS_OFFSET]);
            let phase = completion.flags.phase;
            entry[CDESC_FLAGS_OFFSET] = CdescFlags { phase, ..flags }.into_raw();
        }
        // The program polls the phase, which is in the bytes that a host sees first.
        let entry = &entry[..self.entry_size];
        host.dma_write(self.place.base + index * self.entry_size as u64, entry)?;
        if host.traces_work() {
            let (cq, entry) = (number, entry.into());
            host.trace(&TraceEvent::Completion { cq, entry });
        }
        Ok(if self.armed { self.announce() } else { None })
    }

    /// Handles a write to the doorbell. Returns the event queue to notify at once, if any.
    ///
    /// A completion that an event has announced raises no other one, even if the program has not polled it yet. So a program that
    /// arms its queue before it polls, as in the manual of `ibv_get_cq_event`, gets one event for each.
    pub(crate) fn ring(&mut self, value: u32) -> Option<u16> {
        let doorbell = CqDb::from_raw(value);
        self.since_doorbell = 0;
        if !doorbell.arm {
            return None;
        }
        self.armed = true;
        // CAST: the doorbell counts modulo 2^16.
        let is_taken = self.all_posted() as u16 == doorbell.consumer_index;
        if is_taken || self.all_posted() == self.announced {
            return None;
        }
        self.announce()
    }

    /// Returns the number of entries of all sub-queues.
    fn entries(&self) -> u32 {
        // CAST: there are at most 2^16 sub-queues, of which each has at most 2^15 entries.
        self.depth * self.posted.len() as u32
    }

    /// Returns an error if the consumer index of a doorbell shows that unread entries were overwritten.
    pub(crate) fn overflow(&self, cq: u16, value: u32) -> Option<ProgramError> {
        // CAST: the doorbell counts modulo 2^16.
        let unread = (self.all_posted() as u16).wrapping_sub(CqDb::from_raw(value).consumer_index);
        let (unread, depth) = (u32::from(unread), self.entries());
        let since = Since::ConsumerIndex;
        (unread > depth).then_some(ProgramError::CqOverflow { cq, depth, unread, since })
    }

    /// Returns the number of completions ever posted to all sub-queues.
    fn all_posted(&self) -> u32 {
        let sum = |sum: u32, posted: &u32| sum.wrapping_add(*posted);
        self.posted.iter().fold(0, sum)
    }

    /// Disarms the queue, and returns the event queue to notify.
    fn announce(&mut self) -> Option<u16> {
        self.armed = false;
        self.announced = self.all_posted();
        self.eqn
    }
}

/// All completion queues.
pub(crate) type Cqs = Table<Cq>;

impl Cqs {
    /// Returns the event queue of a completion queue, if any.
    pub(crate) fn eqn(&self, index: u16) -> Result<u16, QueueError> {
        let queue = Queue::Cq(index);
        let cq = self.get(index).map_err(|_| QueueError::Missing(queue))?;
        cq.eqn.ok_or(QueueError::NoEvents(queue))
    }

    /// Returns the sub-queues of two completion queues that a queue pair uses to send and to receive.
    pub(super) fn sub_cqs(&self, send: u16, recv: u16, qp_num: u16) -> (u16, u16) {
        let pick = |index, turn: u32| {
            let count = self.get(index).map_or(1, |cq| cq.posted.len().max(1));
            // CAST: it is less than the number of sub-queues, which has 16 bits.
            ((u32::from(qp_num) * 2 + turn) as usize % count) as u16
        };
        (pick(send, 0), pick(recv, 1))
    }

    /// Records a doorbell of a work queue that uses this completion queue, as a sign that the program is alive.
    pub(crate) fn note_doorbell(&mut self, index: u16) {
        if let Ok(cq) = self.get_mut(index) {
            cq.since_doorbell = 0;
        }
    }

    /// Counts the completion of a work request. Returns an error if more of them than entries came since the program's last
    /// doorbell. Then the program has posted more work requests than the queue has room for.
    pub(crate) fn note_completion(&mut self, index: u16) -> Option<ProgramError> {
        let cq = self.get_mut(index).ok()?;
        cq.since_doorbell = cq.since_doorbell.saturating_add(1);
        let (unread, depth) = (cq.since_doorbell, cq.entries());
        let since = Since::Doorbell;
        // Reported only once.
        (unread == depth + 1).then_some(ProgramError::CqOverflow { cq: index, depth, unread, since })
    }

    pub(crate) fn create(
        &mut self,
        attributes: &Attributes,
        bars: &Bars,
        uars: &mut Uars,
        eqs: &mut Eqs,
        command: &CreateCq,
    ) -> Result<CreateCqResponse, Status> {
        let supported = attributes.sq_64_bit_req_id || !command.caps_2.sq_comp_64_bit_req_id;
        ensure(supported, Status::MalformedRequest)?;
        let entry_size = u64::from(command.caps_2.cq_entry_size_words) * 4;
        let size = entry_size * u64::from(command.sub_cq_depth) * u64::from(command.num_sub_cqs);
        let legal = matches!(entry_size, 16 | 32)
            && (entry_size == 32 || !command.caps_2.set_src_addr)
            // Only memory that the driver allocates, not memory regions of its users.
            && !command.caps_1.virt
            && command.l_key == 0
            && command.sub_cq_depth.is_power_of_two()
            && u32::from(command.sub_cq_depth) <= attributes.max_cq_depth
            && command.num_sub_cqs == attributes.sub_cqs_per_cq
            && command.base_address != 0
            && command.base_address % entry_size == 0
            && attributes.reaches(command.base_address, size);
        ensure(legal, Status::IllegalParameter)?;
        uars.get(command.uar)?;
        let eqn = command.caps_1.interrupt_mode_enabled.then_some(command.eqn);
        if let Some(eqn) = eqn {
            eqs.get(eqn)?;
        }
        let limit = attributes.max_cq.min(bars.max_cq);
        let cq_idx = self.insert(
            attributes,
            limit,
            Cq {
                uar: command.uar,
                eqn,
                place: Place { base: command.base_address, size },
                // CAST: 16 or 32.
                entry_size: entry_size as usize,
                depth: command.sub_cq_depth.into(),
                posted: vec![0; command.num_sub_cqs.into()],
                has_src_addr: command.caps_2.set_src_addr,
                has_long_ids: command.caps_2.sq_comp_64_bit_req_id,
                armed: false,
                since_doorbell: 0,
                announced: 0,
            },
        )?;
        uars.add_user(command.uar);
        if let Some(eqn) = eqn {
            eqs.add_user(eqn);
        }
        // Without a doorbell, polling a completion queue costs the guest no exits. Only arming needs a doorbell.
        let db_valid = eqn.is_some();
        Ok(CreateCqResponse {
            cq_idx,
            sub_cq_actual_depth: command.sub_cq_depth,
            db_offset: if db_valid { bars.doorbell(command.uar, Doorbell::Cq(cq_idx)) } else { 0 },
            flags: CreateCqResponseFlags { db_valid },
        })
    }

    pub(crate) fn destroy(&mut self, uars: &mut Uars, eqs: &mut Eqs, command: &DestroyCq) -> Result<NoData, Status> {
        let cq = self.remove_unused(command.cq_idx)?;
        uars.remove_user(cq.uar);
        if let Some(eqn) = cq.eqn {
            eqs.remove_user(eqn);
        }
        Ok(NoData {})
    }
}
