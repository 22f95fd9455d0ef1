// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receive queues: a ring of buffers in host memory.
//!
//! A delivery takes a work request out of the ring when it begins. The queue keeps track of the work request until the delivery
//! ends, so that a flush completes it, too.

use std::{collections::BTreeMap, iter};

use efa_hw::io::{RxDesc, RxLkeyCtrl};

use super::memory::Keyed;
use crate::{DmaError, Fault, Hex, Host, ProgramError, WorkQueue, queue::Place, trace::TraceEvent};

/// A receive queue.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) place: Place,
    /// Number of descriptors that the program has posted, modulo 2^16.
    produced: u16,
    /// Number of descriptors that were taken, modulo 2^16.
    consumed: u16,
    /// Request ids of the work requests that were taken and have not ended, in the order of the ring.
    taken: BTreeMap<u64, u16>,
    /// Those of them that aborted deliveries returned. They precede those in the ring.
    returned: BTreeMap<u64, Receive>,
    /// Number of descriptors of all work requests that were taken and have not ended.
    busy: u64,
    /// Number of the next work request that is taken from the ring.
    next: u64,
}

/// A receive work request.
#[derive(Debug)]
pub(crate) struct Receive {
    /// Its place in the order in which work requests leave the ring.
    number: u64,
    pub(crate) req_id: u16,
    first: Keyed,
    // Without an allocation in the usual case.
    rest: Vec<Keyed>,
    /// Number of its descriptors.
    descriptors: u16,
}

/// Why no work request can be taken.
#[derive(Debug)]
pub(crate) enum NoReceive {
    /// No work request is posted.
    Empty,
    /// The work request with this id is malformed.
    Malformed(u16, ProgramError),
    /// The ring can't be read.
    Dma(DmaError),
}

impl Receive {
    /// Returns its buffers.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = Keyed> {
        iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Encodes its descriptors, as they were in the ring.
    fn descriptors(&self) -> Box<[u8]> {
        let last = self.rest.len();
        let descriptors = self.buffers().enumerate().map(|(index, buffer)| {
            let descriptor = RxDesc {
                buf_addr: buffer.address,
                req_id: self.req_id,
                // CAST: it had 16 bits.
                length: buffer.length as u16,
                lkey_ctrl: RxLkeyCtrl { lkey: buffer.key, first: index == 0, last: index == last },
            };
            descriptor.encode()
        });
        descriptors.flatten().collect()
    }
}

impl ReceiveQueue {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, ..Self::default() }
    }

    /// Describes the queue for a snapshot.
    pub(super) fn snapshot(&self) -> WorkQueue {
        WorkQueue {
            depth: self.descriptors(),
            produced: self.produced,
            consumed: self.consumed,
            outstanding: self.taken.len(),
        }
    }

    /// Discards all work requests.
    pub(crate) fn reset(&mut self) {
        *self = Self { next: self.next, ..Self::new(self.place) };
    }

    fn descriptors(&self) -> u64 {
        self.place.size / RxDesc::SIZE as u64
    }

    /// Sets the number of posted descriptors, and returns whether the ring has room for them. The program may only overwrite
    /// descriptors of work requests that have ended.
    pub(crate) fn ring(&mut self, produced: u16) -> bool {
        let waiting = u64::from(produced.wrapping_sub(self.consumed));
        let valid = waiting + self.busy <= self.descriptors();
        if valid {
            self.produced = produced;
        }
        valid
    }

    /// Takes the oldest work request of the queue pair, of at most `most` descriptors.
    pub(crate) fn take(&mut self, host: &mut dyn Host, qp: u16, most: u16) -> Result<Receive, NoReceive> {
        if let Some((_, receive)) = self.returned.pop_first() {
            return Ok(receive);
        }
        let receive = self.read(host, qp, most)?;
        if host.traces_work() {
            let descriptors = receive.descriptors();
            host.trace(&TraceEvent::Receive { qp, descriptors });
        }
        self.consumed = self.consumed.wrapping_add(receive.descriptors);
        self.busy += u64::from(receive.descriptors);
        self.taken.insert(receive.number, receive.req_id);
        self.next += 1;
        Ok(receive)
    }

    /// Reads the oldest work request that is in the ring.
    fn read(&self, host: &mut dyn Host, qp: u16, most: u16) -> Result<Receive, NoReceive> {
        let available = self.produced.wrapping_sub(self.consumed);
        if available == 0 {
            return Err(NoReceive::Empty);
        }
        let mut receive =
            Receive { number: self.next, req_id: 0, first: Keyed::default(), rest: Vec::new(), descriptors: 0 };
        loop {
            let index = self.consumed.wrapping_add(receive.descriptors);
            let index = u64::from(index) % self.descriptors();
            let offset = index * RxDesc::SIZE as u64;
            let mut bytes = [0; RxDesc::SIZE];
            host.dma_read(self.place.base + offset, &mut bytes).map_err(NoReceive::Dma)?;
            let desc = RxDesc::decode(&bytes);
            if receive.descriptors == 0 {
                receive.req_id = desc.req_id;
            }
            let malformed = |reason| {
                let error = ProgramError::Malformed {
                    queue: "rq",
                    qp,
                    // CAST: a ring has at most 2^32 bytes.
                    index: index as u32,
                    reason,
                    bytes: Hex(bytes.into()),
                };
                NoReceive::Malformed(receive.req_id, error)
            };
            if desc.lkey_ctrl.first != (receive.descriptors == 0) {
                return Err(malformed(Fault::First));
            }
            if !desc.lkey_ctrl.last && receive.descriptors + 1 == available.min(most) {
                return Err(malformed(Fault::Endless));
            }
            let buffer = Keyed { key: desc.lkey_ctrl.lkey, address: desc.buf_addr, length: desc.length.into() };
            match receive.descriptors {
                0 => receive.first = buffer,
                _ => receive.rest.push(buffer),
            }
            receive.descriptors += 1;
            if desc.lkey_ctrl.last {
                return Ok(receive);
            }
        }
    }

    /// Ends a work request that was taken.
    pub(crate) fn end(&mut self, receive: &Receive) {
        if self.taken.remove(&receive.number).is_some() {
            self.busy -= u64::from(receive.descriptors);
        }
    }

    /// Returns a taken work request to the queue.
    pub(crate) fn return_receive(&mut self, receive: Receive) {
        if self.taken.contains_key(&receive.number) {
            self.returned.insert(receive.number, receive);
        }
    }

    /// Ends all work requests that were taken, and returns their request ids.
    pub(crate) fn end_taken(&mut self) -> impl Iterator<Item = u16> + use<> {
        self.returned.clear();
        self.busy = 0;
        std::mem::take(&mut self.taken).into_values()
    }

    /// Removes all work requests from the ring.
    pub(crate) fn clear(&mut self) {
        self.consumed = self.produced;
    }
}
