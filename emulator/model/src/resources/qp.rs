// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs and their state machine.

use efa_hw::{
    admin::{
        NoData, Status,
        qp::{
            CreateQp, CreateQpResponse, DestroyQp, ModifyQp, QpState, QpType, QueryQp,
            QueryQpResponse,
        },
    },
    io::RxDesc,
};
use serde::{Deserialize, Serialize};

use super::{
    event_counter::Attached, receive_queue::ReceiveQueue, send_queue::SendQueue, table::Table,
};
use crate::{
    Host,
    attributes::Attributes,
    firmware::{Execute, Failure, Firmware},
    queue::Place,
};

/// Bytes in a descriptor of a receive queue.
const RX_DESCRIPTOR_SIZE: u64 = RxDesc::SIZE as u64;

/// Most retries that can be set; this many mean that it never gives up.
const MAX_RNR_RETRY: u8 = 7;

/// Retries of a queue pair for which none were set: SRD never gives up. Source: libfabric, prov/efa/src/efa_base_ep.h.
fn default_rnr_retry(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Srd => MAX_RNR_RETRY,
        QpType::Ud => 0,
    }
}

/// Bits of a packet sequence number.
const MAX_PSN: u32 = (1 << 24) - 1;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) pd: u16,
    pub(crate) uar: u16,
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) qkey: u32,
    sq_psn: u32,
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
    /// What counts its events, also after a reset.
    pub(super) counters: Attached,
    /// Distinguishes it from those that had its number before, and from what it was before a reset.
    pub(crate) incarnation: u32,
}

/// A queue pair that exists, and has not been reset or in error since it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QpId {
    /// Its number.
    pub number: u16,
    pub(crate) incarnation: u32,
}

/// All queue pairs. Handle and number of one are the same.
#[derive(Debug, Default)]
pub(crate) struct Qps {
    table: Table<Qp>,
    incarnations: u32,
}

impl Qps {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Where the receive queue of a queue pair is.
    pub(crate) fn receive_queue(&self, number: u16) -> Option<Place> {
        self.table.get(number).ok().map(|qp| qp.receive_queue.place)
    }

