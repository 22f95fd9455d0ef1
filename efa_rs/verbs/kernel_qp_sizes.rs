// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sizes of queue pairs of clients in the kernel, and limits on their work requests.

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
    rdma::QpCap, //
};

/// Maximum number of descriptors in a receive queue. The doorbell has 16 bits for the producer
/// counter, whose value would not change after a full queue of 2^16 descriptors.
const MAX_RECV_ENTRIES: u32 = 1 << 15;

/// Sizes of the queues of a queue pair in the kernel.
pub(super) struct Sizes {
    /// Bytes of a send work request.
    pub(super) wqe_size: usize,
    /// Number of send work requests, a power of two.
    pub(super) send_depth: u32,
    /// Number of receive work requests for which there is room, or 0.
    pub(super) recv_depth: u32,
    /// Number of receive descriptors, a power of two or 0.
    pub(super) recv_entries: u32,
    /// Maximum number of send work requests per doorbell write.
    pub(super) max_batch: u32,
}

impl Sizes {
    /// Computes the sizes for this capacity.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the capacity exceeds a limit.
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
        // The device limits descriptors, not work requests.
        if send_depth > queues.max_sq_depth
            || recv_entries > queues.max_rq_depth.min(MAX_RECV_ENTRIES)
        {
            return Err(EINVAL);
        }

        // A device with a minimum depth does not accept one doorbell write for a full queue.
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

    pub(super) fn limits(&self, efa: &Efa<'_>, cap: &QpCap) -> Limits {
        let places = (self.wqe_size - TxMetaDesc::SIZE) / TxBufDesc::SIZE;
        let rdma_sges = usize::from(efa.attributes().queues.max_wr_rdma_sges);
        // CAST: At most 96.
        let most = (places as u32 - 1) * TxBufDesc::SIZE as u32;
        Limits {
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            send_sges: places.min(cap.max_send_sge as usize),
            // The remote address takes the first place.
            rdma_sges: rdma_sges.min(places - 1),
            inline_data: cap.max_inline_data as usize,
            // Only a large work request has room for data after the remote address.
            rdma_inline_data: (self.wqe_size >= MAX_WQE_SIZE)
                .then_some(most.min(cap.max_inline_data)),
            recv_sges: cap.max_recv_sge as usize,
        }
    }
}

/// Limits on work requests of a queue pair.
pub(super) struct Limits {
    /// Maximum number of buffers of a send.
    pub(super) send_sges: usize,
    /// Maximum number of buffers of an RDMA read or write.
    pub(super) rdma_sges: usize,
    /// Maximum number of bytes of inline data.
    pub(super) inline_data: usize,
    /// The same of an RDMA write, if it can have any.
    pub(super) rdma_inline_data: Option<u32>,
    /// Maximum number of buffers of a receive.
    pub(super) recv_sges: usize,
}
