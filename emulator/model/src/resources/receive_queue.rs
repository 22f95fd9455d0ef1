// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receive queues: a ring of buffers in host memory.
//!
//! A delivery takes a work request out of the ring when it begins. Until it has ended the queue remembers the work request, so
//! that a flush completes it, too.

use std::collections::BTreeMap;

use efa_hw::io::{RxDesc, RxLkeyCtrl};

use super::mr::Keyed;
use crate::{DmaError, Fault, Hex, Host, ProgramError, WorkQueue, queue::Place, trace::TraceEvent};

/// A receive queue.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) place: Place,
    /// Descriptors that the program has rung the doorbell for, modulo 2^16.
    produced: u16,
    /// Descriptors that were taken, modulo 2^16.
    consumed: u16,
    /// Numbers in completions of the work requests that were taken and have not ended, in the order of the ring.
    taken: BTreeMap<u64, u16>,
    /// Those of them that deliveries have given back. They come before what is in the ring.
    returned: BTreeMap<u64, Receive>,
    /// Descriptors of all that were taken and have not ended.
    busy: u64,
    /// Place in the order of the next that is taken.
    next: u64,
}

/// A receive work request.
#[derive(Debug)]
pub(crate) struct Receive {
    /// Its place in the order of all that were taken.
    number: u64,
    pub(crate) req_id: u16,
    pub(crate) buffers: Vec<Keyed>,
    /// How many descriptors it takes.
    descriptors: u16,
}

/// Why a work request can't be had.
#[derive(Debug)]
pub(crate) enum NoReceive {
    /// There is none.
    Empty,
    /// What is in the ring is none. It has this id.
    Malformed(u16, ProgramError),
    /// The ring can't be read.
    Dma(DmaError),
}

impl Receive {
    /// Its descriptors, as they were in the ring.
    fn descriptors(&self) -> Box<[u8]> {
        let last = self.buffers.len().saturating_sub(1);
        let descriptors = self.buffers.iter().enumerate().map(|(index, buffer)| {
            let descriptor = RxDesc {
                buf_addr: buffer.address,
                req_id: self.req_id,
                // CAST: it had 16 bits.
                length: buffer.length as u16,
                lkey_ctrl: RxLkeyCtrl {
                    lkey: buffer.key,
                    first: index == 0,
                    last: index == last,
                },
            };
            descriptor.encode()
        });
        descriptors.flatten().collect()
    }
}

impl ReceiveQueue {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            ..Self::default()
        }
    }

    /// What it is now.
    pub(super) fn look(&self) -> WorkQueue {
        WorkQueue {
            depth: self.descriptors(),
            produced: self.produced,
            consumed: self.consumed,
            outstanding: self.taken.len(),
        }
    }

    /// Forgets all work requests.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            next: self.next,
            ..Self::new(self.place)
        };
    }

    fn descriptors(&self) -> u64 {
        self.place.size / RxDesc::SIZE as u64
    }

    /// Takes note of how many descriptors the program has written; returns whether there can be so many. It may write over
    /// those of a work request that has ended only.
    pub(crate) fn ring(&mut self, produced: u16) -> bool {
        let waiting = u64::from(produced.wrapping_sub(self.consumed));
        let possible = waiting + self.busy <= self.descriptors();
        if possible {
            self.produced = produced;
        }
        possible
    }

    /// Takes the oldest work request of the queue pair, of at most `most` descriptors.
    pub(crate) fn take(
        &mut self,
        host: &mut dyn Host,
        qp: u16,
        most: u16,
    ) -> Result<Receive, NoReceive> {
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
        let mut receive = Receive {
            number: self.next,
            req_id: 0,
            buffers: Vec::new(),
            descriptors: 0,
        };
        loop {
            let index = self.consumed.wrapping_add(receive.descriptors);
            let index = u64::from(index) % self.descriptors();
            let offset = index * RxDesc::SIZE as u64;
            let mut bytes = [0; RxDesc::SIZE];
            host.dma_read(self.place.base + offset, &mut bytes)
                .map_err(NoReceive::Dma)?;
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
            receive.descriptors += 1;
            receive.buffers.push(Keyed {
                key: desc.lkey_ctrl.lkey,
                address: desc.buf_addr,
                length: desc.length.into(),
            });
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

    /// Gives back a work request that was taken.
    pub(crate) fn give_back(&mut self, receive: Receive) {
        if self.taken.contains_key(&receive.number) {
            self.returned.insert(receive.number, receive);
        }
    }

    /// Ends all work requests that were taken, and returns their numbers in completions.
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
