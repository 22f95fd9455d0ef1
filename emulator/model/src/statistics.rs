// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Statistics. They count from the creation of the device.

use efa_hw::{
    admin::Status,
    io::OpType,
    stats::{
        BasicStats, GetStats, GetStatsResponse, MessagesStats, NetworkStats, RdmaReadStats,
        RdmaWriteStats, Stats, StatsScope, StatsType,
    },
};

use schemars::JsonSchema;
use serde::Serialize;

use crate::profile::attributes::Attributes;

/// The counters of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    basic: BasicStats,
    messages: MessagesStats,
    rdma_read: RdmaReadStats,
    rdma_write: RdmaWriteStats,
    network: NetworkStats,
    registrations: u64,
    invalidations: u64,
}

/// All counters of a device, as its statistics have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counters {
    /// Bytes of payload sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_pkts: u64,
    /// Bytes of payload received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_pkts: u64,
    /// Packets received and dropped.
    pub rx_drops: u64,
    /// Packets received with the wrong Q_Key.
    pub qkey_viol: u64,
    /// Messages sent.
    pub send_wrs: u64,
    /// Bytes of the messages sent.
    pub send_bytes: u64,
    /// Messages received.
    pub recv_wrs: u64,
    /// Bytes of the messages received.
    pub recv_bytes: u64,
    /// Successful RDMA reads.
    pub read_wrs: u64,
    /// Bytes of these RDMA reads.
    pub read_bytes: u64,
    /// RDMA reads that failed.
    pub read_wr_err: u64,
    /// Bytes that peers have read.
    pub read_resp_bytes: u64,
    /// Successful RDMA writes.
    pub write_wrs: u64,
    /// Bytes of these RDMA writes.
    pub write_bytes: u64,
    /// RDMA writes that failed.
    pub write_wr_err: u64,
    /// Bytes that peers have written.
    pub write_recv_bytes: u64,
    /// Packets retransmitted.
    pub retrans_pkts: u64,
    /// Bytes of payload retransmitted.
    pub retrans_bytes: u64,
    /// Timeouts of packets that were not acknowledged.
    pub retrans_timeout_events: u64,
    /// Peers that did not respond.
    pub unresponsive_remote_events: u64,
    /// Paths to peers that became avoided after repeated losses.
    pub impaired_remote_conn_events: u64,
}

