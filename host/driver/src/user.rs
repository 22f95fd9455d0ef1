// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A program that makes random calls, and checks their results.

use std::{collections::BTreeMap, rc::Rc};

use ib_core::{dmabuf, umem::Memory};
use kernel::{
    error::{code::*, Error, Result},
    sim,
};

use crate::{
    choices::Choices,
    program::Program,
    rig::SECOND,
    rings::{Cq, Peer, Qp, Sge},
};

/// Size of a program's memory in bytes.
const MEMORY: usize = 64 << 10;

/// Time limit of a call in ns: a command timeout, and the handling of a dead device.
const PATIENCE: u64 = 130 * SECOND;

/// Expectations of a user on the device.
#[derive(Clone, Copy, Default)]
pub struct Trust {
    /// Whether calls fail only for reasons that the user knows, or because of a removal or reset of the device.
    pub works: bool,
    /// Whether the device may have no number left for an object.
    pub is_small: bool,
    /// Whether memory consists of several pieces, so that it can't hold a ring.
    pub in_pieces: bool,
}

/// A queue pair, and what it consists of.
struct Pair {
    qp: Qp,
    is_up: bool,
    pd: u32,
    /// Id of its completion queue.
    cq: u32,
}

/// A thread of a program, and its objects.
pub struct User {
    program: Rc<Program>,
    memory: Memory,
    buffer: i32,
    /// Protection domains. The first one may be that of other threads, too.
    pds: Vec<u32>,
    has_shared: bool,
    cqs: Vec<Cq>,
    qps: Vec<Pair>,
    ahs: Vec<(u32, Peer, u32)>,
    mrs: Vec<(u32, Sge, u32)>,
    bufs: Vec<(u32, u32)>,
    counters: Vec<u32>,
    /// Posted requests that have not completed: by id, whether it is a receive, and the number of its queue pair.
    posted: BTreeMap<u16, (bool, u32)>,
    next: u16,
    /// The error that the last action must have, and one that it may have.
    must_fail: Option<Error>,
    may_fail: Option<Error>,
}

/// Depths of queues.
const SIZES: [u32; 5] = [1, 2, 4, 16, 64];

/// Number of kinds of actions in [`User::act`].
const ACTIONS: u64 = 16;

impl User {
    /// Opens the device.
    ///
    /// # Errors
    ///
    /// Errors of a [`Program`].
    pub fn new() -> Result<Self> {
        Ok(Self::of(Rc::new(Program::new()?), Vec::new()))
    }

    /// Opens the device for two threads, which share a protection domain.
    ///
    /// # Errors
    ///
    /// Errors of a [`Program`].
    pub fn pair() -> Result<[Self; 2]> {
        let program = Rc::new(Program::new()?);
        let pd = program.alloc_pd()?;
        Ok([(); 2].map(|()| Self::of(program.clone(), vec![pd])))
    }

    fn of(program: Rc<Program>, pds: Vec<u32>) -> Self {
        Self {
            program,
            memory: Memory::new(MEMORY),
            buffer: dmabuf::export(MEMORY),
            has_shared: !pds.is_empty(),
            pds,
            cqs: Vec::new(),
            qps: Vec::new(),
            ahs: Vec::new(),
            mrs: Vec::new(),
            bufs: Vec::new(),
            counters: Vec::new(),
            posted: BTreeMap::new(),
            next: 0,
            must_fail: None,
            may_fail: None,
        }
    }

    /// Returns whether the program has a device that is up. A failure shows within a moment.
    fn has_device(&self) -> bool {
        sim::sleep(SECOND / 1000);
        self.program.process.has_device() && session().is_some()
    }

    /// Performs a random action.
    ///
    /// # Panics
    ///
    /// If the action takes too long, or fails unexpectedly.
    pub fn act(&mut self, choices: &mut dyn Choices, trust: Trust) {
        let start = sim::now();
        (self.must_fail, self.may_fail) = (None, None);
        let action = choices.below(ACTIONS);
        let result = self.try_to_act(action, choices, trust);
        let took = sim::now() - start;
        assert!(took < PATIENCE, "a call has taken {} s", took / SECOND);
        // An injected allocation failure may be the reason as well.
        if !trust.works || sim::has_failed() {
            return;
        }
        let error = result.err();
        let is_due = match self.must_fail {
            Some(reason) => error == Some(reason),
            None => error.is_none() || error == self.may_fail,
        };
        let is_gone = || !self.has_device() && error.is_none_or(is_of_a_gone_device);
        let wanted = self.must_fail;
        assert!(
            is_due || is_gone(),
            "{error:?} of action {action} on a device that works, not {wanted:?}"
        );
    }

