// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs and their state machine.

use std::collections::BTreeSet;

use efa_hw::{
    admin::{
        Status,
        qp::{CreateQp, CreateQpResponse, QpState, QpType, QueryQp, QueryQpResponse},
    },
    io::RxDesc,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    cq::Cqs,
    pd::Pds,
    qp_events::Attached,
    receive_queue::ReceiveQueue,
    send_queue::SendQueue,
    table::{Table, number},
    uar::Uars,
};
use crate::{
    QpCounters, WorkQueue, ensure,
    profile::{
        attributes::Attributes,
        bars::{Bars, Doorbell},
    },
    queue::Place,
    view,
};

/// Bytes in a descriptor of a receive queue.
const RX_DESCRIPTOR_SIZE: u64 = RxDesc::SIZE as u64;

/// Largest number of retries that can be set; it means no limit.
pub(crate) const MAX_RNR_RETRY: u8 = 7;

/// Returns the default number of retries: no limit for SRD. Source: libfabric, prov/efa/src/efa_base_ep.h.
pub(crate) fn default_rnr_retry(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Srd => MAX_RNR_RETRY,
        QpType::Ud => 0,
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) pd: u16,
    pub(crate) uar: u16,
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) qkey: u32,
    pub(crate) sq_psn: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) unsolicited_write_recv: bool,
    /// Whether request ids of the send queue have 64 bits.
    pub(crate) has_long_ids: bool,
    /// Completion queue of the send queue, and its sub-queue.
    pub(crate) send_cq: (u16, u16),
    /// Completion queue of the receive queue, and its sub-queue.
    pub(crate) recv_cq: (u16, u16),
    pub(crate) send_queue: SendQueue,
    pub(crate) receive_queue: ReceiveQueue,
    pub(crate) counted: QpCounters,
    /// Event counters that are attached, also after a reset.
    pub(crate) counters: Attached,
    /// Distinguishes the queue pair from earlier ones with its number, and from itself before a reset or failure.
    pub(crate) incarnation: u32,
}

impl Qp {
    /// Returns the current reference to the queue pair, which has this number.
    pub(crate) fn id(&self, number: u16) -> QpId {
        let incarnation = self.incarnation;
        QpId { number, incarnation }
    }
}

/// Reference to a queue pair, which becomes stale when the queue pair is reset, fails or is destroyed. References with the same
/// number are ordered by age, with the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QpId {
    /// Its number.
    pub number: u16,
    pub(crate) incarnation: u32,
}

/// All queue pairs. The handle of a queue pair is its number.
#[derive(Debug, Default)]
pub(crate) struct Qps {
    pub(crate) table: Table<Qp>,
    incarnations: u32,
    /// Queue pairs that may have work requests to fetch.
    scheduled: BTreeSet<u16>,
    /// Queue pair that had the last turn.
    last: u16,
}

/// Work requests in flight that a search for the users of a region looks at, at least.
const SEARCHED: usize = 4096;

/// Objects of the kinds that a queue pair uses.
pub(crate) struct Used<'a> {
    pub(crate) pds: &'a mut Pds,
    pub(crate) uars: &'a mut Uars,
    pub(crate) cqs: &'a mut Cqs,
}

view! {
    /// A queue pair.
    QueuePair from (number, qp): (u16, &Qp) {
        /// Its number.
        number: u16 = number,
        /// Its transport.
        transport: String = qp.qp_type.to_string(),
        /// Its state.
        state: String = qp.state.to_string(),
        /// Its protection domain.
        pd: u16 = qp.pd,
        /// Its user access region.
        uar: u16 = qp.uar,
        /// Completion queue and sub-queue of its send queue.
        send_cq: (u16, u16) = qp.send_cq,
        /// Completion queue and sub-queue of its receive queue.
        recv_cq: (u16, u16) = qp.recv_cq,
        /// Number of retries if the receiver is not ready (RNR); 7 means unlimited.
        rnr_retry: u8 = qp.rnr_retry,
        /// Its send queue.
        send_queue: WorkQueue = qp.send_queue.snapshot(),
        /// Its receive queue.
        receive_queue: WorkQueue = qp.receive_queue.snapshot(),
    }
}

