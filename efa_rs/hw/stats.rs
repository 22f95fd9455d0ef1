// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device's counters and the command that reads them.

use super::{
    admin::{
        self,
        command,
        AqFlags,
        CtrlBuffInfo,
        Opcode, //
    },
    wire::{
        self,
        codes,
        layout, //
    }, //
};

codes! {
    /// Sets of counters.
    pub enum StatsType: u8 {
        /// [`BasicStats`].
        Basic = 0 => "BASIC",
        /// [`MessagesStats`].
        Messages = 1 => "MESSAGES",
        /// [`RdmaReadStats`].
        RdmaRead = 2 => "RDMA_READ",
        /// [`RdmaWriteStats`].
        RdmaWrite = 3 => "RDMA_WRITE",
        /// [`NetworkStats`].
        Network = 4 => "NETWORK",
    }
}

codes! {
    /// Scopes of a set of counters.
    pub enum StatsScope: u8 {
        /// The whole device.
        All = 0 => "ALL",
        /// One queue, whose number is the scope's modifier.
        Queue = 1 => "QUEUE",
    }
}

layout! {
    /// Reads a set of counters.
    pub struct GetStats[60] {
        /// Whether the control buffer is used; not for the sets defined here.
        control: AqFlags,
        /// Control buffer for statistics that do not fit into the completion.
        control_buffer @ 0: CtrlBuffInfo,
        /// The set, a [`StatsType`].
        stats_type @ 12: u8 as StatsType,
        /// Scope of the counters, a [`StatsScope`].
        scope @ 13: u8 as StatsScope,
        /// Number of the queue, for [`StatsScope::Queue`].
        scope_modifier @ 14: u16,
    }
}

layout! {
    /// The counters of one set.
    pub struct GetStatsResponse[64] {
        /// Encoding of the requested set, padded with zeroes.
        data @ 8: [u8; 56],
    }
}

command!(Opcode::GetStats, GetStats with control => GetStatsResponse);

/// A set of counters.
pub trait Stats: Sized {
    /// The set's number.
    const TYPE: StatsType;

    /// Decodes the counters from a response to [`GetStats`] for this set.
    fn from_response(response: &GetStatsResponse) -> Self;

    /// Encodes the response.
    fn into_response(self) -> GetStatsResponse;
}

macro_rules! stats {
    ($($name:ident = $type:expr;)*) => {$(
        impl Stats for $name {
            const TYPE: StatsType = $type;

            #[inline]
            fn from_response(response: &GetStatsResponse) -> Self {
                Self::decode(&wire::At::<0>::load(&response.data))
            }

            #[inline]
            fn into_response(self) -> GetStatsResponse {
                let mut response = GetStatsResponse::default();
                wire::At::<0>::store(&mut response.data, self.encode());
                response
            }
        }
    )*};
}

stats! {
    BasicStats = StatsType::Basic;
    MessagesStats = StatsType::Messages;
    RdmaReadStats = StatsType::RdmaRead;
    RdmaWriteStats = StatsType::RdmaWrite;
    NetworkStats = StatsType::Network;
}

layout! {
    /// Traffic of the device.
    pub struct BasicStats[48] {
        /// Bytes sent.
        tx_bytes @ 0: u64,
        /// Packets sent.
        tx_pkts @ 8: u64,
        /// Bytes received.
        rx_bytes @ 16: u64,
        /// Packets received.
        rx_pkts @ 24: u64,
        /// Packets received and dropped.
        rx_drops @ 32: u64,
        /// Packets received with the wrong Q_Key.
        qkey_viol @ 40: u64,
    }
}

layout! {
    /// Send and receive work requests.
    pub struct MessagesStats[32] {
        /// Bytes of completed send work requests.
        send_bytes @ 0: u64,
        /// Completed send work requests.
        send_wrs @ 8: u64,
        /// Bytes of completed receive work requests.
        recv_bytes @ 16: u64,
        /// Completed receive work requests.
        recv_wrs @ 24: u64,
    }
}

layout! {
    /// RDMA reads.
    pub struct RdmaReadStats[32] {
        /// Completed read work requests.
        read_wrs @ 0: u64,
        /// Bytes read by them.
        read_bytes @ 8: u64,
        /// Read work requests that failed.
        read_wr_err @ 16: u64,
        /// Bytes sent in response to RDMA reads by peers.
        read_resp_bytes @ 24: u64,
    }
}

layout! {
    /// RDMA writes.
    pub struct RdmaWriteStats[32] {
        /// Completed write work requests.
        write_wrs @ 0: u64,
        /// Bytes written by them.
        write_bytes @ 8: u64,
        /// Write work requests that failed.
        write_wr_err @ 16: u64,
        /// Bytes received in RDMA writes by peers.
        write_recv_bytes @ 24: u64,
    }
}

layout! {
    /// Retransmissions and peer failures of SRD.
    pub struct NetworkStats[40] {
        /// Bytes retransmitted.
        retrans_bytes @ 0: u64,
        /// Packets retransmitted.
        retrans_pkts @ 8: u64,
        /// Number of retransmission timeouts.
        retrans_timeout_events @ 16: u64,
        /// Number of times that a peer did not respond.
        unresponsive_remote_events @ 24: u64,
        /// Number of times that the connection to a peer was impaired.
        impaired_remote_conn_events @ 32: u64,
    }
}
