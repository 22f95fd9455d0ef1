// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event queues. Completion queues use them.

use efa_hw::{
    admin::{
        NoData, Status,
        eq::{CreateEq, CreateEqResponse, DestroyEq},
    },
    eq::Eqe,
    features::FeatureId,
};

use super::table::{Table, Users};
use crate::{
    Host,
    firmware::{Execute, Failure, Firmware},
};

/// An event queue.
#[derive(Debug, Default)]
pub(crate) struct Eq {
    armed: bool,
    users: Users,
}

/// All event queues.
#[derive(Debug, Default)]
pub(crate) struct Eqs(Table<Eq>);

impl Eqs {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Arms an event queue, if it exists.
    pub(crate) fn arm(&mut self, eqn: u16) -> bool {
        self.0.get_mut(eqn).map(|eq| eq.armed = true).is_ok()
    }

    pub(crate) fn armed(&self) -> usize {
        self.0.iter().filter(|eq| eq.armed).count()
    }

    /// Fails if the event queue does not exist.
    pub(crate) fn check(&self, eqn: u16) -> Result<(), Status> {
        self.0.get(eqn).map(|_| ())
    }

    pub(crate) fn add_user(&mut self, eqn: u16) {
        if let Ok(eq) = self.0.get_mut(eqn) {
            eq.users.add();
        }
    }

    pub(crate) fn remove_user(&mut self, eqn: u16) {
        if let Ok(eq) = self.0.get_mut(eqn) {
            eq.users.remove();
        }
    }
}

impl Execute for CreateEq {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<CreateEqResponse, Failure> {
        let attributes = &firmware.attributes;
        if !attributes.supports(FeatureId::EventQueueAttr) {
            return Err(Status::UnsupportedOpcode.into());
        }
        let size = u64::from(self.depth) * Eqe::SIZE as u64;
        let legal = self.depth.is_power_of_two()
            && u32::from(self.depth) <= attributes.max_eq_depth
            && usize::from(self.caps.entry_size_words) * 4 == Eqe::SIZE
            && u16::from(self.msix_vector) < firmware.vectors
            && self.events.completion
            && self.base_address != 0
            && self.base_address % Eqe::SIZE as u64 == 0
            && attributes.reaches(self.base_address, size);
        if !legal {
            return Err(Status::IllegalParameter.into());
        }
        let limit = attributes.max_eq;
        let eqn = firmware.resources.eqs.0.insert(limit, Eq::default())?;
        Ok(CreateEqResponse { eqn })
    }
}

impl Execute for DestroyEq {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let eqs = &mut firmware.resources.eqs.0;
        eqs.get(self.eqn)?.users.none()?;
        eqs.remove(self.eqn)?;
        Ok(NoData {})
    }
}