/// Event of the transport that the statistics of a device count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// This number of payload bytes was sent, in the fewest possible packets.
    Sent(u32),
    /// This number of payload bytes was retransmitted.
    SentAgain(u32),
    /// A packet was not acknowledged in time.
    TimedOut,
    /// A peer did not respond, so its connection ended.
    Unresponsive,
    /// A path to a peer became avoided after repeated losses.
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
            // The interface has no counters for these.
            OpType::FastReg => add(&mut self.registrations, one),
            OpType::FastInv => add(&mut self.invalidations, one),
        }
    }

    /// Numbers of successful fast registrations and invalidations.
    pub(crate) fn region_changes(&self) -> (u64, u64) {
        (self.registrations, self.invalidations)
    }

    /// All counters.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            tx_bytes: self.basic.tx_bytes,
            tx_pkts: self.basic.tx_pkts,
            rx_bytes: self.basic.rx_bytes,
            rx_pkts: self.basic.rx_pkts,
            rx_drops: self.basic.rx_drops,
            qkey_viol: self.basic.qkey_viol,
            send_wrs: self.messages.send_wrs,
            send_bytes: self.messages.send_bytes,
            recv_wrs: self.messages.recv_wrs,
            recv_bytes: self.messages.recv_bytes,
            read_wrs: self.rdma_read.read_wrs,
            read_bytes: self.rdma_read.read_bytes,
            read_wr_err: self.rdma_read.read_wr_err,
            read_resp_bytes: self.rdma_read.read_resp_bytes,
            write_wrs: self.rdma_write.write_wrs,
            write_bytes: self.rdma_write.write_bytes,
            write_wr_err: self.rdma_write.write_wr_err,
            write_recv_bytes: self.rdma_write.write_recv_bytes,
            retrans_pkts: self.network.retrans_pkts,
            retrans_bytes: self.network.retrans_bytes,
            retrans_timeout_events: self.network.retrans_timeout_events,
            unresponsive_remote_events: self.network.unresponsive_remote_events,
            impaired_remote_conn_events: self.network.impaired_remote_conn_events,
        }
    }

    /// Counts a receive work request that was consumed.
    pub(crate) fn count_receive(&mut self, length: u32) {
        add(&mut self.messages.recv_wrs, 1);
        add(&mut self.messages.recv_bytes, length.into());
    }

    /// Counts bytes that a peer has written.
    pub(crate) fn count_write(&mut self, length: u32) {
        add(&mut self.rdma_write.write_recv_bytes, length.into());
    }

    /// Counts packets from a peer.
    pub(crate) fn count_packets(&mut self, length: u32, mtu: u32) {
        add(&mut self.basic.rx_pkts, packets(length, mtu).into());
        add(&mut self.basic.rx_bytes, length.into());
    }

    /// Counts a dropped packet.
    pub(crate) fn count_drop(&mut self, wrong_key: bool) {
        add(&mut self.basic.rx_drops, 1);
        add(&mut self.basic.qkey_viol, wrong_key.into());
    }

    /// Counts bytes that a peer reads.
    pub(crate) fn count_read_response(&mut self, length: u32) {
        add(&mut self.rdma_read.read_resp_bytes, length.into());
    }

    /// Executes a `GET_STATS` command.
    pub(crate) fn get(
        &self,
        attributes: &Attributes,
        command: &GetStats,
    ) -> Result<GetStatsResponse, Status> {
        if command.control.ctrl_data || command.control.ctrl_data_indirect {
            return Err(Status::MalformedRequest);
        }
        match StatsScope::try_from(command.scope) {
            Ok(StatsScope::All) => {}
            Ok(StatsScope::Queue) => return Err(Status::UnsupportedOpcode),
            Err(_) => return Err(Status::IllegalParameter),
        }
        let stats_type =
            StatsType::try_from(command.stats_type).map_err(|_| Status::IllegalParameter)?;
        match stats_type {
            StatsType::Basic => Ok(self.basic.into_response()),
            StatsType::Messages => Ok(self.messages.into_response()),
            // A driver requests these even if the device does not support RDMA read.
            StatsType::RdmaRead => Ok(self.rdma_read.into_response()),
            StatsType::RdmaWrite if attributes.rdma_write => Ok(self.rdma_write.into_response()),
            StatsType::Network if attributes.network_stats => Ok(self.network.into_response()),
            StatsType::RdmaWrite | StatsType::Network => Err(Status::UnsupportedOpcode),
        }
    }

    /// Counts an event of the transport.
    pub(crate) fn count_transport(&mut self, event: TransportEvent, mtu: u32) {
        match event {
            TransportEvent::Sent(length) => {
                add(&mut self.basic.tx_pkts, packets(length, mtu).into());
                add(&mut self.basic.tx_bytes, length.into());
            }
            TransportEvent::SentAgain(length) => {
                add(&mut self.network.retrans_pkts, packets(length, mtu).into());
                add(&mut self.network.retrans_bytes, length.into());
            }
            TransportEvent::TimedOut => add(&mut self.network.retrans_timeout_events, 1),
            TransportEvent::Unresponsive => add(&mut self.network.unresponsive_remote_events, 1),
            TransportEvent::Impaired => add(&mut self.network.impaired_remote_conn_events, 1),
        }
    }
}

/// Number of packets that `length` bytes of payload take, at least one.
pub(crate) fn packets(length: u32, mtu: u32) -> u32 {
    length.div_ceil(mtu.max(1)).max(1)
}

fn add(counter: &mut u64, count: u64) {
    *counter = counter.wrapping_add(count);
}
