// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What crosses the network.

use efa_hw::io::CompStatus;
use efa_model::QpId;
use serde::{Deserialize, Serialize};

use crate::quota::{Permit, Quota};

/// Address of a device.
pub type Address = [u8; 16];

/// Most packets that a device has in flight, over all its connections.
pub(crate) const MAX_IN_FLIGHT: usize = 16 << 10;

/// A port of the network: that of a device of this program, or of another one behind a link.
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

/// What a packet is.
#[derive(Debug)]
pub(crate) enum Body {
    /// A part of a message over a connection. That of a device of this program leaves its payload where it is until it
    /// arrives; that of another program carries it.
    Data(Data, Option<Box<Carried>>),
    /// The answer to a part, with its part of what packets of another program may take, if it is of one.
    Ack(
        Ack,
        #[allow(dead_code, reason = "it is there to be dropped")] Option<Permit>,
    ),
    /// An unreliable datagram, with its payload: the sender may use its memory again.
    Datagram(
        Box<Datagram>,
        #[allow(dead_code, reason = "it is there to be dropped")] Permit,
    ),
}

/// A part of a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Data {
    /// Number of the connection, which no other of the sender's device ever has.
    pub(crate) connection: u64,
    /// Number of the packet in the connection. It keeps it if it is retransmitted.
    pub(crate) psn: u64,
    /// All packets with lower numbers have been concluded.
    pub(crate) floor: u64,
    /// Number of the message in the connection.
    pub(crate) message: u64,
    /// Where the payload is in the message.
    pub(crate) offset: u32,
    /// Bytes of payload.
    pub(crate) length: u32,
}

/// What a packet from another program has besides.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    /// Its part of what packets of that program may take.
    #[allow(dead_code, reason = "it is there to be dropped")]
    pub(crate) permit: Permit,
    /// What may be remembered of the connections of that program.
    pub(crate) remembered: Quota,
}

/// What a part of a message says of the message.
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

/// What a message is about.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// Something for the receive queue of a queue pair.
    Send { qp: u16, immediate: Option<u32> },
    /// Something to write to memory, given by remote key and address.
    Write {
        qp: u16,
        memory: (u32, u64),
        length: u32,
        immediate: Option<u32>,
    },
    /// Memory to read, given by remote key and address.
    Read {
        qp: u16,
        memory: (u32, u64),
        length: u32,
        reader: Reader,
        /// Version of the device that reads.
        version: u32,
    },
    /// Memory that was read.
    Response { reader: Reader },
    /// Why memory can't be read, a [`CompStatus`].
    Failure { reader: Reader, status: u8 },
}

/// Who reads memory: a queue pair, and its work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Reader {
    pub(crate) qp: QpId,
    pub(crate) request: u64,
}

/// The answer to a part of a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ack {
    pub(crate) connection: u64,
    pub(crate) psn: u64,
    pub(crate) verdict: Verdict,
}

/// What became of a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// It was delivered.
    Delivered,
    /// The receiver has no receive work request.
    NotReady,
    /// The message ends like this, a [`CompStatus`].
    Failed(u8),
}

impl Verdict {
    pub(crate) fn failed(status: CompStatus) -> Self {
        Self::Failed(status.into())
    }
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

/// A packet for a device of another program, with all that the receiver has to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Frame {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) path: u16,
    pub(crate) body: FrameBody,
}

/// What a packet for another program is.
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
    /// Bytes of payload.
    pub fn payload(&self) -> usize {
        match &self.body {
            FrameBody::Data { payload, .. } => payload.len(),
            FrameBody::Datagram(datagram) => datagram.payload.len(),
            FrameBody::Ack(_) => 0,
        }
    }
}
