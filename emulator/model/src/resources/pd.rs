// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains. Address handles, memory regions and queue pairs use them.

use efa_hw::admin::{
    NoData,
    pd::{AllocPd, AllocPdResponse, DeallocPd},
};

use super::table::{Shared, Table, Users};
use crate::{
    Host,
    firmware::{Execute, Failure, Firmware},
};

/// A protection domain.
#[derive(Debug, Default)]
pub(crate) struct Pd {
    users: Users,
    /// Whether its queue pairs may change memory regions. It is if the driver ever made a region in it that programs can't
    /// have, for the interface has nothing else by which a device could know those of the kernel.
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

impl Execute for AllocPd {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<AllocPdResponse, Failure> {
        let limit = firmware.attributes.max_pd;
        let pd = firmware.resources.pds.insert(limit, Pd::default())?;
        Ok(AllocPdResponse { pd })
    }
}

impl Execute for DeallocPd {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        firmware.resources.pds.remove_unused(self.pd)?;
        Ok(NoData {})
    }
}
