// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The ring of a send queue, in the device's memory.

use crate::{
    hw::io::{
        TxBufDesc,
        TxCtrl2,
        TxMetaDesc, //
    },
    sys::mmio::{
        Doorbell,
        Slot,
        Slots, //
    },
};

/// Number of zero bytes that are written at once.
const PART: usize = TxBufDesc::SIZE;

/// The ring of a send queue, with its producer counter.
pub(crate) struct SendRing<'bound> {
    slots: Slots<'bound>,
    doorbell: Doorbell<'bound>,
    /// Producer counter: work requests written so far. It determines the next slot and its phase.
    pc: u32,
    /// Value of `pc` when the doorbell was last rung.
    doorbell_pc: u32,
    /// Limit on work requests per doorbell write.
    max_batch: u32,
}

/// A work request that is being written.
pub(crate) struct Wqe<'r> {
    /// Space of the first descriptor.
    head: Slot<'r>,
    /// Space after the first descriptor.
    pub(crate) body: Slot<'r>,
    phase: bool,
}

impl Wqe<'_> {
    /// Writes zeroes to the rest of the body, and then the first descriptor with its framing bits.
    #[inline(always)]
    pub(crate) fn finish(mut self, mut meta: TxMetaDesc) {
        while self.body.write(&[0; PART]).is_some() {}
        meta.ctrl1.meta_desc = true;
        meta.ctrl2 = TxCtrl2 {
            phase: self.phase,
            first: true,
            last: true,
            comp_req: true,
        };
        // The slot has exactly this size.
        let _ = self.head.write(&meta.encode());
    }
}

impl<'bound> SendRing<'bound> {
    /// Creates an empty ring. `max_batch` limits the work requests per doorbell write; 0 means 1.
    pub(crate) fn new(slots: Slots<'bound>, doorbell: Doorbell<'bound>, max_batch: u32) -> Self {
        Self {
            slots,
            doorbell,
            pc: 0,
            doorbell_pc: 0,
            max_batch: max_batch.max(1),
        }
    }

    /// Empties the ring, as the device does when the queue pair is reset.
    pub(crate) fn reset(&mut self) {
        self.pc = 0;
        self.doorbell_pc = 0;
    }

    /// Returns the next work request for writing. The device reads it only after [`Self::push`].
    ///
    /// The caller has allocated its index, so that there is a slot.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Wqe<'_>> {
        // The phase toggles with each pass over the ring.
        let phase = self.pc & self.slots.count() != 0;
        let mut body = self.slots.slot(self.pc);
        Some(Wqe {
            head: body.split_off::<{ TxMetaDesc::SIZE }>()?,
            body,
            phase,
        })
    }

    /// Adds the written work request. Rings the doorbell if the batch is full.
    #[inline]
    pub(crate) fn push(&mut self) {
        self.pc = self.pc.wrapping_add(1);
        if self.pc.wrapping_sub(self.doorbell_pc) == self.max_batch {
            self.ring_doorbell();
        }
    }

    /// Rings the doorbell, if work requests were written since the last time.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) {
        if self.doorbell_pc == self.pc {
            return;
        }
        self.doorbell.ring_ordered(u32::from(self.pc as u16));
        self.doorbell_pc = self.pc;
    }
}
