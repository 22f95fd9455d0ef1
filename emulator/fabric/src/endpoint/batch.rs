// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages that are delivered without packets, and their progress.

use std::mem;

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::{Arrival, Content, Delivery, DmaError, Operation, Request, WriteEnd};

use super::placement::{Payload, Target, Unplaced, Written};
use crate::{
    memory::{BOUNCED, Memory},
    packet::PortId,
};

/// A message that is delivered without packets.
#[derive(Debug)]
pub(super) struct Direct<M> {
    pub(super) to: PortId,
    /// Its work request, until that has ended.
    pub(super) request: Option<Box<Request>>,
    /// How its work request ends.
    pub(super) end: End,
    /// The message as the receiver's device sees it.
    pub(super) arrival: Arrival,
    pub(super) stage: Stage<M>,
}

/// Messages of a turn, and memory for the payload of one.
#[derive(Debug)]
pub(crate) struct Batch<M> {
    pub(super) messages: Vec<Direct<M>>,
    pub(super) bytes: Vec<u8>,
}

impl<M> Default for Batch<M> {
    fn default() -> Self {
        Self { messages: Vec::new(), bytes: Vec::new() }
    }
}

/// Whether payload was written, or `None` if it could not be read.
pub(super) type Copied = Option<Result<(), DmaError>>;

/// Progress of a message.
#[derive(Debug)]
pub(super) enum Stage<M> {
    /// Its payload is located in the sender's memory.
    Located(Payload<M>),
    /// The receiver has memory for it.
    Placed(Payload<M>, Target<M>, Delivery),
    /// Its payload was copied.
    Copied(Delivery, Copied),
    Ended,
}

/// End of the work request of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Completed(CompStatus),
    /// The message is sent in packets.
    InPackets,
    /// Likewise, but later: the receiver has no receive work request.
    NotReady,
}

/// What an endpoint could not process because a command occupied it.
#[derive(Debug, Default)]
pub(crate) struct Postponed {
    /// Ends of its work requests.
    pub(super) ends: Vec<(PortId, Box<Request>, End)>,
    /// Messages from peers whose payload was copied.
    pub(super) copied: Vec<(Arrival, Delivery, Copied)>,
}

impl<M: Memory> Direct<M> {
    pub(super) fn new(to: PortId, peer: [u8; 16], request: Box<Request>, payload: Payload<M>) -> Self {
        let (length, immediate) = (request.length, request.immediate);
        let arrival = Arrival {
            peer,
            peer_qp: request.qp.number,
            qp: request.peer_qp,
            transport: QpType::Srd,
            qkey: request.qkey,
            content: match request.operation {
                Operation::Send => Content::Send { length, immediate },
                _ => Content::Write {
                    memory: request.remote,
                    length,
                    end: Some(WriteEnd { length, immediate, unsolicited: request.unsolicited }),
                },
            },
        };
        Self { to, request: Some(request), end: End::InPackets, arrival, stage: Stage::Located(payload) }
    }

    /// Copies the payload to its place in the memory of the receiver, if it has one. `write` calls a function with this pinned.
    pub(super) fn copy(
        &mut self,
        is_slow: bool,
        bytes: &mut Vec<u8>,
        write: impl FnOnce(&mut dyn FnMut() -> Written) -> Written,
    ) {
        let (payload, target, delivery) = match mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Placed(payload, target, delivery) => (payload, target, delivery),
            other => return self.stage = other,
        };
        let length = self.request.as_ref().map_or(0, |request| request.length);
        // The memories of both guests are only accessed at once if neither is slow.
        let copied = match length > BOUNCED && !is_slow {
            true => write(&mut || payload.copy(&target)),
            false => match payload.read(length, bytes) {
                Ok(()) => write(&mut || Ok(target.write(bytes))),
                Err(unplaced) => Err(unplaced),
            },
        };
        match (copied, self.arrival.content) {
            (Ok(Ok(())), _) => self.end = End::Completed(CompStatus::Ok),
            // As the receiver's device will answer.
            (Ok(Err(_)), Content::Send { .. }) => {
                self.end = End::Completed(CompStatus::RemoteBadStatus);
            }
            (Ok(Err(_)), _) => self.end = End::Completed(CompStatus::RemoteBadAddress),
            (Err(Unplaced::Lost), _) => {
                self.end = End::Completed(CompStatus::LocalInvalidLkey);
            }
            (Err(Unplaced::Busy | Unplaced::Gone), _) => {}
        }
        self.stage = Stage::Copied(delivery, copied.ok());
    }
}
