// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The command `exchange`: calls in both directions, with regions that the peer reads and writes.

use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    rdma::client::{
        Received,
        RemoteMemory, //
    },
    session::{
        Job,
        Pair,
        Session,
        Step,
        Work,
        REGION_SIZE,
        SLOTS, //
    },
    tally::Tally,
    wire::{
        self,
        Arrived,
        Header,
        Kind, //
    },
};

/// A call to the peer.
struct Call {
    seed: u64,
    since: Instant<Monotonic>,
    memory: RemoteMemory,
    sent: bool,
    answered: bool,
    invalidated: bool,
}

/// The slots of a queue pair.
struct Slots {
    /// The number of the next call.
    next: u64,
    calls: [Option<Call>; SLOTS],
    /// The peer's calls that are being answered, and in `waiting` those that arrived before the
    /// answer to the previous call of their slot had completed.
    answering: [Option<Header>; SLOTS],
    waiting: [Option<Header>; SLOTS],
}

/// State of the command: calls to the peer and calls of the peer.
struct Calls {
    count: u64,
    size: usize,
    pairs: KVec<Slots>,
    arrived: Arrived,
    unanswered: u64,
    tally: Tally,
}

/// Returns whether a slot's calls are answered by immediate data, and not by a message.
fn is_immediate(slot: usize) -> bool {
    slot % 2 == 0
}

/// Makes `count` calls with regions of `size` bytes, and answers as many.
///
/// # Errors
///
/// - [`EINVAL`] if `size` is 0, or too large.
/// - Those of [`Session::run`].
pub(crate) fn exchange(session: &Session<'_>, count: u64, size: usize) -> Result<Tally> {
    if !(1..=REGION_SIZE).contains(&size) {
        return Err(EINVAL);
    }
    let mut calls = Calls {
        count,
        size,
        pairs: KVec::with_capacity(session.pairs.len(), GFP_KERNEL)?,
        arrived: Arrived::none(count)?,
        unanswered: count,
        tally: Tally::new(count, 2 * size),
    };
    for pair in &session.pairs {
        let slots = Slots {
            // CAST: The index of one of at most eight queue pairs.
            next: pair.index() as u64,
            calls: [const { None }; SLOTS],
            answering: [None; SLOTS],
            waiting: [None; SLOTS],
        };
        calls.pairs.push(slots, GFP_KERNEL)?;
    }
    for pair in &session.pairs {
        (0..SLOTS).try_for_each(|slot| calls.call(pair, slot))?;
    }
    session.run(&mut calls)?;
    Ok(calls.tally.finish())
}

impl Calls {
    /// Begins the next call of a slot, if there is one.
    fn call(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        // CAST: At most eight queue pairs.
        let pairs = self.pairs.len() as u64;
        let slots = &mut self.pairs[pair.index()];
        let seed = slots.next;
        if seed >= self.count {
            return Ok(());
        }
        slots.next += pairs;

        let since = Instant::now();
        wire::fill(pair.region(slot), 0, self.size, seed)?;
        slots.calls[slot] = Some(Call {
            seed,
            since,
            // CAST: At most `REGION_SIZE`.
            memory: pair.register(slot, self.size as u32)?,
            sent: false,
            answered: false,
            invalidated: false,
        });
        Ok(())
    }

    /// Sends a call whose region is registered.
    fn send_call(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        let call = self.made(pair, slot)?;
        let header = Header {
            kind: Kind::Call,
            // CAST: Less than `SLOTS`, and at most `REGION_SIZE`.
            slot: slot as u32,
            seed: call.seed,
            addr: call.memory.addr,
            rkey: call.memory.rkey,
            length: self.size as u32,
        };
        pair.send(Step::Call, slot, &header, 0)
    }

    /// Returns the slot's call to the peer.
    fn made(&mut self, pair: &Pair<'_>, slot: usize) -> Result<&mut Call> {
        let call = self.pairs[pair.index()].calls.get_mut(slot);
        call.and_then(Option::as_mut).ok_or(EBADMSG)
    }

    /// Handles an answer of the peer: checks it, and invalidates the region.
    fn answered(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        let size = self.size;
        let call = self.made(pair, slot)?;
        if call.answered {
            pr_err!("Call {} is answered twice\n", call.seed);
            return Err(EBADMSG);
        }
        call.answered = true;
        wire::expect(pair.region(slot), 0, size, !call.seed)?;
        pair.invalidate(slot)
    }

