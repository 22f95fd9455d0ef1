// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The ring of a send queue, in the device's memory.

use crate::{
    hw::io::{
        TxBufDesc,
        TxCtrl2,
        TxMetaDesc,
        MAX_WQE_SIZE, //
    },
    sys::mmio::{
        Doorbell,
        Slot,
        Slots, //
    },
};

/// The most bytes behind the first descriptor of a work request.
const MAX_BODY: usize = MAX_WQE_SIZE - TxMetaDesc::SIZE;

/// Bytes of zeroes that are written at once.
const PART: usize = TxBufDesc::SIZE;

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

/// A work request that is being written.
pub(crate) struct Wqe<'r> {
    /// Where the first descriptor is.
    head: Slot<'r>,
    /// What is behind it.
    pub(crate) body: Slot<'r>,
    phase: bool,
}

impl Wqe<'_> {
    /// Writes the first descriptor, whose framing is added here, and zeroes where nothing was written.
    #[inline(always)]
    pub(crate) fn finish(mut self, mut meta: TxMetaDesc) {
        // A loop of so many rounds at most is unrolled.
        for _ in 0..MAX_BODY / PART {
            if self.body.write(&[0; PART]).is_none() {
                break;
            }
        }
        meta.ctrl1.meta_desc = true;
        meta.ctrl2 = TxCtrl2 {
            phase: self.phase,
            first: true,
            last: true,
            comp_req: true,
        };
        // It has this size.
        let _ = self.head.write(&meta.encode());
    }
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

    /// Returns the next work request, which is to be written. The device does not look at it before [`Self::push`].
    ///
    /// The caller has an index for it, so that it has a slot.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Wqe<'_>> {
        // Changes with each round.
        let phase = self.pc & self.slots.count() != 0;
        let mut body = self.slots.slot(self.pc);
        Some(Wqe {
            head: body.split_off::<{ TxMetaDesc::SIZE }>()?,
            body,
            phase,
        })
    }

    /// Adds the next work request, which was written.
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
