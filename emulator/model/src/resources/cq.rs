// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues. Queue pairs use them.

use efa_hw::admin::{
    NoData, Status,
    cq::{CreateCq, CreateCqResponse, CreateCqResponseFlags, DestroyCq},
};

use super::table::{Table, Users};
use crate::{
    Host, Queue, QueueError,
    firmware::{Execute, Failure, Firmware},
    queue::Place,
};

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    uar: u16,
    /// Event queue that gets its events, if it has any.
    eqn: Option<u16>,
    place: Place,
    users: Users,
}

/// All completion queues.
#[derive(Debug, Default)]
pub(crate) struct Cqs(Table<Cq>);

impl Cqs {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Finds the completion queue that a queue pair refers to.
    pub(crate) fn check(&self, index: u32) -> Result<u16, Status> {
        let index = u16::try_from(index).map_err(|_| Status::IllegalParameter)?;
        self.0.get(index)?;
        Ok(index)
    }

    /// Where a completion queue is.
    pub(crate) fn place(&self, index: u16) -> Option<Place> {
        self.0.get(index).ok().map(|cq| cq.place)
    }

    /// The event queue of a completion queue, if it has one.
    pub(crate) fn eqn(&self, index: u16) -> Result<u16, QueueError> {
        let queue = Queue::Cq(index);
        let cq = self.0.get(index).map_err(|_| QueueError::Missing(queue))?;
        cq.eqn.ok_or(QueueError::NoEvents(queue))
    }

    pub(crate) fn add_user(&mut self, index: u16) {
        if let Ok(cq) = self.0.get_mut(index) {
            cq.users.add();
        }
    }

    pub(crate) fn remove_user(&mut self, index: u16) {
        if let Ok(cq) = self.0.get_mut(index) {
            cq.users.remove();
        }
    }
}

impl Execute for CreateCq {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<CreateCqResponse, Failure> {
        let attributes = &firmware.attributes;
        let entry_size = u64::from(self.caps_2.cq_entry_size_words) * 4;
        let size = entry_size * u64::from(self.sub_cq_depth) * u64::from(self.num_sub_cqs);
        let legal = matches!(entry_size, 16 | 32)
            && (entry_size == 32 || !self.caps_2.set_src_addr)
            // Only memory that the driver gives, not memory regions of its users.
            && !self.caps_1.virt
            && self.l_key == 0
            && self.sub_cq_depth.is_power_of_two()
            && u32::from(self.sub_cq_depth) <= attributes.max_cq_depth
            && self.num_sub_cqs == attributes.sub_cqs_per_cq
            && self.base_address != 0
            && self.base_address % entry_size == 0
            && attributes.reaches(self.base_address, size);
        if !legal {
            return Err(Status::IllegalParameter.into());
        }
        let resources = &mut firmware.resources;
        resources.uars.get(self.uar)?;
        let eqn = self.caps_1.interrupt_mode_enabled.then_some(self.eqn);
        if let Some(eqn) = eqn {
            resources.eqs.check(eqn)?;
        }
        let limit = attributes.max_cq.min(firmware.bars.max_cq);
        let cq_idx = resources.cqs.0.insert(
            limit,
            Cq {
                uar: self.uar,
                eqn,
                place: Place {
                    base: self.base_address,
                    size,
                },
                users: Users::default(),
            },
        )?;
        resources.uars.add_user(self.uar);
        if let Some(eqn) = eqn {
            resources.eqs.add_user(eqn);
        }
        // Without a doorbell, polling a completion queue costs the guest no exits. Only arming one
        // needs it.
        let db_valid = eqn.is_some();
        Ok(CreateCqResponse {
            cq_idx,
            sub_cq_actual_depth: self.sub_cq_depth,
            db_offset: if db_valid {
                firmware.bars.cq_doorbell(self.uar, cq_idx)
            } else {
                0
            },
            flags: CreateCqResponseFlags { db_valid },
        })
    }
}

impl Execute for DestroyCq {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let resources = &mut firmware.resources;
        resources.cqs.0.get(self.cq_idx)?.users.none()?;
        let cq = resources.cqs.0.remove(self.cq_idx)?;
        resources.uars.remove_user(cq.uar);
        if let Some(eqn) = cq.eqn {
            resources.eqs.remove_user(eqn);
        }
        Ok(NoData {})
    }
}
