// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Creation of queue pairs for clients in the kernel: their sizes, and limits on their work requests.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi,
    attached::Sides,
    cq::Cq,
    kernel_qp::{
        Fixed,
        KernelQp,
        RecvQueue,
        SendQueue, //
    },
    qp::{
        check_sizes,
        DeviceQp,
        Qp,
        ReceiveRing, //
    },
    Efa,
    Verbs, //
};
use crate::{
    com::Lent,
    hw::{
        admin::qp::{
            self,
            CreateQp, //
        },
        io::{
            RxDesc,
            TxBufDesc,
            TxMetaDesc,
            MAX_WQE_SIZE,
            MIN_WQE_SIZE, //
        },
    },
    io::{
        outstanding,
        RecvRing,
        SendRing, //
    },
    rdma::{
        QpCap,
        QpInitAttr,
        QpRef,
        QpState,
        QpType, //
    },
    sys::{
        atomic::AtomicU8,
        dma::Entries, //
    },
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

impl<'a> Qp<'a> {
    /// Creates a queue pair for a client in the kernel.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if flags, a transport or a shared receive queue are requested that are not
    ///   supported.
    /// - [`EINVAL`] if a size exceeds a limit, or a completion queue belongs to a process.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    pub(super) fn create_posted(
        efa: &Efa<'a>,
        attr: &QpInitAttr<'_, 'a, Verbs>,
        qp: &Arc<QpRef>,
        signals_all: bool,
    ) -> Result<Self> {
        if attr.has_srq || attr.create_flags != 0 {
            return Err(EOPNOTSUPP);
        }
        let qp_type = match attr.qp_type {
            QpType::UD => qp::QpType::Ud,
            abi::KERNEL_QP_TYPE_SRD => qp::QpType::Srd,
            _ => return Err(EOPNOTSUPP),
        };
        let (send_cq, recv_cq) = attr.send_cq.zip(attr.recv_cq).ok_or(EINVAL)?;
        let polled = |cq: &Cq<'a>| cq.polled().cloned().ok_or(EINVAL);
        let (send_queue, recv_queue) = (polled(send_cq)?, polled(recv_cq)?);

        let sizes = Sizes::new(efa, &attr.cap)?;
        let (send_bytes, recv_bytes) = (sizes.send_bytes()?, sizes.recv_bytes()?);
        check_sizes(efa, &attr.cap, send_bytes)?;
        let (epoch, dev) = (efa.session.epoch(), efa.session.device().dev());
        let entries = match sizes.recv_entries {
            0 => None,
            count => Some(Arc::new(Entries::zeroed(dev, count)?, GFP_KERNEL)?),
        };
        let receive_ring = match &entries {
            None => None,
            Some(entries) => {
                let ring = Lent::new(epoch, &"a queue pair", entries.clone())?;
                Some(ReceiveRing::Kernel(ring))
            }
        };
        let (send_requests, sends) = outstanding::new(sizes.send_depth)?;
        let (recv_requests, recvs) = match sizes.recv_depth {
            0 => (None, None),
            _ => {
                let (posts, polls) = outstanding::new(sizes.recv_depth)?;
                (Some(posts), Some(polls))
            }
        };

        let create = CreateQp {
            pd: attr.pd.pdn,
            qp_type: qp_type.into(),
            rq_base_addr: receive_ring.as_ref().map_or(0, |ring| ring.dma_address()),
            send_cq_idx: send_cq.index().into(),
            recv_cq_idx: recv_cq.index().into(),
            send_queue_ring_size: send_bytes,
            send_queue_depth: sizes.send_depth,
            recv_queue_ring_size: recv_bytes,
            recv_queue_depth: sizes.recv_depth,
            uar: efa.kernel_uar.get(efa.admin())?,
            ..CreateQp::default()
        };
        let created = DeviceQp::create(efa, &create, receive_ring.as_ref())?;
        let device_qp = DeviceQp {
            handle: created.qp_handle,
            receive_ring,
        };

        let make = || {
            let slots = efa.bars.map_send_queue(
                created.llq_descriptors_offset,
                sizes.wqe_size,
                sizes.send_depth,
            )?;
            let doorbell = efa.bars.map_doorbell(created.sq_db_offset)?;
            let recv = match entries.zip(recv_requests) {
                Some((entries, requests)) => {
                    let doorbell = efa.bars.map_doorbell(created.rq_db_offset)?;
                    let ring = RecvRing::new(entries, doorbell);
                    Some(RecvQueue { ring, requests })
                }
                None => None,
            };
            let send = SendQueue {
                ring: SendRing::new(slots, doorbell, sizes.max_batch),
                requests: send_requests,
            };
            let sides = Sides {
                send: Some(sends),
                recv: recvs,
            };
            let fixed = Fixed {
                qp: qp.clone(),
                send_cq: send_queue,
                recv_cq: recv_queue,
                qp_num: created.qp_num,
                qp_type: attr.qp_type,
                limits: sizes.limits(efa, &attr.cap),
                signals_all,
            };
            KernelQp::new(send, recv, sides, fixed)
        };
        let pair = make().inspect_err(|_: &Error| {
            // The error to return is the first one.
            efa.session.epoch().settle(device_qp.destroy(efa));
        })?;

        Ok(Self {
            posted: Some(pair),
            device_qp,
            qp_num: created.qp_num,
            qp_type: attr.qp_type,
            state: AtomicU8::new(QpState::Reset as u8),
            cap: QpCap {
                max_send_wr: sizes.send_depth,
                max_recv_wr: sizes.recv_depth,
                ..attr.cap
            },
            ring_sizes: [send_bytes, recv_bytes],
            llq_offset: created.llq_descriptors_offset,
        })
    }
}
