// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The ring of a send queue, in the device's memory.

use kernel::sync::barrier::{
    mb,
    Write, //
};

use crate::{
    hw::io::{
        TxBufDesc,
        TxCtrl2,
        TxMetaDesc,
        MAX_WQE_SIZE, //
    },
    sys::mmio::{
        Doorbell,
        Slots, //
    },
};

/// A part of what is behind the first descriptor of a work request: a buffer, or as much of other data.
pub(crate) type Part = [u8; TxBufDesc::SIZE];

/// What is behind it, of the largest work request.
pub(crate) type Body = [Part; (MAX_WQE_SIZE - TxMetaDesc::SIZE) / size_of::<Part>()];

/// The ring of a send queue, and how far it is filled.
pub(crate) struct SendRing<'bound> {
    slots: Slots<'bound>,
    doorbell: Doorbell<'bound>,
    /// Producer counter: work requests ever written. Their slot and phase follow from it.
    pc: u32,
    /// What `pc` was when the doorbell was last rung.
    doorbell_pc: u32,
    /// Most work requests for one ring of the doorbell.
    max_batch: u32,
}

impl<'bound> SendRing<'bound> {
    /// Takes an empty ring. The doorbell is rung for at most `max_batch` work requests at a time, at least one.
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

    /// Writes a work request, of whose first descriptor the framing is added here.
    ///
    /// The caller has an index for it, so that it has a slot.
    #[inline]
    pub(crate) fn push(&mut self, mut meta: TxMetaDesc, body: &Body) {
        meta.ctrl1.meta_desc = true;
        meta.ctrl2 = TxCtrl2 {
            // Changes with each round.
            phase: self.pc & self.slots.count() != 0,
            first: true,
            last: true,
            comp_req: true,
        };

        self.slots.write(self.pc, &meta.encode(), body);

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
        // The slots are written in any order, and before the doorbell.
        mb(Write);
        self.doorbell.ring(u32::from(self.pc as u16));
        // What is written to them next comes after it.
        mb(Write);
        self.doorbell_pc = self.pc;
    }
}
