// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! User access regions. Completion queues, queue pairs and event counters use them.

use efa_hw::admin::{
    NoData,
    uar::{AllocUar, AllocUarResponse, DeallocUar},
};

use super::table::{Used, Users};
use crate::{
    Host,
    firmware::{Execute, Failure, Firmware},
};

/// All user access regions.
pub(crate) type Uars = Used;

impl Execute for AllocUar {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<AllocUarResponse, Failure> {
        let limit = firmware.attributes.max_uar.min(firmware.bars.max_uar);
        let uar = firmware.resources.uars.insert(limit, Users::default())?;
        Ok(AllocUarResponse { uar })
    }
}

impl Execute for DeallocUar {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        firmware.resources.uars.remove_unused(self.uar)?;
        Ok(NoData {})
    }
}
