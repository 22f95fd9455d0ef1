// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Statistics. They count from power on.

use efa_hw::{
    admin::Status,
    io::OpType,
    stats::{
        BasicStats, GetStats, GetStatsResponse, MessagesStats, NetworkStats, RdmaReadStats,
        RdmaWriteStats, Stats, StatsScope, StatsType,
    },
};

use crate::{
    Arrival, Content, Host,
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

/// What the transport did for a device, for its statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// A packet was sent, with so many bytes of payload.
    Sent(u32),
    /// A packet was sent again.
    SentAgain(u32),
    /// A packet was not acknowledged in time.
    TimedOut,
    /// A peer did not respond at all.
    Unresponsive,
    /// A path to a peer was given up.
    Impaired,
}

impl Statistics {
    /// Counts a work request that has ended.
    pub(crate) fn count_request(&mut self, operation: OpType, length: u32, ok: bool) {
        let length = if ok { length.into() } else { 0_u64 };
        let one = u64::from(ok);
        match operation {
            OpType::Send => {
                add(&mut self.messages.send_wrs, one);
                add(&mut self.messages.send_bytes, length);
            }
            OpType::RdmaRead => {
                add(&mut self.rdma_read.read_wrs, one);
                add(&mut self.rdma_read.read_bytes, length);
                add(&mut self.rdma_read.read_wr_err, 1 - one);
            }
            OpType::RdmaWrite => {
                add(&mut self.rdma_write.write_wrs, one);
                add(&mut self.rdma_write.write_bytes, length);
                add(&mut self.rdma_write.write_wr_err, 1 - one);
            }
        }
    }

    /// Counts a receive work request that was used.
    pub(crate) fn count_receive(&mut self, length: u32) {
        add(&mut self.messages.recv_wrs, 1);
        add(&mut self.messages.recv_bytes, length.into());
    }

    /// Counts a packet with payload from a peer.
    pub(crate) fn count_arrival(&mut self, arrival: &Arrival) {
        let length = match arrival.content {
            Content::Send { length, .. } => length,
            Content::Write { length, .. } => {
                add(&mut self.rdma_write.write_recv_bytes, length.into());
                length
            }
            Content::Read { .. } => 0,
        };
        self.count_packet(length);
    }

    /// Counts a packet from a peer.
    pub(crate) fn count_packet(&mut self, length: u32) {
        add(&mut self.basic.rx_pkts, 1);
        add(&mut self.basic.rx_bytes, length.into());
    }

    /// Counts a packet that is not taken.
    pub(crate) fn count_drop(&mut self, wrong_key: bool) {
        add(&mut self.basic.rx_drops, 1);
        add(&mut self.basic.qkey_viol, wrong_key.into());
    }

    /// Counts bytes that a peer reads.
    pub(crate) fn count_read_response(&mut self, length: u32) {
        add(&mut self.rdma_read.read_resp_bytes, length.into());
    }

    /// Counts what the transport did.
    pub(crate) fn count_transport(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Sent(length) => {
                add(&mut self.basic.tx_pkts, 1);
                add(&mut self.basic.tx_bytes, length.into());
            }
            TransportEvent::SentAgain(length) => {
                add(&mut self.network.retrans_pkts, 1);
                add(&mut self.network.retrans_bytes, length.into());
            }
            TransportEvent::TimedOut => add(&mut self.network.retrans_timeout_events, 1),
            TransportEvent::Unresponsive => add(&mut self.network.unresponsive_remote_events, 1),
            TransportEvent::Impaired => add(&mut self.network.impaired_remote_conn_events, 1),
        }
    }
}

fn add(counter: &mut u64, count: u64) {
    *counter = counter.wrapping_add(count);
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
