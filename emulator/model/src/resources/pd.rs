// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains. Address handles, memory regions and queue pairs use them.

use efa_hw::admin::{
    NoData, Status,
    pd::{AllocPdResponse, DeallocPd},
};

use super::table::Table;
use crate::profile::attributes::Attributes;

/// A protection domain.
#[derive(Debug, Default)]
pub(crate) struct Pd {
    /// Whether its queue pairs may change memory regions. It is set when the driver creates a region in it that programs can't
    /// have. The interface has no other sign that a protection domain belongs to the kernel.
    pub(super) privileged: bool,
}

/// All protection domains.
pub(crate) type Pds = Table<Pd>;

impl Pds {
    pub(crate) fn alloc(&mut self, attributes: &Attributes) -> Result<AllocPdResponse, Status> {
        let pd = self.insert(attributes, attributes.max_pd, Pd::default())?;
        Ok(AllocPdResponse { pd })
    }

    pub(crate) fn dealloc(&mut self, command: &DeallocPd) -> Result<NoData, Status> {
        self.remove_unused(command.pd)?;
        Ok(NoData {})
    }

    /// Marks a domain that has a region which programs can't have.
    pub(super) fn make_privileged(&mut self, number: u16) {
        if let Ok(pd) = self.get_mut(number) {
            pd.privileged = true;
        }
    }

    pub(crate) fn is_privileged(&self, number: u16) -> bool {
        self.get(number).is_ok_and(|pd| pd.privileged)
    }
}
