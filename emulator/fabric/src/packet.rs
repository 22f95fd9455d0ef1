// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What crosses the network.

use efa_hw::io::CompStatus;

use crate::cluster::PortId;

/// A packet.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) path: u16,
    pub(crate) body: Body,
}

/// What a packet is.
#[derive(Debug)]
pub(crate) enum Body {
    /// A part of a message over a connection. Its payload stays where it is until the packet arrives.
    Data(Data),
    /// The answer to a part.
    Ack(Ack),
    /// An unreliable datagram, with its payload: the sender may use its memory again.
    Datagram(Box<Datagram>),
}

/// A part of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    /// The connection, a number that no other ever has.
    pub(crate) connection: u64,
    /// Number of the packet in the connection. It keeps it if it is sent again.
    pub(crate) psn: u64,
    /// Number of the message in the connection.
    pub(crate) message: u64,
    /// Where the payload is in the message.
    pub(crate) offset: u32,
    /// Bytes of payload.
    pub(crate) length: u32,
}

/// The answer to a part of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    pub(crate) connection: u64,
    pub(crate) psn: u64,
    pub(crate) verdict: Verdict,
}

/// What became of a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is where it belongs.
    Taken,
    /// The receiver has no receive work request.
    NotReady,
    /// The message ends like this.
    Failed(CompStatus),
}

/// An unreliable datagram.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) peer: [u8; 16],
    pub(crate) peer_qp: u16,
    pub(crate) qp: u16,
    pub(crate) qkey: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) payload: Vec<u8>,
}
