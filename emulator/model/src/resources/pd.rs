// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains. Address handles, memory regions and queue pairs use them.

use efa_hw::admin::{
    NoData,
    pd::{AllocPd, AllocPdResponse, DeallocPd},
};

use super::table::{Used, Users};
use crate::{
    Host,
    firmware::{Execute, Failure, Firmware},
};

/// All protection domains.
pub(crate) type Pds = Used;

impl Execute for AllocPd {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<AllocPdResponse, Failure> {
        let limit = firmware.attributes.max_pd;
        let pd = firmware.resources.pds.insert(limit, Users::default())?;
        Ok(AllocPdResponse { pd })
    }
}

impl Execute for DeallocPd {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        firmware.resources.pds.remove_unused(self.pd)?;
        Ok(NoData {})
    }
}
