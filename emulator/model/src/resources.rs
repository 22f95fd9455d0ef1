// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The objects that a driver creates, and the commands that create, change and destroy them.
//!
//! The real firmware's answers to a bad command are not documented. In the model
//! - a reserved bit that is set, or parts of a command that contradict each other, are a
//!   `MALFORMED_REQUEST`,
//! - a number of an object that does not exist, or a value out of its range, are an
//!   `ILLEGAL_PARAMETER`,
//! - an operation that this device does not support, but another might, is an `UNSUPPORTED_OPCODE`,
//! - a limit that is reached is a `RESOURCE_ALLOCATION_FAILURE`,
//! - destroying an object that another one uses is `RESOURCE_BUSY`,
//! - host memory that is not accessible is an `UNKNOWN_ERROR`.

pub(crate) mod ah;
pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod event_counter;
pub(crate) mod failure;
pub(crate) mod memory;
pub(crate) mod mr;
pub(crate) mod page_list;
mod page_runs;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod qp_events;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
pub(crate) mod table;
pub(crate) mod uar;

use efa_hw::io::Cdesc;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{DmaError, Host, Queue, QueueError, Then, queue::Place, view};

/// All objects of a device.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    pub(crate) pds: pd::Pds,
    pub(crate) uars: uar::Uars,
    pub(crate) eqs: eq::Eqs,
    pub(crate) event_counters: event_counter::EventCounters,
    pub(crate) ahs: ah::Ahs,
    pub(crate) mrs: mr::Mrs,
    pub(crate) cqs: cq::Cqs,
    pub(crate) qps: qp::Qps,
}

view! {
    /// Numbers of objects of each kind.
    #[derive(Copy, Default)]
    ResourceCounts from it: &Resources {
        /// Protection domains.
        pd: usize = it.pds.len(),
        /// Privileged protection domains.
        privileged_pd: usize = it.pds.iter().filter(|pd| pd.privileged).count(),
        /// User access regions.
        uar: usize = it.uars.len(),
        /// Event queues.
        eq: usize = it.eqs.len(),
        /// Address handles.
        ah: usize = it.ahs.table.len(),
        /// Memory regions.
        mr: usize = it.mrs.table.len(),
        /// Memory regions that get their pages by work requests.
        fast_mr: usize = it.mrs.table.iter().filter(|mr| mr.fast).count(),
        /// Memory regions that have got pages by work requests.
        registered_fast_mr: usize = it.mrs.table.iter().filter(|mr| mr.fast && mr.has_memory()).count(),
        /// Memory regions that consist of bus addresses.
        physical_mr: usize = it.mrs.table.iter().filter(|mr| mr.physical).count(),
        /// Pages of memory regions.
        mr_pages: usize = it.mrs.table.iter().map(|mr| mr.pages.len() as usize).sum(),
        /// Completion queues.
        cq: usize = it.cqs.len(),
        /// Queue pairs.
        qp: usize = it.qps.table.len(),
        /// Event counters.
        event_counter: usize = it.event_counters.len(),
    }
}

impl Resources {
    /// Removes all objects, as a reset does. New objects get other numbers, as long as there are any.
    pub(crate) fn end(&mut self) {
        self.pds.end();
        self.uars.end();
        self.eqs.end();
        self.event_counters.end();
        self.ahs.end();
        self.mrs.end();
        self.cqs.end();
        self.qps.end();
    }

    /// Removes all objects, as a power loss does. Incarnations of queue pairs are not reused, as old `QpId`s may exist.
    pub(crate) fn forget(&mut self) {
        *self = Self { qps: std::mem::take(&mut self.qps).emptied(), ..Self::default() };
    }

    /// Returns whether a lookup since the last call named an object that a reset has removed.
    pub(crate) fn take_missed(&self) -> bool {
        [
            self.pds.take_missed(),
            self.uars.take_missed(),
            self.eqs.take_missed(),
            self.event_counters.take_missed(),
            self.ahs.table.take_missed(),
            self.mrs.table.take_missed(),
            self.cqs.take_missed(),
            self.qps.table.take_missed(),
        ]
        .contains(&true)
    }

    /// Posts a completion to a completion queue and sub-queue of a queue pair, with the effects of a fault, and an event if one is
    /// requested.
    pub(crate) fn complete(
        &mut self,
        host: &mut dyn Host,
        cq: (u16, u16),
        completion: Cdesc,
        fault: Option<&Then>,
    ) -> Result<(), DmaError> {
        let corrupt = fault.map_or(&[][..], |fault| &fault.corrupt);
        let Ok(queue) = self.cqs.get_mut(cq.0) else {
            return Ok(());
        };
        let eqn = queue.post(host, cq, completion, corrupt)?;
        match eqn.filter(|_| !fault.is_some_and(|fault| fault.no_interrupt)) {
            Some(eqn) => self.notify(host, eqn, cq.0),
            None => Ok(()),
        }
    }

    /// Posts an event about a completion queue.
    pub(crate) fn notify(&mut self, host: &mut dyn Host, eqn: u16, cqn: u16) -> Result<(), DmaError> {
        match self.eqs.post(host, eqn, cqn, 1) {
            Ok(Some(vector)) => host.interrupt(vector),
            Err(QueueError::Dma(error)) => return Err(error),
            // An event queue that completion queues use can't be destroyed.
            Ok(None) | Err(_) => {}
        }
        Ok(())
    }

    /// Returns the given event queue, or that of a completion queue.
    pub(crate) fn event_queue(&self, eqn: Option<u16>, cqn: u16) -> Result<u16, QueueError> {
        let eqn = eqn.map_or_else(|| self.cqs.eqn(cqn), Ok)?;
        self.place(Queue::Eq(eqn))?;
        Ok(eqn)
    }

    /// Returns the location of a queue.
    pub(crate) fn place(&self, queue: Queue) -> Result<Place, QueueError> {
        match queue {
            Queue::Cq(number) => self.cqs.get(number).map(|cq| cq.place),
            Queue::Rq(number) => self.qps.table.get(number).map(|qp| qp.receive_queue.place),
            Queue::Eq(number) => self.eqs.get(number).map(|eq| eq.place),
        }
        .map_err(|_| QueueError::Missing(queue))
    }

    /// Returns the locations of the queues and values that the device writes.
    fn written(&self) -> impl Iterator<Item = Place> {
        let queues = self.eqs.iter().map(|eq| eq.place);
        let queues = queues.chain(self.cqs.iter().map(|cq| cq.place));
        queues.chain(self.event_counters.iter().map(|counter| counter.place))
    }

    /// Returns host memory that the device may write to for the driver or its programs: of each region only the first page.
    pub(crate) fn written_places(&self) -> impl Iterator<Item = Place> {
        self.written().chain(self.mrs.written_places())
    }

    /// Returns the locations of all memory of objects.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        let read = self.qps.table.iter().map(|qp| qp.receive_queue.place);
        self.written().chain(read).chain(self.mrs.places())
    }
}
