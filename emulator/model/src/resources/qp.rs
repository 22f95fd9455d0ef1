// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs and their state machine.

use efa_hw::admin::{
    NoData, Status,
    qp::{
        CreateQp, CreateQpResponse, DestroyQp, ModifyQp, QpState, QpType, QueryQp, QueryQpResponse,
    },
};

use super::table::Table;
use crate::{
    Host,
    attributes::Attributes,
    firmware::{Execute, Failure, Firmware},
    queue::Place,
};

/// Bytes in a descriptor of a receive queue.
const RX_DESCRIPTOR_SIZE: u64 = 16;

/// Most retries that can be set; this many mean that it never gives up.
const MAX_RNR_RETRY: u8 = 7;

/// Bits of a packet sequence number.
const MAX_PSN: u32 = (1 << 24) - 1;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pd: u16,
    uar: u16,
    send_cq: u16,
    recv_cq: u16,
    qp_type: QpType,
    state: QpState,
    qkey: u32,
    sq_psn: u32,
    rnr_retry: u8,
    receive_queue: Place,
}

/// All queue pairs. Handle and number of one are the same.
#[derive(Debug, Default)]
pub(crate) struct Qps(Table<Qp>);

impl Qps {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Where the receive queue of a queue pair is.
    pub(crate) fn receive_queue(&self, number: u16) -> Option<Place> {
        self.0.get(number).ok().map(|qp| qp.receive_queue)
    }

    fn number(handle: u32) -> Result<u16, Status> {
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
        let limit = attributes.max_qp.min(firmware.bars.max_qp);
        let qp_num = resources.qps.0.insert(
            limit,
            Qp {
                pd: self.pd,
                uar: self.uar,
                send_cq,
                recv_cq,
                qp_type,
                state: QpState::Reset,
                qkey: 0,
                sq_psn: 0,
                rnr_retry: 0,
                receive_queue: Place {
                    base: self.rq_base_addr,
                    size: self.recv_queue_ring_size.into(),
                },
            },
        )?;
        resources.pds.add_user(self.pd);
        resources.uars.add_user(self.uar);
        resources.cqs.add_user(send_cq);
        resources.cqs.add_user(recv_cq);
        Ok(CreateQpResponse {
            qp_handle: qp_num.into(),
            qp_num,
            send_sub_cq_idx: 0,
            recv_sub_cq_idx: 0,
            sq_db_offset: firmware.bars.sq_doorbell(self.uar, qp_num),
            rq_db_offset: firmware.bars.rq_doorbell(self.uar, qp_num),
            llq_descriptors_offset: firmware.bars.llq(qp_num),
        })
    }
}

impl Execute for ModifyQp {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let number = Qps::number(self.qp_handle)?;
        let qp = firmware.resources.qps.0.get_mut(number)?;
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

        if to == QpState::Reset {
            (qp.qkey, qp.sq_psn, qp.rnr_retry) = (0, 0, 0);
        }
        qp.state = to;
        if mask.qkey {
            qp.qkey = self.qkey;
        }
        if mask.sq_psn {
            qp.sq_psn = self.sq_psn;
        }
        if mask.rnr_retry {
            qp.rnr_retry = self.rnr_retry;
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
        let qp = firmware.resources.qps.0.get(Qps::number(self.qp_handle)?)?;
        Ok(QueryQpResponse {
            qp_state: qp.state.into(),
            qkey: qp.qkey,
            sq_psn: qp.sq_psn,
            // Nothing is ever outstanding.
            sq_draining: false,
            rnr_retry: qp.rnr_retry,
        })
    }
}

impl Execute for DestroyQp {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let resources = &mut firmware.resources;
        let qp = resources.qps.0.remove(Qps::number(self.qp_handle)?)?;
        resources.pds.remove_user(qp.pd);
        resources.uars.remove_user(qp.uar);
        resources.cqs.remove_user(qp.send_cq);
        resources.cqs.remove_user(qp.recv_cq);
        Ok(NoData {})
    }
}
