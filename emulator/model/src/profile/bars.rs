// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Layout of the BARs with doorbells and low-latency send queues.
//!
//! Each user access region has its own doorbell pages of 4 KiB. So a process that may map one region can't reach the doorbells
//! of another. On a host with larger pages it can, as that maps several regions at once. Every possible queue pair and completion
//! queue has a fixed place in these pages. Every possible send ring has a fixed place in the memory BAR. So none overlap, in
//! any order of creation and destruction.

use super::attributes::Attributes;

/// Unit in which most hosts map BARs; others map several at once.
const PAGE_SIZE: u64 = 4096;

/// Distance between two doorbells in bytes.
const DOORBELL_SIZE: u64 = 8;

/// Limit on the size of a BAR in bytes, so that 32-bit offsets can address all of it.
const MAX_SIZE: u64 = 1 << 31;

/// Layout of the doorbell BAR and the memory BAR. It is fixed when the device is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bars {
    /// Limit on user access regions.
    pub(crate) max_uar: u32,
    /// Limit on completion queues.
    pub(crate) max_cq: u32,
    /// Limit on queue pairs.
    pub(crate) max_qp: u32,
    /// Limit on the size of a send ring, in bytes.
    pub(crate) max_llq_size: u32,
}

impl Bars {
    /// Reserves places for all objects that the device can have, or for as many as fit into the BARs.
    pub(crate) fn new(attributes: &Attributes) -> Self {
        const MAX_OBJECTS: u32 = u16::MAX as u32;
        const MAX_LLQ_SIZE: u32 = 1 << 20;
        let mut bars = Self {
            max_uar: attributes.max_uar.min(MAX_OBJECTS),
            max_cq: attributes.max_cq.min(MAX_OBJECTS),
            max_qp: attributes.max_qp.min(MAX_OBJECTS),
            max_llq_size: attributes.max_llq_size.min(MAX_LLQ_SIZE),
        };
        bars.max_qp = places(bars.max_qp, bars.llq_stride());
        bars.max_uar = places(bars.max_uar, bars.uar_size());
        bars
    }

    /// Size of the doorbells of one user access region, in bytes.
    fn uar_size(&self) -> u64 {
        let doorbells = 2 * u64::from(self.max_qp) + u64::from(self.max_cq);
        (doorbells * DOORBELL_SIZE).next_multiple_of(PAGE_SIZE)
    }

    /// Distance between two send rings in the memory BAR, in bytes.
    fn llq_stride(&self) -> u64 {
        u64::from(self.max_llq_size).next_multiple_of(PAGE_SIZE)
    }

    /// Size of the doorbell BAR in bytes.
    pub(crate) fn doorbell_size(&self) -> u64 {
        (u64::from(self.max_uar) * self.uar_size()).next_power_of_two().max(PAGE_SIZE)
    }

    /// Size of the memory BAR in bytes.
    pub(crate) fn memory_size(&self) -> u64 {
        (u64::from(self.max_qp) * self.llq_stride()).next_power_of_two().max(PAGE_SIZE)
    }

    /// Offset of a doorbell in a user access region.
    pub(crate) fn doorbell(&self, uar: u16, doorbell: Doorbell) -> u32 {
        let place = match doorbell {
            Doorbell::Sq(qp) => 2 * place_of(qp),
            Doorbell::Rq(qp) => 2 * place_of(qp) + 1,
            Doorbell::Cq(cq) => 2 * u64::from(self.max_qp) + place_of(cq),
        };
        offset(place_of(uar) * self.uar_size() + place * DOORBELL_SIZE)
    }

    /// Finds the doorbell at an offset. Returns its user access region and its queue.
    pub(crate) fn find(&self, offset: u64) -> Option<(u16, Doorbell)> {
        let size = self.uar_size();
        let uar = offset.checked_div(size)?;
        let within = offset % size;
        let (place, rest) = (within / DOORBELL_SIZE, within % DOORBELL_SIZE);
        if uar >= self.max_uar.into() || rest != 0 {
            return None;
        }
        let queues = 2 * u64::from(self.max_qp);
        let doorbell = match place.checked_sub(queues) {
            None if place % 2 == 0 => Doorbell::Sq(number_at(place / 2)),
            None => Doorbell::Rq(number_at(place / 2)),
            Some(place) if place < self.max_cq.into() => Doorbell::Cq(number_at(place)),
            Some(_) => return None,
        };
        Some((number_at(uar), doorbell))
    }

    /// Send ring of a queue pair.
    pub(crate) fn llq(&self, qp: u16) -> u32 {
        offset(place_of(qp) * self.llq_stride())
    }
}

/// Number of `wanted` places of `size` bytes that fit into a BAR.
fn places(wanted: u32, size: u64) -> u32 {
    let most = MAX_SIZE.checked_div(size).unwrap_or(u64::MAX);
    // CAST: It is at most `wanted`.
    most.min(wanted.into()) as u32
}

/// Queue to which a doorbell belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    /// The send queue of a queue pair.
    Sq(u16),
    /// The receive queue of a queue pair.
    Rq(u16),
    /// A completion queue.
    Cq(u16),
}

/// The number of the object at a place; numbers start at 1.
fn number_at(place: u64) -> u16 {
    // CAST: places are less than 2^16 - 1, see `Bars::new`.
    (place + 1) as u16
}

/// The place of the object with a number; numbers start at 1.
fn place_of(number: u16) -> u64 {
    u64::from(number.saturating_sub(1))
}

/// An offset in a BAR as the interface gives it.
fn offset(bytes: u64) -> u32 {
    // CAST: `Bars::new` limits each BAR to `MAX_SIZE`.
    bytes as u32
}
