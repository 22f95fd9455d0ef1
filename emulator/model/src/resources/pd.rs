// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains. Address handles, memory regions and queue pairs use them.

use efa_hw::admin::{
    NoData, Status,
    pd::{AllocPdResponse, DeallocPd},
};

use super::table::{Shared, Table, Users};
use crate::profile::attributes::Attributes;

/// A protection domain.
#[derive(Debug, Default)]
pub(crate) struct Pd {
    users: Users,
    /// Whether its queue pairs may change memory regions. They may once the driver has made a region in it that programs can't
    /// have. By nothing else in the interface can a device tell those of the kernel.
    privileged: bool,
}

impl Shared for Pd {
    fn users(&mut self) -> &mut Users {
        &mut self.users
    }
}

/// All protection domains.
pub(crate) type Pds = Table<Pd>;

impl Pds {
    pub(crate) fn alloc(&mut self, attributes: &Attributes) -> Result<AllocPdResponse, Status> {
        let pd = self.insert(attributes.max_pd, Pd::default())?;
        Ok(AllocPdResponse { pd })
    }

    pub(crate) fn dealloc(&mut self, command: &DeallocPd) -> Result<NoData, Status> {
        self.remove_unused(command.pd)?;
        Ok(NoData {})
    }

    /// Takes note that a domain has a region now that programs can't have.
    pub(super) fn make_privileged(&mut self, number: u16) {
        if let Ok(pd) = self.get_mut(number) {
            pd.privileged = true;
        }
    }

    pub(crate) fn is_privileged(&self, number: u16) -> bool {
        self.get(number).is_ok_and(|pd| pd.privileged)
    }

    /// How many are privileged.
    pub(super) fn privileged(&self) -> usize {
        self.iter().filter(|pd| pd.privileged).count()
    }
}