    fn try_to_act(&mut self, action: u64, choices: &mut dyn Choices, trust: Trust) -> Result {
        let program = &self.program;
        self.may_fail = trust.is_small.then_some(ENOMEM);
        let pd = some(choices, &self.pds).copied();
        match action {
            0 | 1 => self.pds.push(program.alloc_pd()?),
            2 => {
                let own = choices.one_in(3).then(|| (self.memory.address(), MEMORY));
                let events = program.has_events() && choices.below(2) == 0;
                let entries = choices.pick(&SIZES);
                if own.is_some() && trust.in_pieces {
                    self.may_fail = Some(EINVAL);
                }
                self.cqs.push(program.create_cq(entries, events, own)?);
            }
            3 | 4 => {
                let cq = some(choices, &self.cqs).map(|cq| cq.id);
                if let Some((pd, cq)) = pd.zip(cq) {
                    let (sends, recvs) = (choices.pick(&SIZES), choices.pick(&SIZES));
                    let qp = program.create_qp(pd, cq, choices.below(2) == 0, sends, recvs)?;
                    let is_up = false;
                    self.qps.push(Pair { qp, is_up, pd, cq });
                    if choices.below(2) == 0 {
                        let pair = self.qps.last_mut().expect("the queue pair");
                        program.bring_up(&pair.qp)?;
                        pair.is_up = true;
                    }
                }
            }
            5 => {
                if let Some(pd) = pd {
                    let mut gid = crate::program::own_gid()?;
                    gid[15] ^= choices.below(3) as u8;
                    let (id, ah) = program.create_ah(pd, &gid)?;
                    self.ahs.push((id, Peer { ah, qpn: 0 }, pd));
                }
            }
            6 => {
                let (skip, length) = (choices.below(4096), 1 + choices.below(50_000));
                if let Some(pd) = pd {
                    let addr = self.memory.address() + skip;
                    let (id, key) = program.register(pd, addr, length)?;
                    self.mrs.push((
                        id,
                        Sge {
                            addr,
                            length: length as u32,
                            key,
                        },
                        pd,
                    ));
                }
            }
            7 => {
                if let Some(pd) = pd {
                    let (id, _) = program.register_dmabuf(pd, self.buffer, MEMORY as u64)?;
                    self.bufs.push((id, pd));
                }
            }
            8 if program.has_counters() => {
                let at = self.memory.address();
                self.counters.push(program.create_counter(at, at + 8)?);
            }
            9 => dmabuf::revoke(self.buffer),
            10 | 11 => self.post(choices)?,
            12 => self.poll(trust)?,
            13 => sim::sleep(choices.below(3_000_000)),
            _ => self.destroy(choices)?,
        }
        Ok(())
    }

    /// Posts a receive, or a send or RDMA operation to a queue pair of its own.
    fn post(&mut self, choices: &mut dyn Choices) -> Result {
        let qpn = some(choices, &self.qps).map(|pair| pair.qp.number);
        let (Some(qpn), Some((_, peer, _)), Some((_, sge, _))) =
            (qpn, some(choices, &self.ahs), some(choices, &self.mrs))
        else {
            return Ok(());
        };
        let (peer, sge) = (
            Peer { qpn, ..*peer },
            Sge {
                length: sge.length.min(1000),
                ..*sge
            },
        );
        let which = choices.below(self.qps.len() as u64) as usize;
        let kind = choices.below(4);
        let Pair { qp, is_up, cq, .. } = &mut self.qps[which];
        let pairs = self.posted.values();
        let count = |is_recv| {
            let same = |posted: &&(bool, u32)| **posted == (is_recv, qp.number);
            pairs.clone().filter(same).count()
        };
        let room = if kind < 2 { qp.recvs } else { qp.sends };
        let queue = self.cqs.iter().find(|queue| queue.id == *cq);
        // The device would report the doorbell as an error of the driver. The program ensures room for each completion.
        if !*is_up
            || count(kind < 2) >= room as usize
            || queue.is_none_or(|queue| pairs.len() >= queue.depth)
        {
            return Ok(());
        }
        self.next = self.next.wrapping_add(1);
        self.posted.insert(self.next, (kind < 2, qp.number));
        match kind {
            0 | 1 => qp.post_recv(self.next, sge),
            2 => qp.post_send(self.next, peer, sge),
            _ => qp.post_rdma(self.next, choices.below(2) == 0, peer, sge, sge),
        }
    }

