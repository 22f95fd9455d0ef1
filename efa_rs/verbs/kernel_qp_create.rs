// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Creation of queue pairs for clients in the kernel.

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
    kernel_qp_sizes::Sizes,
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
    hw::admin::qp::{
        self,
        CreateQp, //
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
