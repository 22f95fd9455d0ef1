// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receive queues: a ring of buffers in host memory.

use efa_hw::io::RxDesc;

use super::mr::Keyed;
use crate::{DmaError, Host, queue::Place};

/// A receive queue.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) place: Place,
    /// Descriptors that the program has rung the doorbell for, modulo 2^16.
    produced: u16,
    /// Descriptors that were used, modulo 2^16.
    consumed: u16,
}

/// A receive work request.
#[derive(Debug)]
pub(crate) struct Receive {
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
    /// What is in the ring is none. It has this number.
    Malformed(u16),
    /// The ring can't be read.
    Dma(DmaError),
}

impl ReceiveQueue {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            ..Self::default()
        }
    }

    /// Forgets all work requests.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.place);
    }

    fn descriptors(&self) -> u64 {
        self.place.size / RxDesc::SIZE as u64
    }

    /// Takes note of how many descriptors the program has written; returns whether there can be so many.
    pub(crate) fn ring(&mut self, produced: u16) -> bool {
        let possible = u64::from(produced.wrapping_sub(self.consumed)) <= self.descriptors();
        if possible {
            self.produced = produced;
        }
        possible
    }

    /// Reads the oldest work request, of at most `most` descriptors. It stays until it is removed.
    pub(crate) fn peek(&self, host: &mut dyn Host, most: u16) -> Result<Receive, NoReceive> {
        let available = self.produced.wrapping_sub(self.consumed);
        if available == 0 {
            return Err(NoReceive::Empty);
        }
        let mut receive = Receive {
            req_id: 0,
            buffers: Vec::new(),
            descriptors: 0,
        };
        loop {
            let index = u64::from(self.consumed.wrapping_add(receive.descriptors));
            let offset = (index % self.descriptors()) * RxDesc::SIZE as u64;
            let mut bytes = [0; RxDesc::SIZE];
            host.dma_read(self.place.base + offset, &mut bytes)
                .map_err(NoReceive::Dma)?;
            let desc = RxDesc::decode(&bytes);
            if receive.descriptors == 0 {
                receive.req_id = desc.req_id;
            }
            if desc.lkey_ctrl.first != (receive.descriptors == 0) {
                return Err(NoReceive::Malformed(receive.req_id));
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
            if receive.descriptors == available.min(most) {
                return Err(NoReceive::Malformed(receive.req_id));
            }
        }
    }

    /// Removes the work request that was read.
    pub(crate) fn remove(&mut self, receive: &Receive) {
        self.consumed = self.consumed.wrapping_add(receive.descriptors);
    }

    /// Removes all work requests.
    pub(crate) fn clear(&mut self) {
        self.consumed = self.produced;
    }
}