    /// Polls completions, each of which is that of a request. Requests an event, and expects that of the last request.
    fn poll(&mut self, trust: Trust) -> Result {
        for index in 0..self.cqs.len() {
            let cq = &mut self.cqs[index];
            let mut polled = 0;
            while let Some(completion) = cq.poll()? {
                polled += 1;
                let posted = self.posted.remove(&completion.id);
                let is_known = posted.is_some_and(|(is_recv, _)| is_recv == completion.is_recv);
                assert!(
                    !trust.works || is_known,
                    "{completion:?} of nothing that was posted"
                );
            }
            if cq.is_armed && polled != 0 {
                let (id, seen) = (cq.id, cq.events.wrapping_add(1));
                sim::sleep(SECOND / 1000);
                let events = self.program.process.events(id)?;
                let has_event = events as u8 == seen;
                let is_excused = || !trust.works || sim::has_failed() || !self.has_device();
                assert!(has_event || is_excused(), "{events} events, not {seen}");
                if has_event {
                    self.cqs[index].ack_event();
                }
            }
            let cq = &mut self.cqs[index];
            if !cq.is_armed {
                cq.arm()?;
            }
        }
        Ok(())
    }

    fn destroy(&mut self, choices: &mut dyn Choices) -> Result {
        let Self {
            program,
            pds,
            cqs,
            qps,
            ahs,
            mrs,
            bufs,
            counters,
            must_fail,
            ..
        } = self;
        let process = &program.process;
        match choices.below(7) {
            0 => destroy(choices, qps, |pair| process.destroy(pair.qp.id)),
            1 => destroy(choices, mrs, |(id, ..)| process.destroy(*id)),
            2 => destroy(choices, ahs, |(id, ..)| process.destroy(*id)),
            3 => destroy(choices, bufs, |(id, _)| process.destroy(*id)),
            4 => destroy(choices, counters, |id| process.destroy(*id)),
            5 => destroy(choices, cqs, |cq| {
                *must_fail = qps.iter().any(|pair| pair.cq == cq.id).then_some(EBUSY);
                process.destroy(cq.id)
            }),
            _ if self.has_shared && pds.len() == 1 => Ok(()),
            _ => {
                // The first one stays if others share it.
                let shared = self.has_shared.then(|| pds.remove(0));
                let result = destroy(choices, pds, |id| {
                    let domains = qps.iter().map(|pair| pair.pd);
                    let others = ahs.iter().map(|ah| ah.2).chain(mrs.iter().map(|mr| mr.2));
                    let mut users = domains.chain(others).chain(bufs.iter().map(|buf| buf.1));
                    *must_fail = users.any(|pd| pd == *id).then_some(EBUSY);
                    process.destroy(*id)
                });
                shared.into_iter().for_each(|pd| pds.insert(0, pd));
                result
            }
        }
    }
}

/// Returns whether an error is that of a device that was removed or reset.
fn is_of_a_gone_device(error: Error) -> bool {
    [EIO, ENODEV, ENOENT, EFAULT].contains(&error)
}

/// Returns the session of a device that is up.
pub(crate) fn session() -> Option<String> {
    let state = kernel::debugfs::read("efa/0000:00:05.0/state")?;
    let line = |what: &str| state.lines().find(|line| line.starts_with(what));
    line("state: up")?;
    line("session: ").map(str::to_owned)
}

/// Returns a chosen element, if there is one.
fn some<'a, T>(choices: &mut dyn Choices, values: &'a [T]) -> Option<&'a T> {
    values.get(choices.below(values.len().max(1) as u64) as usize)
}

/// Destroys a chosen object of a list.
fn destroy<T>(
    choices: &mut dyn Choices,
    all: &mut Vec<T>,
    destroy: impl FnOnce(&T) -> Result,
) -> Result {
    if all.is_empty() {
        return Ok(());
    }
    let which = choices.below(all.len() as u64) as usize;
    destroy(&all[which])?;
    all.swap_remove(which);
    Ok(())
}