    pub(crate) fn get(&self, number: u16) -> Option<&Qp> {
        self.table.get(number).ok()
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Qp> {
        self.table.get_mut(number).ok()
    }

    /// The queue pair, unless it was reset, in error or destroyed since.
    pub(crate) fn current(&self, id: QpId) -> Option<&Qp> {
        self.get(id.number)
            .filter(|qp| qp.incarnation == id.incarnation)
    }

    /// The queue pair, unless it was reset, in error or destroyed since.
    pub(crate) fn current_mut(&mut self, id: QpId) -> Option<&mut Qp> {
        self.get_mut(id.number)
            .filter(|qp| qp.incarnation == id.incarnation)
    }

    /// What a queue pair is known by now.
    pub(crate) fn id(&self, number: u16) -> Option<QpId> {
        let incarnation = self.get(number)?.incarnation;
        Some(QpId {
            number,
            incarnation,
        })
    }

    /// The same without any queue pair.
    pub(super) fn emptied(self) -> Self {
        Self {
            table: Table::default(),
            incarnations: self.incarnations,
        }
    }

    /// Removes all, as a reset does.
    pub(super) fn end(&mut self) {
        self.table.end();
    }

    /// Whether one was looked for since the last call that a reset has ended.
    pub(super) fn take_missed(&self) -> bool {
        self.table.take_missed()
    }

    /// Ends all that others do for a queue pair.
    pub(crate) fn renew(&mut self, number: u16) {
        self.incarnations = self.incarnations.wrapping_add(1);
        let incarnation = self.incarnations;
        if let Some(qp) = self.get_mut(number) {
            qp.incarnation = incarnation;
        }
    }

    pub(super) fn number(handle: u32) -> Result<u16, Status> {
        u16::try_from(handle).map_err(|_| Status::IllegalParameter)
    }
}

/// Whether the driver may move a queue pair from one state to another.
fn is_transition(from: QpState, to: QpState) -> bool {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    match to {
        Reset => true,
        Init => matches!(from, Reset | Init),
        Rtr => from == Init,
        Rts => matches!(from, Rtr | Rts | Sqd | Sqe),
        Sqd => matches!(from, Rts | Sqd),
        // Only the device itself stops a send queue for an error.
        Sqe => false,
        Err => from != Reset,
    }
}

/// Checks the size of the send queue's ring.
fn check_send_queue(command: &CreateQp, attributes: &Attributes) -> Result<(), Status> {
    let (depth, size) = (command.send_queue_depth, command.send_queue_ring_size);
    let min = u32::from(attributes.min_sq_depth);
    if depth == 0 && size == 0 && min == 0 {
        return Ok(());
    }
    let wqe_size = size.checked_div(depth).filter(|_| size % depth == 0);
    let legal = match wqe_size {
        Some(64) => true,
        Some(128) => attributes.wide_wqe(),
        _ => false,
    } && depth.is_power_of_two()
        && (min..=attributes.max_sq_depth).contains(&depth)
        && size <= attributes.max_llq_size;
    if legal {
        Ok(())
    } else {
        Err(Status::IllegalParameter)
    }
}

/// Checks size and place of the receive queue's ring.
fn check_receive_queue(command: &CreateQp, attributes: &Attributes) -> Result<(), Status> {
    let (depth, size) = (
        u64::from(command.recv_queue_depth),
        u64::from(command.recv_queue_ring_size),
    );
    if depth == 0 && size == 0 {
        return Ok(());
    }
    let most = u64::from(attributes.max_rq_depth) * u64::from(attributes.max_wr_recv_sges).max(1);
    let descriptors = size / RX_DESCRIPTOR_SIZE;
    let legal = depth <= u64::from(attributes.max_rq_depth)
        && size % RX_DESCRIPTOR_SIZE == 0
        && descriptors.is_power_of_two()
        && depth <= descriptors
        && descriptors <= most.next_power_of_two()
        && command.rq_base_addr != 0
        && command.rq_base_addr % RX_DESCRIPTOR_SIZE == 0
        && attributes.reaches(command.rq_base_addr, size);
    if legal {
        Ok(())
    } else {
        Err(Status::IllegalParameter)
    }
}

impl Execute for CreateQp {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<CreateQpResponse, Failure> {
        let attributes = &firmware.attributes;
        let qp_type = QpType::try_from(self.qp_type).map_err(|_| Status::IllegalParameter)?;
        if self.flags.unsolicited_write_recv && !attributes.unsolicited_write_recv {
            return Err(Status::UnsupportedOpcode.into());
        }
        let has_long_ids = self.flags.sq_64_bit_req_id;
        if has_long_ids && !attributes.sq_64_bit_req_id {
            return Err(Status::MalformedRequest.into());
        }
        // The send queue is in the device, the receive queue in memory that the driver gives.
        let virt = self.flags.sq_virt || self.flags.rq_virt;
        if virt || self.sq_base_addr != 0 || self.sq_l_key != 0 || self.rq_l_key != 0 {
            return Err(Status::IllegalParameter.into());
        }
        check_send_queue(&self, attributes)?;
        check_receive_queue(&self, attributes)?;

