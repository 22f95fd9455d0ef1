// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The command `send`: messages in both directions.

use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    rdma::client::Received,
    session::{
        Job,
        Pair,
        Session,
        Step,
        Work,
        MESSAGE_SIZE,
        SLOTS, //
    },
    tally::Tally,
    wire::{
        self,
        Arrived,
        Header,
        Kind,
        HEADER_SIZE, //
    },
};

/// State of the command: messages to the peer and messages of the peer.
struct Messages {
    count: u64,
    /// Bytes after the header.
    data: usize,
    /// Next message number of each queue pair. Numbers are distributed round-robin.
    next: KVec<u64>,
    since: KVec<[Option<Instant<Monotonic>>; SLOTS]>,
    arrived: Arrived,
    missing: u64,
    tally: Tally,
}

/// Sends `count` messages of `size` bytes, and receives as many.
///
/// # Errors
///
/// - [`EINVAL`] if they are too small or too large.
/// - Those of [`Session::run`].
pub(crate) fn send(session: &Session<'_>, count: u64, size: usize) -> Result<Tally> {
    if !(HEADER_SIZE..=MESSAGE_SIZE).contains(&size) {
        return Err(EINVAL);
    }
    let mut next = KVec::new();
    let mut since = KVec::new();
    for pair in &session.pairs {
        // CAST: The index of one of at most eight queue pairs.
        next.push(pair.index() as u64, GFP_KERNEL)?;
        since.push([None; SLOTS], GFP_KERNEL)?;
    }
    let mut messages = Messages {
        count,
        data: size - HEADER_SIZE,
        next,
        since,
        arrived: Arrived::none(count)?,
        missing: count,
        tally: Tally::new(count, size),
    };
    for pair in &session.pairs {
        (0..SLOTS).try_for_each(|slot| messages.send(pair, slot))?;
    }
    session.run(&mut messages)?;
    Ok(messages.tally.finish())
}

impl Messages {
    /// Sends a queue pair's next message, if there is one.
    fn send(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        // CAST: At most eight queue pairs.
        let pairs = self.next.len() as u64;
        let number = &mut self.next[pair.index()];
        if *number >= self.count {
            return Ok(());
        }
        let header = Header {
            kind: Kind::Data,
            // CAST: Less than `SLOTS`, and less than `MESSAGE_SIZE`.
            slot: slot as u32,
            seed: *number,
            addr: 0,
            rkey: 0,
            length: self.data as u32,
        };
        *number += pairs;
        self.since[pair.index()][slot] = Some(Instant::now());
        pair.send(Step::Data, slot, &header, self.data)
    }

    /// Handles a receive of a message, and posts it again.
    fn received(&mut self, pair: &Pair<'_>, place: usize, received: &Received) -> Result {
        let header = pair.header(place, received)?;
        // CAST: `usize` has 64 bits on every architecture that has RDMA.
        let (length, data) = (received.byte_len as usize, header.length as usize);
        if header.kind != Kind::Data || data != self.data || length != HEADER_SIZE + data {
            pr_err!(
                "Message {} has {length} bytes, {data} of data\n",
                header.seed
            );
            return Err(EBADMSG);
        }
        self.arrived.insert(header.seed)?;
        let (buffer, offset) = pair.message(place);
        wire::expect(buffer, offset + HEADER_SIZE, data, header.seed)?;
        self.missing -= 1;
        pair.receive(place)
    }
}

impl<'a> Job<'a> for Messages {
    fn completed(&mut self, pair: &Pair<'a>, work: Work, received: Option<Received>) -> Result {
        match work.step {
            Step::Receive => self.received(pair, work.slot, &received.ok_or(EBADMSG)?),
            Step::Data => {
                let since = self.since[pair.index()][work.slot].take();
                self.tally.add(since.ok_or(EBADMSG)?);
                self.send(pair, work.slot)
            }
            _ => Err(EBADMSG),
        }
    }

    fn is_done(&self) -> bool {
        self.missing == 0 && self.tally.is_complete()
    }
}
