// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The ring of a receive queue, in host memory.

use kernel::sync::Arc;

use super::outstanding::WrIndex;
use crate::{
    hw::io::{
        RxDesc,
        RxLkeyCtrl, //
    },
    sys::{
        dma::Entries,
        mmio::Doorbell, //
    },
};

/// A buffer of a receive work request.
#[derive(Default)]
pub(crate) struct Buffer {
    /// Address as the device sees it.
    pub(crate) addr: u64,
    /// Length in bytes.
    pub(crate) length: u16,
    /// Local key of the memory region.
    pub(crate) lkey: u32,
}

/// The ring of a receive queue, with its producer counter.
pub(crate) struct RecvRing<'bound> {
    entries: Arc<Entries<'bound, { RxDesc::SIZE }>>,
    doorbell: Doorbell<'bound>,
    /// Producer counter: number of descriptors written.
    pc: u32,
    /// Value of `pc` when the doorbell was last rung.
    doorbell_pc: u32,
}

impl<'bound> RecvRing<'bound> {
    /// Creates an empty ring.
    pub(crate) fn new(
        entries: Arc<Entries<'bound, { RxDesc::SIZE }>>,
        doorbell: Doorbell<'bound>,
    ) -> Self {
        Self {
            entries,
            doorbell,
            pc: 0,
            doorbell_pc: 0,
        }
    }

    /// Empties the ring, as the device does when the queue pair is reset.
    pub(crate) fn reset(&mut self) {
        self.pc = 0;
        self.doorbell_pc = 0;
    }

    /// Writes a work request with these buffers, or with one empty buffer if there are none.
    ///
    /// The caller has allocated its index, so that there is a descriptor for each buffer.
    #[inline]
    pub(crate) fn push(
        &mut self,
        index: WrIndex,
        mut buffers: impl ExactSizeIterator<Item = Buffer>,
    ) {
        let mut left = buffers.len();
        if left <= 1 {
            let buffer = buffers.next().unwrap_or_default();
            return self.write(index.as_raw(), &buffer, true, true);
        }
        let (mut req_id, mut first) = (index.as_raw(), true);
        for buffer in buffers {
            // As many as there are buffers.
            left = left.wrapping_sub(1);
            self.write(req_id, &buffer, first, left == 0);
            (req_id, first) = (0, false);
        }
    }

    #[inline]
    fn write(&mut self, req_id: u16, buffer: &Buffer, first: bool, last: bool) {
        let descriptor = RxDesc {
            buf_addr: buffer.addr,
            req_id,
            length: buffer.length,
            lkey_ctrl: RxLkeyCtrl {
                lkey: buffer.lkey,
                first,
                last,
            },
        };
        self.entries.write(self.pc, &descriptor.encode());
        self.pc = self.pc.wrapping_add(1);
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
