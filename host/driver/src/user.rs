// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A program that makes random calls, and checks their results.

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
    /// Whether calls fail only because of a removal or reset of the device.
    pub works: bool,
}

/// A program and its objects.
pub struct User {
    program: Program,
    memory: Memory,
    buffer: i32,
    pds: Vec<u32>,
    cqs: Vec<Cq>,
    /// Queue pairs, and whether each was brought up.
    qps: Vec<(Qp, bool)>,
    ahs: Vec<(u32, Peer)>,
    mrs: Vec<(u32, Sge)>,
    rest: Vec<u32>,
    posted: u16,
}

/// Number of kinds of actions in [`User::act`].
const ACTIONS: u64 = 16;

impl User {
    /// Opens the device.
    ///
    /// # Errors
    ///
    /// Errors of a [`Program`].
    pub fn new() -> Result<Self> {
        Ok(Self {
            program: Program::new()?,
            memory: Memory::new(MEMORY),
            buffer: dmabuf::export(MEMORY),
            pds: Vec::new(),
            cqs: Vec::new(),
            qps: Vec::new(),
            ahs: Vec::new(),
            mrs: Vec::new(),
            rest: Vec::new(),
            posted: 0,
        })
    }

    /// Performs a random action.
    ///
    /// # Panics
    ///
    /// If the action takes too long, or fails unexpectedly.
    pub fn act(&mut self, choices: &mut dyn Choices, trust: Trust) {
        let start = sim::now();
        let result = self.try_to_act(choices);
        let took = sim::now() - start;
        assert!(took < PATIENCE, "a call has taken {} s", took / SECOND);
        // An injected allocation failure may be the reason as well.
        if let (true, Err(error)) = (trust.works && !sim::has_failed(), result) {
            assert!(is_expected(error), "{error:?} from a device that works");
        }
    }

    fn try_to_act(&mut self, choices: &mut dyn Choices) -> Result {
        let program = &self.program;
        let pd = some(choices, &self.pds).copied();
        match choices.below(ACTIONS) {
            0 | 1 => self.pds.push(program.alloc_pd()?),
            2 => {
                let own = choices.one_in(3).then(|| (self.memory.address(), MEMORY));
                let events = program.has_events() && choices.below(2) == 0;
                self.cqs.push(program.create_cq(64, events, own)?);
            }
            3 | 4 => {
                let cq = some(choices, &self.cqs).map(|cq| cq.id);
                if let Some((pd, cq)) = pd.zip(cq) {
                    let qp = program.create_qp(pd, cq, choices.below(2) == 0, 64, 16)?;
                    self.qps.push((qp, false));
                    if choices.below(2) == 0 {
                        let (qp, is_up) = self.qps.last_mut().expect("the queue pair");
                        program.bring_up(qp)?;
                        *is_up = true;
                    }
                }
            }
            5 => {
                if let Some(pd) = pd {
                    let mut gid = crate::program::own_gid()?;
                    gid[15] ^= choices.below(3) as u8;
                    let (id, ah) = program.create_ah(pd, &gid)?;
                    self.ahs.push((id, Peer { ah, qpn: 0 }));
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
                    ));
                }
            }
            7 => {
                if let Some(pd) = pd {
                    self.rest
                        .push(program.register_dmabuf(pd, self.buffer, MEMORY as u64)?.0);
                }
            }
            8 if program.has_counters() => {
                let at = self.memory.address();
                self.rest.push(program.create_counter(at, at + 8)?);
            }
            9 => dmabuf::revoke(self.buffer),
            10 | 11 => self.post(choices)?,
            12 => self.poll()?,
            13 => sim::sleep(choices.below(3_000_000)),
            _ => self.destroy(choices)?,
        }
        Ok(())
    }

    /// Posts a receive, or a send or RDMA operation to a queue pair of its own.
    fn post(&mut self, choices: &mut dyn Choices) -> Result {
        let qpn = some(choices, &self.qps).map(|(qp, _)| qp.number);
        let (Some(qpn), Some((_, peer)), Some((_, sge))) =
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
        let (qp, is_up) = &mut self.qps[which];
        if !*is_up {
            // The device would report the doorbell as an error of the driver.
            return Ok(());
        }
        self.posted = self.posted.wrapping_add(1);
        match choices.below(4) {
            0 | 1 => qp.post_recv(self.posted, sge),
            2 => qp.post_send(self.posted, peer, sge),
            _ => qp.post_rdma(self.posted, choices.below(2) == 0, peer, sge, sge),
        }
    }

    /// Polls completions, and requests an event.
    fn poll(&mut self) -> Result {
        for cq in &mut self.cqs {
            for _ in 0..8 {
                if cq.poll()?.is_none() {
                    break;
                }
            }
            cq.arm()?;
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
            rest,
            ..
        } = self;
        let process = &program.process;
        match choices.below(6) {
            0 => destroy(choices, qps, |(qp, _)| process.destroy(qp.id)),
            1 => destroy(choices, mrs, |(id, _)| process.destroy(*id)),
            2 => destroy(choices, ahs, |(id, _)| process.destroy(*id)),
            3 => destroy(choices, rest, |id| process.destroy(*id)),
            4 => destroy(choices, cqs, |cq| process.destroy(cq.id)),
            _ => destroy(choices, pds, |id| process.destroy(*id)),
        }
    }
}

/// Returns whether an error is that of a removed device, of an object in use, or of a missing feature.
fn is_expected(error: Error) -> bool {
    const EOPNOTSUPP: i32 = -95;
    [EIO, ENODEV, ENOENT, EFAULT, EBUSY, EINVAL].contains(&error) || error.to_errno() == EOPNOTSUPP
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
