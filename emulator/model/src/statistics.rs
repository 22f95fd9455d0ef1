// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Statistics. There is no data path yet that would count anything, so all counters are zero.

use efa_hw::{
    admin::Status,
    stats::{
        BasicStats, GetStats, GetStatsResponse, MessagesStats, NetworkStats, RdmaReadStats,
        RdmaWriteStats, Stats, StatsScope, StatsType,
    },
};

use crate::{
    Host,
    firmware::{Execute, Failure, Firmware},
};

/// The counters of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    basic: BasicStats,
    messages: MessagesStats,
    rdma_read: RdmaReadStats,
    rdma_write: RdmaWriteStats,
    network: NetworkStats,
}

impl Execute for GetStats {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<GetStatsResponse, Failure> {
        if self.control.ctrl_data || self.control.ctrl_data_indirect {
            return Err(Status::MalformedRequest.into());
        }
        match StatsScope::try_from(self.scope) {
            Ok(StatsScope::All) => {}
            Ok(StatsScope::Queue) => return Err(Status::UnsupportedOpcode.into()),
            Err(_) => return Err(Status::IllegalParameter.into()),
        }
        let stats_type =
            StatsType::try_from(self.stats_type).map_err(|_| Status::IllegalParameter)?;
        let statistics = &firmware.statistics;
        let attributes = &firmware.attributes;
        match stats_type {
            StatsType::Basic => Ok(statistics.basic.into_response()),
            StatsType::Messages => Ok(statistics.messages.into_response()),
            // A driver asks for these also if the device does not do RDMA read.
            StatsType::RdmaRead => Ok(statistics.rdma_read.into_response()),
            StatsType::RdmaWrite if attributes.rdma_write => {
                Ok(statistics.rdma_write.into_response())
            }
            StatsType::Network if attributes.network_stats => {
                Ok(statistics.network.into_response())
            }
            StatsType::RdmaWrite | StatsType::Network => Err(Status::UnsupportedOpcode.into()),
        }
    }
}
