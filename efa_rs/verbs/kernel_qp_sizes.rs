// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sizes of queue pairs of the kernel, and what their work requests may have.

use kernel::prelude::*;

use super::Efa;
use crate::{
    hw::io::{
        RxDesc,
        TxBufDesc,
        TxMetaDesc,
        MAX_WQE_SIZE,
        MIN_WQE_SIZE, //
    },
    io::{
        outstanding,
        PollSide,
        PostSide, //
    },
    rdma::{
        QpCap,
        WrToken, //
    },
};

/// Most descriptors of a receive queue. A doorbell has 16 bits for the producer counter: after a full queue of 2^16 it
/// would have the value from before.
const MAX_RECV_ENTRIES: u32 = 1 << 15;

/// Sizes of the queues of a queue pair in the kernel.
pub(super) struct Sizes {
    /// Bytes of a send work request.
    pub(super) wqe_size: usize,
    /// Send work requests, a power of two.
    pub(super) send_depth: u32,
    /// Receive work requests, as many as have room, or none.
    pub(super) recv_depth: u32,
    /// Descriptors of receive work requests, a power of two or none.
    pub(super) recv_entries: u32,
    /// Most send work requests for one ring of the doorbell.
    pub(super) max_batch: u32,
}

impl Sizes {
    /// Finds out what is needed for this capacity.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is more than there can be.
    pub(super) fn new(efa: &Efa<'_>, cap: &QpCap) -> Result<Self> {
        let queues = &efa.attributes().queues;

        let wqe_size = if cap.max_inline_data > queues.inline_buf_size {
            MAX_WQE_SIZE
        } else {
            MIN_WQE_SIZE
        };
        let send_depth = cap
            .max_send_wr
            .max(queues.min_sq_depth.into())
            .max(1)
            .checked_next_power_of_two()
            .ok_or(EINVAL)?;
        let recv_sges = cap.max_recv_sge.max(1);
        let recv_entries = match cap.max_recv_wr {
            0 => 0,
            count => count
                .checked_mul(recv_sges)
                .and_then(u32::checked_next_power_of_two)
                .ok_or(EINVAL)?,
        };
        // The device's limit is one of descriptors.
        if recv_entries > queues.max_rq_depth.min(MAX_RECV_ENTRIES) {
            return Err(EINVAL);
        }

        // A device that has a least depth takes no doorbell for all of a queue at once.
        let mut max_batch = match u32::from(queues.max_tx_batch) {
            0 => u32::from(u16::MAX),
            // CAST: 64 or 128.
            units => units * MIN_WQE_SIZE as u32 / wqe_size as u32,
        };
        if queues.min_sq_depth != 0 {
            max_batch = max_batch.min(send_depth - 1);
        }
        Ok(Self {
            wqe_size,
            send_depth,
            recv_depth: recv_entries / recv_sges,
            recv_entries,
            max_batch,
        })
    }

    /// Returns the bytes of the send queue's ring.
    pub(super) fn send_bytes(&self) -> Result<u32> {
        // CAST: 64 or 128.
        self.send_depth
            .checked_mul(self.wqe_size as u32)
            .ok_or(EINVAL)
    }

    /// Returns the bytes of the receive queue's ring.
    pub(super) fn recv_bytes(&self) -> Result<u32> {
        // CAST: 16.
        self.recv_entries
            .checked_mul(RxDesc::SIZE as u32)
            .ok_or(EINVAL)
    }

    /// Returns what a work request may have.
    pub(super) fn limits(&self, efa: &Efa<'_>, cap: &QpCap) -> Limits {
        let places = (self.wqe_size - TxMetaDesc::SIZE) / TxBufDesc::SIZE;
        let rdma_sges = usize::from(efa.attributes().queues.max_wr_rdma_sges);
        Limits {
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            send_sges: places.min(cap.max_send_sge as usize),
            // The first place has the peer's memory.
            rdma_sges: rdma_sges.min(places - 1),
            inline_data: cap.max_inline_data as usize,
            wqe_size: self.wqe_size,
            recv_sges: cap.max_recv_sge as usize,
        }
    }

    /// Makes room for what is posted to the send queue.
    ///
    /// # Errors
    ///
    /// Those of [`outstanding::new`].
    pub(super) fn send_requests(&self) -> Result<(PostSide<WrToken>, PollSide<WrToken>)> {
        outstanding::new(self.send_depth)
    }

    /// Makes room for what is posted to the receive queue.
    ///
    /// # Errors
    ///
    /// Those of [`outstanding::new`].
    pub(super) fn recv_requests(&self) -> Result<(PostSide<WrToken>, PollSide<WrToken>)> {
        outstanding::new(self.recv_depth)
    }
}

/// What a work request of a queue pair may have.
pub(super) struct Limits {
    /// Buffers of a send.
    pub(super) send_sges: usize,
    /// Buffers of an RDMA read or write.
    pub(super) rdma_sges: usize,
    /// Bytes of inline data.
    pub(super) inline_data: usize,
    /// Bytes of a send work request in the ring.
    pub(super) wqe_size: usize,
    /// Buffers of a receive.
    pub(super) recv_sges: usize,
}