impl Qps {
    /// Returns a queue pair and the id of its work request that uses the memory region with a local key. This only finds programs'
    /// errors, so that the search ends after [`SEARCHED`] work requests: each deregistration does it.
    pub(crate) fn user_of(&self, lkey: u32) -> Option<(u16, u16)> {
        let mut searched = 0;
        let is_searched = |(_, qp): &(u16, &Qp)| {
            let before = searched;
            searched += qp.send_queue.snapshot().outstanding;
            before < SEARCHED
        };
        let uses = |(number, qp): (u16, &Qp)| Some((number, qp.send_queue.user_of(lkey)?));
        self.table.numbered().take_while(is_searched).find_map(uses)
    }

    pub(crate) fn get(&self, number: u16) -> Option<&Qp> {
        self.table.get(number).ok()
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Qp> {
        self.table.get_mut(number).ok()
    }

    /// Returns the queue pair, unless it was reset, failed or destroyed since.
    pub(crate) fn current(&self, id: QpId) -> Option<&Qp> {
        self.get(id.number).filter(|qp| qp.incarnation == id.incarnation)
    }

    /// Returns the queue pair, unless it was reset, failed or destroyed since.
    pub(crate) fn current_mut(&mut self, id: QpId) -> Option<&mut Qp> {
        self.get_mut(id.number).filter(|qp| qp.incarnation == id.incarnation)
    }

    /// Removes all queue pairs, but keeps the count of incarnations.
    pub(super) fn emptied(self) -> Self {
        Self { table: Table::default(), incarnations: self.incarnations, ..Self::default() }
    }

    /// Removes all queue pairs, as a reset does.
    pub(super) fn end(&mut self) {
        self.table.end();
        self.scheduled.clear();
    }

    /// Schedules a queue pair if it may fetch a work request or resume a registration now. Otherwise unschedules it.
    pub(crate) fn schedule(&mut self, number: u16) {
        let sends = |qp: &Qp| match qp.state {
            QpState::Rts => qp.send_queue.registering.is_some() || qp.send_queue.can_start(),
            QpState::Sqd => qp.send_queue.registering.is_some(),
            _ => false,
        };
        if self.get(number).is_some_and(sends) {
            self.scheduled.insert(number);
        } else {
            self.scheduled.remove(&number);
        }
    }

    /// Unschedules and returns the next scheduled queue pair, round robin by number.
    pub(crate) fn next_scheduled(&mut self) -> Option<u16> {
        let (after, all) = (self.last.saturating_add(1).., ..);
        let mut candidates = self.scheduled.range(after).chain(self.scheduled.range::<u16, _>(all));
        let number = candidates.next().copied()?;
        self.scheduled.remove(&number);
        self.last = number;
        Some(number)
    }

    /// Makes all references to a queue pair stale, and unschedules it.
    pub(crate) fn renew(&mut self, number: u16) {
        self.incarnations = self.incarnations.wrapping_add(1);
        let incarnation = self.incarnations;
        if let Some(qp) = self.get_mut(number) {
            qp.incarnation = incarnation;
        }
        self.scheduled.remove(&number);
    }

    /// Creates a queue pair, which becomes a user of its objects.
    pub(crate) fn create(
        &mut self,
        attributes: &Attributes,
        bars: &Bars,
        Used { pds, uars, cqs }: Used<'_>,
        command: &CreateQp,
    ) -> Result<CreateQpResponse, Status> {
        let qp_type = QpType::try_from(command.qp_type).map_err(|_| Status::IllegalParameter)?;
        let unsolicited_write_recv = command.flags.unsolicited_write_recv;
        let supported = attributes.unsolicited_write_recv || !unsolicited_write_recv;
        ensure(supported, Status::UnsupportedOpcode)?;
        let has_long_ids = command.flags.sq_64_bit_req_id;
        let supported = attributes.sq_64_bit_req_id || !has_long_ids;
        ensure(supported, Status::MalformedRequest)?;
        // The send queue is in the device, the receive queue in memory that the driver allocates.
        let legal = command.sl <= attributes.max_sl
            && !(command.flags.sq_virt || command.flags.rq_virt)
            && (command.sq_base_addr, command.sq_l_key, command.rq_l_key) == (0, 0, 0)
            && is_send_queue(command, attributes)
            && is_receive_queue(command, attributes);
        ensure(legal, Status::IllegalParameter)?;

        pds.get(command.pd)?;
        uars.get(command.uar)?;
        let send_cq = number(command.send_cq_idx)?;
        let legal = cqs.get(send_cq)?.has_long_ids || !has_long_ids;
        let recv_cq = number(command.recv_cq_idx)?;
        cqs.get(recv_cq)?;
        ensure(legal, Status::IllegalParameter)?;
        let limit = attributes.max_qp.min(bars.max_qp);
        let qp_num = self.table.insert(
            attributes,
            limit,
            Qp {
                pd: command.pd,
                uar: command.uar,
                qp_type,
                state: QpState::Reset,
                qkey: 0,
                sq_psn: 0,
                rnr_retry: default_rnr_retry(qp_type),
                unsolicited_write_recv,
                has_long_ids,
                send_cq: (send_cq, 0),
                recv_cq: (recv_cq, 0),
                send_queue: SendQueue::default(),
                receive_queue: ReceiveQueue::new(Place {
                    base: command.rq_base_addr,
                    size: command.recv_queue_ring_size.into(),
                }),
                counted: QpCounters::default(),
                counters: Attached::default(),
                incarnation: 0,
            },
        )?;
        let llq = bars.llq(qp_num);
        let (send_sub_cq_idx, recv_sub_cq_idx) = cqs.sub_cqs(send_cq, recv_cq, qp_num);
        if let Some(qp) = self.get_mut(qp_num) {
            qp.send_cq.1 = send_sub_cq_idx;
            qp.recv_cq.1 = recv_sub_cq_idx;
            qp.send_queue = SendQueue::new(llq, command.send_queue_ring_size, command.send_queue_depth);
        }
        self.renew(qp_num);
        pds.add_user(command.pd);
        uars.add_user(command.uar);
        cqs.add_user(send_cq);
        cqs.add_user(recv_cq);
        Ok(CreateQpResponse {
            qp_handle: qp_num.into(),
            qp_num,
            send_sub_cq_idx,
            recv_sub_cq_idx,
            sq_db_offset: bars.doorbell(command.uar, Doorbell::Sq(qp_num)),
            rq_db_offset: bars.doorbell(command.uar, Doorbell::Rq(qp_num)),
            llq_descriptors_offset: llq,
        })
    }

    pub(crate) fn query(&self, command: &QueryQp) -> Result<QueryQpResponse, Status> {
        let qp = self.table.get(number(command.qp_handle)?)?;
        Ok(QueryQpResponse {
            qp_state: qp.state.into(),
            qkey: qp.qkey,
            sq_psn: qp.sq_psn,
            sq_draining: qp.state == QpState::Sqd && qp.send_queue.is_busy(),
            rnr_retry: qp.rnr_retry,
        })
    }

    /// Removes a queue pair that is known to exist.
    pub(crate) fn remove(&mut self, number: u16) -> Result<Qp, Status> {
        self.scheduled.remove(&number);
        self.table.remove(number)
    }
}

/// Whether the size of the send queue's ring is legal.
fn is_send_queue(command: &CreateQp, attributes: &Attributes) -> bool {
    let (depth, size) = (command.send_queue_depth, command.send_queue_ring_size);
    let min = u32::from(attributes.min_sq_depth);
    if (depth, size, min) == (0, 0, 0) {
        return true;
    }
    let wqe_size = size.checked_div(depth).filter(|_| size % depth == 0);
    (wqe_size == Some(64) || wqe_size == Some(128) && attributes.wide_wqe())
        && depth.is_power_of_two()
        && (min..=attributes.max_sq_depth).contains(&depth)
        && size <= attributes.max_llq_size
}

/// Whether size and address of the receive queue's ring are legal.
fn is_receive_queue(command: &CreateQp, attributes: &Attributes) -> bool {
    let (depth, size) = (u64::from(command.recv_queue_depth), u64::from(command.recv_queue_ring_size));
    if (depth, size) == (0, 0) {
        return true;
    }
    // In Linux's `efa_admin_cmds_defs.h`, `max_rq_depth` counts buffer descriptors. The doorbell counts them modulo 2^16: more
    // than half of that would make a full ring look empty.
    let most = u64::from(attributes.max_rq_depth).min(1 << 15);
    let descriptors = size / RX_DESCRIPTOR_SIZE;
    size % RX_DESCRIPTOR_SIZE == 0
        && descriptors.is_power_of_two()
        && depth <= descriptors
        && descriptors <= most
        && command.rq_base_addr != 0
        && command.rq_base_addr % RX_DESCRIPTOR_SIZE == 0
        && attributes.reaches(command.rq_base_addr, size)
}