        let resources = &mut firmware.resources;
        resources.pds.get(self.pd)?;
        resources.uars.get(self.uar)?;
        let send_cq = resources.cqs.check(self.send_cq_idx)?;
        let recv_cq = resources.cqs.check(self.recv_cq_idx)?;
        if has_long_ids && !resources.cqs.has_long_ids(send_cq) {
            return Err(Status::IllegalParameter.into());
        }
        let limit = attributes.max_qp.min(firmware.bars.max_qp);
        let qp_num = resources.qps.table.insert(
            limit,
            Qp {
                pd: self.pd,
                uar: self.uar,
                qp_type,
                state: QpState::Reset,
                qkey: 0,
                sq_psn: 0,
                rnr_retry: default_rnr_retry(qp_type),
                unsolicited_write_recv: self.flags.unsolicited_write_recv,
                has_long_ids,
                send_cq: (send_cq, 0),
                recv_cq: (recv_cq, 0),
                send_queue: SendQueue::default(),
                receive_queue: ReceiveQueue::new(Place {
                    base: self.rq_base_addr,
                    size: self.recv_queue_ring_size.into(),
                }),
                counters: Attached::default(),
                incarnation: 0,
            },
        )?;
        let llq = firmware.bars.llq(qp_num);
        let (send_sub_cq_idx, recv_sub_cq_idx) = resources.cqs.sub_cqs(send_cq, recv_cq, qp_num);
        if let Some(qp) = resources.qps.get_mut(qp_num) {
            qp.send_cq.1 = send_sub_cq_idx;
            qp.recv_cq.1 = recv_sub_cq_idx;
            qp.send_queue = SendQueue::new(llq, self.send_queue_ring_size, self.send_queue_depth);
        }
        resources.qps.renew(qp_num);
        resources.pds.add_user(self.pd);
        resources.uars.add_user(self.uar);
        resources.cqs.add_user(send_cq);
        resources.cqs.add_user(recv_cq);
        Ok(CreateQpResponse {
            qp_handle: qp_num.into(),
            qp_num,
            send_sub_cq_idx,
            recv_sub_cq_idx,
            sq_db_offset: firmware.bars.sq_doorbell(self.uar, qp_num),
            rq_db_offset: firmware.bars.rq_doorbell(self.uar, qp_num),
            llq_descriptors_offset: llq,
        })
    }
}

impl Execute for ModifyQp {
    fn execute(self, firmware: &mut Firmware, host: &mut dyn Host) -> Result<NoData, Failure> {
        let number = Qps::number(self.qp_handle)?;
        let qp = firmware.resources.qps.table.get_mut(number)?;
        let mask = self.modify_mask;
        let state = |state: u32| QpState::try_from(state).map_err(|_| Status::IllegalParameter);

        // All checks come first: a command that fails changes nothing.
        if mask.cur_qp_state && state(self.cur_qp_state)? != qp.state {
            return Err(Status::IllegalParameter.into());
        }
        let to = if mask.qp_state {
            state(self.qp_state)?
        } else {
            qp.state
        };
        if mask.qp_state && !is_transition(qp.state, to) {
            return Err(Status::IllegalParameter.into());
        }
        if mask.rnr_retry && !firmware.attributes.rnr_retry {
            return Err(Status::UnsupportedOpcode.into());
        }
        let legal = (!mask.rnr_retry
            || qp.qp_type == QpType::Srd && self.rnr_retry <= MAX_RNR_RETRY)
            && (!mask.sq_psn || self.sq_psn <= MAX_PSN)
            && (!mask.sq_drained_async_notify || to == QpState::Sqd);
        if !legal {
            return Err(Status::IllegalParameter.into());
        }

        let from = std::mem::replace(&mut qp.state, to);
        if to == QpState::Reset {
            (qp.qkey, qp.sq_psn) = (0, 0);
            qp.rnr_retry = default_rnr_retry(qp.qp_type);
            qp.send_queue.reset();
            qp.receive_queue.reset();
        }
        if mask.qkey {
            qp.qkey = self.qkey;
        }
        if mask.sq_psn {
            qp.sq_psn = self.sq_psn;
        }
        if mask.rnr_retry {
            qp.rnr_retry = self.rnr_retry;
        }
        match to {
            QpState::Reset => firmware.resources.qps.renew(number),
            QpState::Err => firmware.flush(host, number),
            // What was posted while it could not send.
            QpState::Rts if from != to => firmware.fetch_sends(host, number),
            _ => {}
        }
        Ok(NoData {})
    }
}

impl Execute for QueryQp {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<QueryQpResponse, Failure> {
        let qp = firmware
            .resources
            .qps
            .table
            .get(Qps::number(self.qp_handle)?)?;
        Ok(QueryQpResponse {
            qp_state: qp.state.into(),
            qkey: qp.qkey,
            sq_psn: qp.sq_psn,
            sq_draining: qp.state == QpState::Sqd && qp.send_queue.is_busy(),
            rnr_retry: qp.rnr_retry,
        })
    }
}

impl Execute for DestroyQp {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let resources = &mut firmware.resources;
        let qp = resources.qps.table.remove(Qps::number(self.qp_handle)?)?;
        resources.pds.remove_user(qp.pd);
        resources.uars.remove_user(qp.uar);
        resources.cqs.remove_user(qp.send_cq.0);
        resources.cqs.remove_user(qp.recv_cq.0);
        resources.event_counters.detach_all(qp.counters);
        Ok(NoData {})
    }
}
