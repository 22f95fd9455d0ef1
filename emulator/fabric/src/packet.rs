// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets of the network.

use efa_model::QpId;
use serde::{Deserialize, Serialize};

use crate::quota::{Permit, Quota};

/// Version of the protocol between programs, which changes if older ones would not understand it.
pub const LINK_VERSION: u32 = 6;

/// Address of a device: its GID.
pub type Address = [u8; 16];

/// Maximum number of packets that a device has in flight, over all its connections. Beyond it, each may have one.
pub(crate) const MAX_IN_FLIGHT: usize = 16 << 10;

/// Maximum number of packets of a device in the network and in queues, including those of ended connections and retransmitted
/// ones. Further ones are lost.
pub(crate) const MAX_IN_TRANSIT: usize = 2 * MAX_IN_FLIGHT;

/// Port of the network: that of a device of this program, or of a device behind a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub usize);

/// A packet.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) path: u16,
    pub(crate) body: Body,
}

impl Packet {
    /// Returns a duplicate of a packet that a device of this program has sent as part of a message, if its quota has room.
    pub(crate) fn copy(&self) -> Option<Self> {
        let Body::Data(data, Origin::Device(permit)) = &self.body else {
            return None;
        };
        let body = Body::Data(*data, Origin::Device(permit.again()?));
        Some(Self { body, ..*self })
    }
}

/// Contents of a packet.
#[derive(Debug)]
pub(crate) enum Body {
    /// Part of a message over a connection.
    Data(Data, Origin),
    /// Acknowledgement of a part. One from another program holds a permit of the quota for that program's packets.
    Ack(Ack, #[allow(dead_code, reason = "its drop returns the quota")] Option<Permit>),
    /// Unreliable datagram with its payload, so that the sender may reuse its memory.
    Datagram(Box<Datagram>, #[allow(dead_code, reason = "its drop returns the quota")] Permit),
}

/// Origin of a part of a message.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A device of this program, whose packets in transit have a quota. The payload stays in its memory until the packet arrives.
    Device(Permit),
    /// Another program. The packet carries the payload.
    Program(Box<Carried>),
}

/// A part of a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Data {
    /// Number of the connection. The sender's device never uses it for another one.
    pub(crate) connection: u64,
    /// Number of the packet in the connection. A retransmission has the same number.
    pub(crate) psn: u64,
    /// No packet with a lower number is in flight any more.
    pub(crate) floor: u64,
    /// Number of the message in the connection.
    pub(crate) message: u64,
    /// Offset of the payload in the message, in bytes.
    pub(crate) offset: u32,
    /// Bytes of payload.
    pub(crate) length: u32,
    /// Seconds for which its sender may send it again without any answer.
    pub(crate) silence_s: u16,
}

/// Bytes that a packet with its payload is charged in addition to the payload.
pub(crate) const OVERHEAD: usize = 256;

/// Further contents of a packet with its payload: from another program, or from a device with slow memory.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    /// Permit of the quota for the sender's packets.
    #[allow(dead_code, reason = "its drop returns the quota")]
    pub(crate) permit: Permit,
    /// Quota for the state that receivers keep of the sender's connections.
    pub(crate) remembered: Quota,
}

/// Description of a message, in each of its parts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Address of the sender.
    pub(crate) peer: Address,
    /// Queue pair of the sender.
    pub(crate) peer_qp: u16,
    /// Q_Key of the message.
    pub(crate) qkey: u32,
    pub(crate) subject: Subject,
}

/// Operation of a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// Send to the receive queue of a queue pair.
    Send { qp: u16, immediate: Option<u32> },
    /// Write to memory, given by remote key and address.
    Write {
        qp: u16,
        memory: (u32, u64),
        length: u32,
        immediate: Option<u32>,
        /// Whether the sender's queue pair has unsolicited receives.
        unsolicited: bool,
    },
    /// Read of memory, given by remote key and address.
    Read {
        qp: u16,
        memory: (u32, u64),
        length: u32,
        reader: Reader,
        /// Version of the reading device.
        version: u32,
    },
    /// Response to a read, with the data.
    Response { reader: Reader },
    /// Failure of a read, with its [`CompStatus`](efa_hw::io::CompStatus).
    Failure { reader: Reader, status: u8 },
}

/// Requester of a read: a queue pair, and its work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Reader {
    pub(crate) qp: QpId,
    pub(crate) request: u64,
}

/// Acknowledgement of a part of a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ack {
    pub(crate) connection: u64,
    pub(crate) psn: u64,
    pub(crate) verdict: Verdict,
}

/// Result of a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// The part was delivered.
    Delivered,
    /// The receiver has no receive work request.
    NotReady,
    /// The message has failed, with this [`CompStatus`](efa_hw::io::CompStatus).
    Failed(u8),
}

/// An unreliable datagram.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Datagram {
    pub(crate) peer: Address,
    pub(crate) peer_qp: u16,
    pub(crate) qp: u16,
    pub(crate) qkey: u32,
    pub(crate) immediate: Option<u32>,
    #[serde(with = "serde_bytes")]
    pub(crate) payload: Vec<u8>,
}

/// Packet for a device of another program, with all information that the receiver needs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Frame {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) path: u16,
    pub(crate) body: FrameBody,
}

/// Contents of a packet for another program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FrameBody {
    Data {
        data: Data,
        header: Header,
        #[serde(with = "serde_bytes")]
        payload: Vec<u8>,
    },
    Ack(Ack),
    Datagram(Box<Datagram>),
}

impl Frame {
    /// Returns the number of payload bytes.
    pub fn payload(&self) -> usize {
        match &self.body {
            FrameBody::Data { payload, .. } => payload.len(),
            FrameBody::Datagram(datagram) => datagram.payload.len(),
            FrameBody::Ack(_) => 0,
        }
    }
}
