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
    /// Work requests ever written; their slot and phase follow from it.
    produced: u32,
    /// Of those, the ones that the device was told of.
    announced: u32,
    /// The most that the device may be told of at once.
    max_batch: u32,
}

impl<'bound> SendRing<'bound> {
    /// Takes an empty ring. The device is told of at most `max_batch` work requests at once, at least one.
    pub(crate) fn new(slots: Slots<'bound>, doorbell: Doorbell<'bound>, max_batch: u32) -> Self {
        Self {
            slots,
            doorbell,
            produced: 0,
            announced: 0,
            max_batch: max_batch.max(1),
        }
    }

    /// Empties the ring, as the device does when the queue pair is reset.
    pub(crate) fn reset(&mut self) {
        self.produced = 0;
        self.announced = 0;
    }

    /// Writes a work request, of whose first descriptor the framing is added here.
    ///
    /// The caller has an index for it, so that it has a slot.
    #[inline]
    pub(crate) fn push(&mut self, mut meta: TxMetaDesc, body: &Body) {
        meta.ctrl1.meta_desc = true;
        meta.ctrl2 = TxCtrl2 {
            // Changes with each round.
            phase: self.produced & self.slots.count() != 0,
            first: true,
            last: true,
            comp_req: true,
        };

        self.slots.write(self.produced, &meta.encode(), body);

        self.produced = self.produced.wrapping_add(1);
        if self.produced.wrapping_sub(self.announced) == self.max_batch {
            self.announce();
        }
    }

    /// Tells the device of the work requests that it has not been told of.
    #[inline]
    pub(crate) fn announce(&mut self) {
        if self.announced == self.produced {
            return;
        }
        // The slots are written in any order, and before the doorbell.
        mb(Write);
        self.doorbell.ring(u32::from(self.produced as u16));
        // What is written to them next comes after it.
        mb(Write);
        self.announced = self.produced;
    }
}
