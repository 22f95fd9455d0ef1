// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RDMA reads that wait for their data: a response of the peer, which is a message of its own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use efa_model::{QpId, Request};

use crate::packet::{PortId, Reader};

/// A read times out if its responder sends nothing for this time, neither for it nor for the responder's first read. A responder
/// serves the reads of a queue pair one after the other, so later reads have to wait longer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Responder to reads: a device, and its queue pair.
type Responder = (PortId, u16);

/// A read that waits for its data.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) request: Box<Request>,
    pub(crate) from: PortId,
    pub(crate) received: u32,
    /// Its position among the reads that the responder knows of, once it does.
    turn: Option<u64>,
    /// Time of the responder's last packet for it.
    heard: Duration,
}

impl Read {
    fn responder(&self) -> Responder {
        (self.from, self.request.peer_qp)
    }
}

/// All reads in progress.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    reads: BTreeMap<Reader, Read>,
    turns: HashMap<Responder, Turns>,
    /// The last position that was assigned.
    next: u64,
}

/// Positions of the reads that a responder knows of.
#[derive(Debug, Default)]
struct Turns {
    waiting: BTreeSet<u64>,
    /// Time of the responder's last packet for the first of them.
    heard: Duration,
}

impl Reads {
    pub(crate) fn len(&self) -> usize {
        self.reads.len()
    }

    /// Adds a read. Removes the reads of ended queue pairs with the same number, so that few are kept for each number.
    pub(crate) fn add(&mut self, request: Box<Request>, from: PortId) {
        let qp = request.qp;
        while let Some((ended, _)) = self.reads.range(..Reader { qp, request: 0 }).next_back() {
            if ended.qp.number != qp.number {
                break;
            }
            self.remove(*ended);
        }
        let read = Read { request, from, received: 0, turn: None, heard: Duration::ZERO };
        self.reads.insert(reader(&read.request), read);
    }

    /// Returns a read, if `from` is its responder.
    pub(crate) fn get_mut(&mut self, reader: Reader, from: PortId) -> Option<&mut Read> {
        let read = self.reads.get_mut(&reader);
        // Only the responder may respond.
        read.filter(|read| read.from == from)
    }

    /// Records that the responder of a read has received its request, or has sent data for it. If this is the first read of the
    /// responder, the timeout of its other reads restarts, too.
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

    /// Removes and returns all reads from a peer that is gone.
    pub(crate) fn forget(&mut self, peer: PortId) -> Vec<Read> {
        let of_peer = self.reads.iter().filter(|(_, read)| read.from == peer);
        let readers: Vec<_> = of_peer.map(|(reader, _)| *reader).collect();
        let ended = readers.into_iter().filter_map(|reader| self.remove(reader));
        ended.collect()
    }

    /// Removes and returns reads that have timed out, and reads of queue pairs that were reset, failed or destroyed.
    pub(crate) fn sweep(&mut self, now: Duration, is_current: impl Fn(QpId) -> bool) -> Vec<Read> {
        let turns = &self.turns;
        let is_late = |read: &Read| {
            let turns = turns.get(&read.responder());
            let last = turns.map_or(read.heard, |turns| turns.heard.max(read.heard));
            // Until the responder knows of the read, its connection detects timeouts.
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

/// Returns the identity of the read of a work request.
pub(crate) fn reader(request: &Request) -> Reader {
    Reader { qp: request.qp, request: request.id }
}
