// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Statistics. They count from the creation of the device.

use efa_hw::{
    admin::Status,
    io::OpType,
    stats::{
        BasicStats, GetStats, GetStatsResponse, MessagesStats, NetworkStats, RdmaReadStats, RdmaWriteStats, Stats,
        StatsScope, StatsType,
    },
};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{ensure, profile::attributes::Attributes};

/// The counters of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    basic: BasicStats,
    messages: MessagesStats,
    rdma_read: RdmaReadStats,
    rdma_write: RdmaWriteStats,
    network: NetworkStats,
    /// Successful fast registrations and invalidations. The interface has no counters for these.
    pub(crate) registrations: u64,
    pub(crate) invalidations: u64,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $part:ident,)*) => {
        /// All counters of a device, as its statistics have them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Statistics {
            /// All counters.
            pub(crate) fn counters(&self) -> Counters {
                Counters { $($name: self.$part.$name,)* }
            }
        }
    };
}

counters! {
    /// Bytes of payload sent.
    tx_bytes: basic,
    /// Packets sent.
    tx_pkts: basic,
    /// Bytes of payload received.
    rx_bytes: basic,
    /// Packets received.
    rx_pkts: basic,
    /// Packets received and dropped.
    rx_drops: basic,
    /// Packets received with the wrong Q_Key.
    qkey_viol: basic,
    /// Messages sent.
    send_wrs: messages,
    /// Bytes of the messages sent.
    send_bytes: messages,
    /// Messages received.
    recv_wrs: messages,
    /// Bytes of the messages received.
    recv_bytes: messages,
    /// Successful RDMA reads.
    read_wrs: rdma_read,
    /// Bytes of these RDMA reads.
    read_bytes: rdma_read,
    /// RDMA reads that failed.
    read_wr_err: rdma_read,
    /// Bytes that peers have read.
    read_resp_bytes: rdma_read,
    /// Successful RDMA writes.
    write_wrs: rdma_write,
    /// Bytes of these RDMA writes.
    write_bytes: rdma_write,
    /// RDMA writes that failed.
    write_wr_err: rdma_write,
    /// Bytes that peers have written.
    write_recv_bytes: rdma_write,
    /// Packets retransmitted.
    retrans_pkts: network,
    /// Bytes of payload retransmitted.
    retrans_bytes: network,
    /// Timeouts of packets that were not acknowledged.
    retrans_timeout_events: network,
    /// Peers that did not respond.
    unresponsive_remote_events: network,
    /// Paths to peers that became avoided after repeated losses.
    impaired_remote_conn_events: network,
}

/// Counters of a queue pair since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QpCounters {
    /// Number of the queue pair.
    pub qp: u16,
    /// Successful work requests of its send queue.
    pub sq_wrs: u64,
    /// Bytes of these.
    pub sq_bytes: u64,
    /// Work requests of its send queue that failed.
    pub sq_errors: u64,
    /// Messages received.
    pub recv_wrs: u64,
    /// Bytes of these.
    pub recv_bytes: u64,
}

impl QpCounters {
    /// Counts a work request of the send queue that has ended.
    pub(crate) fn count_request(&mut self, length: u32, ok: bool) {
        add(&mut self.sq_wrs, ok.into());
        add(&mut self.sq_bytes, if ok { length.into() } else { 0 });
        add(&mut self.sq_errors, (!ok).into());
    }

    /// Counts a receive work request that was consumed.
    pub(crate) fn count_receive(&mut self, length: u32) {
        add(&mut self.recv_wrs, 1);
        add(&mut self.recv_bytes, length.into());
    }
}

/// Event of the transport that the statistics of a device count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// This number of payload bytes was sent, in the fewest possible packets.
    Sent(u32),
    /// This number of payload bytes was retransmitted.
    SentAgain(u32),
    /// This number of bytes was read for a peer.
    Read(u32),
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
            OpType::FastReg => add(&mut self.registrations, one),
            OpType::FastInv => add(&mut self.invalidations, one),
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

    /// Executes a `GET_STATS` command.
    pub(crate) fn get(&self, attributes: &Attributes, command: &GetStats) -> Result<GetStatsResponse, Status> {
        let has_buffer = command.control.ctrl_data || command.control.ctrl_data_indirect;
        ensure(!has_buffer, Status::MalformedRequest)?;
        match StatsScope::try_from(command.scope) {
            Ok(StatsScope::All) => {}
            Ok(StatsScope::Queue) => return Err(Status::UnsupportedOpcode),
            Err(_) => return Err(Status::IllegalParameter),
        }
        let stats_type = StatsType::try_from(command.stats_type).map_err(|_| Status::IllegalParameter)?;
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
            TransportEvent::Read(length) => add(&mut self.rdma_read.read_resp_bytes, length.into()),
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
