// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! User access regions. Completion queues, queue pairs and event counters use them.

use efa_hw::admin::{
    NoData, Status,
    uar::{AllocUarResponse, DeallocUar},
};

use super::table::Table;
use crate::profile::{attributes::Attributes, bars::Bars};

/// All user access regions. Their only state is their number of users.
pub(crate) type Uars = Table<()>;

impl Uars {
    pub(crate) fn alloc(&mut self, attributes: &Attributes, bars: &Bars) -> Result<AllocUarResponse, Status> {
        let limit = attributes.max_uar.min(bars.max_uar);
        let uar = self.insert(attributes, limit, ())?;
        Ok(AllocUarResponse { uar })
    }

    pub(crate) fn dealloc(&mut self, command: &DeallocUar) -> Result<NoData, Status> {
        self.remove_unused(command.uar)?;
        Ok(NoData {})
    }
}