    /// Begins the next call, unless work requests of the last one are outstanding.
    fn end_call(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        let call = self.made(pair, slot)?;
        if !call.sent || !call.invalidated {
            return Ok(());
        }
        let since = call.since;
        self.pairs[pair.index()].calls[slot] = None;
        self.tally.add(since);
        self.call(pair, slot)
    }

    /// Handles a call of the peer: reads its region, or queues it.
    fn called(&mut self, pair: &Pair<'_>, call: Header) -> Result {
        let slots = &mut self.pairs[pair.index()];
        // CAST: `usize` has 64 bits on every architecture that has RDMA.
        let slot = call.slot as usize;
        if slot >= SLOTS || call.length as usize != self.size || slots.waiting[slot].is_some() {
            pr_err!(
                "Invalid call {} to slot {slot}, of {} bytes\n",
                call.seed,
                call.length
            );
            return Err(EBADMSG);
        }
        self.arrived.insert(call.seed)?;
        if slots.answering[slot].is_some() {
            slots.waiting[slot] = Some(call);
            return Ok(());
        }
        slots.answering[slot] = Some(call);
        pair.read(&call)
    }

    /// Returns the peer's call that a slot is answering.
    fn answering(&self, pair: &Pair<'_>, slot: usize) -> Result<Header> {
        self.pairs[pair.index()].answering[slot].ok_or(EBADMSG)
    }

    /// Checks the content of the peer's region after reading it, and writes the answer.
    fn read(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        let call = self.answering(pair, slot)?;
        wire::expect(pair.answer(slot), 0, self.size, call.seed)?;
        wire::fill(pair.answer(slot), 0, self.size, !call.seed)?;
        pair.write(&call, is_immediate(slot).then_some(call.slot))
    }

    /// Handles the RDMA write of an answer: sends its message, unless it had immediate data.
    fn written(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        if is_immediate(slot) {
            return self.end_answer(pair, slot);
        }
        let answer = Header {
            kind: Kind::Answer,
            ..self.answering(pair, slot)?
        };
        pair.send(Step::Answer, slot, &answer, 0)
    }

    /// Ends an answer without outstanding work requests, and begins that to a waiting call.
    fn end_answer(&mut self, pair: &Pair<'_>, slot: usize) -> Result {
        let slots = &mut self.pairs[pair.index()];
        slots.answering[slot].take().ok_or(EBADMSG)?;
        self.unanswered -= 1;
        slots.answering[slot] = slots.waiting[slot].take();
        match slots.answering[slot] {
            Some(call) => pair.read(&call),
            None => Ok(()),
        }
    }

    /// Handles a receive of a message or immediate data, and posts it again.
    fn received(&mut self, pair: &Pair<'_>, place: usize, received: &Received) -> Result {
        if let Some(slot) = received.imm_data {
            // CAST: `usize` has 64 bits on every architecture that has RDMA.
            let slot = slot as usize;
            if !is_immediate(slot) {
                pr_err!("Unexpected immediate data for slot {slot}\n");
                return Err(EBADMSG);
            }
            self.answered(pair, slot)?;
        } else {
            let header = pair.header(place, received)?;
            // CAST: `usize` has 64 bits on every architecture that has RDMA.
            let slot = header.slot as usize;
            match header.kind {
                Kind::Call => self.called(pair, header)?,
                Kind::Answer
                    if !is_immediate(slot) && self.made(pair, slot)?.seed == header.seed =>
                {
                    self.answered(pair, slot)?
                }
                _ => {
                    pr_err!("Unexpected message {} to slot {slot}\n", header.seed);
                    return Err(EBADMSG);
                }
            }
        }
        pair.receive(place)
    }
}

impl<'a> Job<'a> for Calls {
    fn completed(&mut self, pair: &Pair<'a>, work: Work, received: Option<Received>) -> Result {
        let slot = work.slot;
        match work.step {
            Step::Receive => self.received(pair, slot, &received.ok_or(EBADMSG)?),
            Step::Register => self.send_call(pair, slot),
            Step::Call => {
                self.made(pair, slot)?.sent = true;
                self.end_call(pair, slot)
            }
            Step::Invalidate => {
                self.made(pair, slot)?.invalidated = true;
                self.end_call(pair, slot)
            }
            Step::Read => self.read(pair, slot),
            Step::Write => self.written(pair, slot),
            Step::Answer => self.end_answer(pair, slot),
            Step::Data => Err(EBADMSG),
        }
    }

    fn is_done(&self) -> bool {
        self.unanswered == 0 && self.tally.is_complete()
    }
}
