// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RDMA reads: a request to the peer, whose response is a message of its own.

use std::time::Duration;

use efa_hw::io::CompStatus;
use efa_model::{QpId, Request};

use super::{
    Cluster, Guest, Port, PortId,
    payload::{Moved, Source},
    receiving::Outcome,
};
use crate::{
    packet::{Address, Data, Reader},
    sender::Content,
};

/// A read that waits.
pub(super) struct Read {
    pub(super) request: Request,
    pub(super) received: u32,
    pub(super) progress: Duration,
}

impl<G: Guest> Cluster<G> {
    /// Starts to send what a peer reads.
    #[allow(
        clippy::too_many_arguments,
        reason = "each is another part of one message"
    )]
    pub(super) fn respond(
        &mut self,
        now: Duration,
        from: PortId,
        own: QpId,
        peer: Address,
        reader: Reader,
        memory: (u32, u64),
        length: u32,
    ) {
        if length == 0 {
            self.served(from, own);
            return;
        }
        if let Some(connection) = self.connection(now, from, own, peer) {
            self.push(connection, Content::Response { reader, memory }, length);
        }
    }

    /// A peer has all that it wanted to read.
    pub(super) fn served(&mut self, port: PortId, own: QpId) {
        let Port { device, guest, .. } = &mut self.ports[port.0];
        device.served_read(guest, own);
    }

    /// Takes a part of what a read reads.
    pub(super) fn take_response(
        &mut self,
        now: Duration,
        to: PortId,
        data: &Data,
        reader: Reader,
        source: &Source<'_>,
    ) -> Outcome {
        // A read that is not there any more has ended.
        let Some(read) = self.reads.get(&(to, reader)) else {
            return self.conclude(data, Ok(()));
        };
        self.target.clear();
        let device = &mut self.ports[to.0].device;
        let found = device.scatter(&read.request, data.offset, data.length, &mut self.target);
        let moved = match found {
            Ok(()) => self.place(to, data, source),
            Err(status) => {
                self.end_read(to, reader, status);
                return self.conclude(data, Ok(()));
            }
        };
        match moved {
            Moved::Done => {}
            Moved::Lost(_) => self.end_read(to, reader, CompStatus::LocalInvalidLkey),
            Moved::Missing(status) => return Outcome::Sender(status),
        }
        if let Some(read) = self.reads.get_mut(&(to, reader)) {
            read.progress = now;
            read.received = read.received.saturating_add(data.length);
            if read.received >= read.request.length {
                self.end_read(to, reader, CompStatus::Ok);
            }
        }
        self.conclude(data, Ok(()))
    }

    /// Ends a read, if it has not ended.
    pub(super) fn end_read(&mut self, port: PortId, reader: Reader, status: CompStatus) {
        if let Some(read) = self.reads.remove(&(port, reader)) {
            self.finish(port, &read.request, status);
        }
    }
}

/// Who reads by a request.
pub(super) fn reader(request: &Request) -> Reader {
    Reader {
        qp: request.qp,
        request: request.id,
    }
}
