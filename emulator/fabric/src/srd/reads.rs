// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RDMA reads that wait for what they read: a response of the peer, which is a message of its own.

use std::{collections::HashMap, time::Duration};

use efa_model::{QpId, Request};

use crate::packet::{PortId, Reader};

/// How long a read waits for anything from the queue pair that it reads by. A peer answers one read after the other, so one
/// that waits for others waits longer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Who answers reads: a device, and a queue pair of it.
type Responder = (PortId, u16);

/// A read that waits.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) request: Box<Request>,
    pub(crate) from: PortId,
    pub(crate) received: u32,
    /// Whether the peer knows of it.
    asked: bool,
}

/// All reads that wait.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    reads: HashMap<Reader, Read>,
    /// When something last came from whom there are reads of.
    heard: HashMap<Responder, Duration>,
}

impl Reads {
    pub(crate) fn len(&self) -> usize {
        self.reads.len()
    }

    pub(crate) fn add(&mut self, request: Box<Request>, from: PortId) {
        let read = Read {
            request,
            from,
            received: 0,
            asked: false,
        };
        self.reads.insert(reader(&read.request), read);
    }

    /// A read of a peer's memory, if that is the peer.
    pub(crate) fn get_mut(&mut self, reader: Reader, from: PortId) -> Option<&mut Read> {
        let read = self.reads.get_mut(&reader);
        // Nobody answers for others.
        read.filter(|read| read.from == from)
    }

    /// Takes note that the peer of a read has got its request, or has sent something for it. Others that it answers may wait
    /// for as long again.
    pub(crate) fn heard(&mut self, now: Duration, reader: Reader) {
        if let Some(read) = self.reads.get_mut(&reader) {
            read.asked = true;
            self.heard.insert((read.from, read.request.peer_qp), now);
        }
    }

    pub(crate) fn remove(&mut self, reader: Reader) -> Option<Read> {
        self.reads.remove(&reader)
    }

    /// Takes all of a peer that is not there any more.
    pub(crate) fn forget(&mut self, peer: PortId) -> Vec<Read> {
        let of_peer = self.reads.iter().filter(|(_, read)| read.from == peer);
        let readers: Vec<_> = of_peer.map(|(reader, _)| *reader).collect();
        let ended = readers.into_iter().filter_map(|reader| self.remove(reader));
        ended.collect()
    }

    /// Takes all that a peer will not answer any more, and those of queue pairs that are not what they were.
    pub(crate) fn sweep(&mut self, now: Duration, is_current: impl Fn(QpId) -> bool) -> Vec<Read> {
        let heard = &self.heard;
        let is_late = |read: &Read| {
            let last = heard.get(&(read.from, read.request.peer_qp));
            // Until the peer knows of it, the connection looks after it.
            read.asked && last.is_none_or(|last| now.saturating_sub(*last) > TIMEOUT)
        };
        let mut late: Vec<_> = self
            .reads
            .iter()
            .filter(|(reader, read)| is_late(read) || !is_current(reader.qp))
            .map(|(reader, _)| *reader)
            .collect();
        late.sort_unstable_by_key(|reader| reader.request);
        let ended = late.into_iter().filter_map(|reader| self.remove(reader));
        let ended = ended.collect();
        self.heard
            .retain(|_, last| now.saturating_sub(*last) <= TIMEOUT);
        ended
    }
}

/// Who reads by a request.
pub(crate) fn reader(request: &Request) -> Reader {
    Reader {
        qp: request.qp,
        request: request.id,
    }
}
