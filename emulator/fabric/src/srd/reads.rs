// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RDMA reads that wait for what they read: a response of the peer, which is a message of its own.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use efa_model::{QpId, Request};

use crate::packet::{PortId, Reader};

/// How long a read waits for anything of it, or of the one that its peer answers. A peer answers one read of a queue pair after the
/// other, so one that waits for others waits longer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Who answers reads: a device, and a queue pair of it.
type Responder = (PortId, u16);

/// A read that waits.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) request: Box<Request>,
    pub(crate) from: PortId,
    pub(crate) received: u32,
    /// Its place among those that the peer knows of, from when the peer does.
    turn: Option<u64>,
    /// When something last came for it.
    heard: Duration,
}

impl Read {
    fn responder(&self) -> Responder {
        (self.from, self.request.peer_qp)
    }
}

/// All reads that wait.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    reads: HashMap<Reader, Read>,
    turns: HashMap<Responder, Turns>,
    /// The next place.
    next: u64,
}

/// The reads that a queue pair of a peer knows of.
#[derive(Debug, Default)]
struct Turns {
    waiting: BTreeSet<u64>,
    /// When something last came for the first of them.
    heard: Duration,
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
            turn: None,
            heard: Duration::ZERO,
        };
        self.reads.insert(reader(&read.request), read);
    }

    /// A read of a peer's memory, if that is the peer.
    pub(crate) fn get_mut(&mut self, reader: Reader, from: PortId) -> Option<&mut Read> {
        let read = self.reads.get_mut(&reader);
        // Nobody answers for others.
        read.filter(|read| read.from == from)
    }

    /// Takes note that the peer of a read has got its request, or has sent something for it. If it is the one whose turn it is,
    /// others may wait for as long again.
    pub(crate) fn heard(&mut self, now: Duration, reader: Reader) {
        let Some(read) = self.reads.get_mut(&reader) else {
            return;
        };
        let turns = self.turns.entry(read.responder()).or_default();
        let turn = *read.turn.get_or_insert_with(|| {
            self.next += 1;
            turns.waiting.insert(self.next);
            self.next
        });
        read.heard = now;
        if turns.waiting.first() == Some(&turn) {
            turns.heard = now;
        }
    }

    pub(crate) fn remove(&mut self, reader: Reader) -> Option<Read> {
        let read = self.reads.remove(&reader)?;
        if let (Some(turn), Some(turns)) = (read.turn, self.turns.get_mut(&read.responder())) {
            turns.waiting.remove(&turn);
            if turns.waiting.is_empty() {
                self.turns.remove(&read.responder());
            }
        }
        Some(read)
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
        let turns = &self.turns;
        let is_late = |read: &Read| {
            let turns = turns.get(&read.responder());
            let last = turns.map_or(read.heard, |turns| turns.heard.max(read.heard));
            // Until the peer knows of it, the connection looks after it.
            read.turn.is_some() && now.saturating_sub(last) > TIMEOUT
        };
        let mut late: Vec<_> = self
            .reads
            .iter()
            .filter(|(reader, read)| is_late(read) || !is_current(reader.qp))
            .map(|(reader, _)| *reader)
            .collect();
        late.sort_unstable_by_key(|reader| reader.request);
        let ended = late.into_iter().filter_map(|reader| self.remove(reader));
        ended.collect()
    }
}

/// Who reads by a request.
pub(crate) fn reader(request: &Request) -> Reader {
    Reader {
        qp: request.qp,
        request: request.id,
    }
}
