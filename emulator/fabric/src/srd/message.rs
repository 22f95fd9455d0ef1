// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A message that is not yet delivered: its content, and its parts.

use efa_hw::io::CompStatus;
use efa_model::{Operation, QpId, Request};

use super::parked::Part;
use crate::packet::{Address, Header, Reader, Subject};

/// Value of `rnr_retry` for unlimited retries.
const RETRY_FOR_EVER: u8 = 7;

/// A message that is not yet delivered.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) content: Content,
    /// Bytes that its packets carry.
    length: u32,
    /// Bytes that are already in packets.
    cut: u32,
    /// Whether its last packet is cut. An empty message has a packet, too.
    is_cut: bool,
    /// Number of packets that are not delivered.
    waiting: u32,
    not_ready: u8,
}

/// Content of a message.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A work request.
    Request(Box<Request>),
    /// Response to a read of a peer.
    Response {
        reader: Reader,
        /// Remote key and address.
        memory: (u32, u64),
    },
    /// Failure of a read of a peer.
    Failure {
        reader: Reader,
        /// Completion status of its work request.
        status: CompStatus,
    },
}

impl Message {
    /// Returns a message whose packets carry `length` bytes.
    pub(super) fn new(content: Content, length: u32) -> Self {
        Self { content, length, cut: 0, is_cut: false, waiting: 0, not_ready: 0 }
    }

    /// Cuts the next part for a packet of at most `mtu` bytes. The message has this number in its connection.
    pub(super) fn cut(&mut self, message: u64, mtu: u32) -> Part {
        let offset = self.cut;
        let length = (self.length - offset).min(mtu.max(1));
        self.cut += length;
        self.waiting += 1;
        self.is_cut = self.cut == self.length;
        Part { message, offset, length }
    }

    /// Whether all of it is in packets.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Records the delivery of a packet. Returns whether the whole message is delivered.
    pub(super) fn delivered(&mut self) -> bool {
        self.waiting -= 1;
        self.waiting == 0 && self.is_cut
    }

    /// Records that the receiver was not ready for a packet. Returns the receiver's queue pair, or `None` if this was too often.
    pub(super) fn not_ready(&mut self) -> Option<u16> {
        let Content::Request(request) = &self.content else {
            return Some(0);
        };
        if request.rnr_retry != RETRY_FOR_EVER {
            if self.not_ready == request.rnr_retry {
                return None;
            }
            self.not_ready += 1;
        }
        Some(request.peer_qp)
    }
}

impl Content {
    /// Returns the peer's queue pair that has to be ready for it, if any.
    pub(super) fn receiver(&self) -> Option<u16> {
        match self {
            Self::Request(request) if request.operation != Operation::RdmaRead => Some(request.peer_qp),
            _ => None,
        }
    }

    /// Returns the header that each part of a message from queue pair `from` to `address` carries.
    pub(super) fn header(&self, address: Address, from: QpId) -> Header {
        let subject = match self {
            Self::Request(request) => {
                let (qp, immediate) = (request.peer_qp, request.immediate);
                let (memory, length) = (request.remote, request.length);
                match request.operation {
                    Operation::Send => Subject::Send { qp, immediate },
                    Operation::RdmaWrite => {
                        Subject::Write { qp, memory, length, immediate, unsolicited: request.unsolicited }
                    }
                    Operation::RdmaRead => {
                        Subject::Read { qp, memory, length, reader: super::reader(request), version: request.version }
                    }
                }
            }
            Self::Response { reader, .. } => Subject::Response { reader: *reader },
            Self::Failure { reader, status } => Subject::Failure { reader: *reader, status: (*status).into() },
        };
        Header {
            peer: address,
            peer_qp: from.number,
            qkey: match self {
                Self::Request(request) => request.qkey,
                _ => 0,
            },
            subject,
        }
    }
}
