// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A run of a search: two programs, the packets in flight, and what may happen next.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

/// Bytes of a region for each message.
const SLOT: u64 = 12 << 10;

/// Limit on the steps after the search, in which nothing is lost, until all messages have ended.
const REST: usize = 2000;

/// The operation of all messages of a search.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Write,
    Read,
}

/// What a search varies: the messages, and the number of each fault and step of time.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) kind: Kind,
    pub(super) lengths: &'static [u32],
    pub(super) losses: u32,
    pub(super) copies: u32,
    /// Steps to the next time at which a program has work, such as a retransmission.
    pub(super) waits: u32,
    pub(super) relinks: u32,
    pub(super) restarts: u32,
    /// Whether receives are posted at any time, and not before the messages.
    pub(super) is_late: bool,
}

/// Short messages without faults.
pub(super) const CALM: Bounds = Bounds {
    kind: Kind::Message,
    lengths: &[100, 100],
    losses: 0,
    copies: 0,
    waits: 0,
    relinks: 0,
    restarts: 0,
    is_late: false,
};

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A packet of a program arrives.
    Arrive(usize, usize),
    /// A packet is lost.
    Lose(usize, usize),
    /// A copy of a packet arrives.
    Copy(usize, usize),
    Wait,
    /// The link is lost, with all packets, and restored.
    Relink,
    /// The second program is replaced by a new one with the same address.
    Restart,
    /// The second program posts its receives.
    Post,
}

/// Two programs, and what has happened to the messages of the first one.
pub(super) struct Run {
    pub(super) programs: Programs,
    pub(super) left: Bounds,
    flight: [Vec<Frame>; 2],
    pub(super) arrived: Vec<u32>,
    pub(super) ended: Vec<(u16, CompStatus)>,
    /// Whether the second program is not the one that the messages were sent to.
    pub(super) is_other: bool,
    /// Hashes of all inputs of each program.
    inputs: [DefaultHasher; 2],
}

impl Run {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let pages = bounds.lengths.len() as u64 * SLOT / PAGE + 1;
        let mut run = Self {
            programs: Programs::new(QpType::Srd, &Settings::default(), pages),
            left: *bounds,
            flight: Default::default(),
            arrived: Vec::new(),
            ended: Vec::new(),
            is_other: false,
            inputs: Default::default(),
        };
        if !bounds.is_late {
            run.post_receives();
        }
        for (number, length) in (0..).zip(bounds.lengths) {
            let (at, content) = (number * SLOT, pattern(*length as usize, number));
            let from = usize::from(bounds.kind == Kind::Read);
            let Programs { nets, regions, .. } = &mut run.programs;
            nets[from].fill(&regions[from], at, &content);
            let [message, write, read] = run.programs.sends(0, *length).map(|send| send.moved(at));
            let send = match bounds.kind {
                Kind::Message => message,
                Kind::Write => write,
                Kind::Read => read,
            };
            // CAST: of few messages.
            let immediate = (bounds.kind != Kind::Read).then_some(number as u32);
            run.programs.post(0, &Send { immediate, ..send });
        }
        run.collect();
        run
    }

    fn post_receives(&mut self) {
        for number in 0..self.left.lengths.len() as u64 {
            let Region { iova, lkey, .. } = self.programs.regions[1];
            // CAST: of a slot.
            self.programs.receive(1, &[(iova + number * SLOT, SLOT as u16, lkey)]);
        }
        self.left.is_late = false;
    }

    /// Returns the actions of which the search chooses one.
    pub(super) fn actions(&mut self) -> Vec<Action> {
        let left = self.left;
        let places = |from: usize| (0..self.flight[from].len()).map(move |at| (from, at));
        let all: Vec<_> = places(0).chain(places(1)).collect();
        let mut actions: Vec<_> = all.iter().map(|(from, at)| Action::Arrive(*from, *at)).collect();
        for (number, fault) in [(left.losses, Action::Lose as fn(usize, usize) -> Action), (left.copies, Action::Copy)]
        {
            if number > 0 {
                actions.extend(all.iter().map(|(from, at)| fault(*from, *at)));
            }
        }
        let is_under_way = self.ended.len() < left.lengths.len();
        for (is_possible, action) in [
            (left.waits > 0 && is_under_way, Action::Wait),
            (left.relinks > 0, Action::Relink),
            (left.restarts > 0, Action::Restart),
            (left.is_late, Action::Post),
        ] {
            actions.extend(is_possible.then_some(action));
        }
        actions
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Arrive(from, at) => {
                let frame = self.flight[from].remove(at);
                self.note([1 - from], &text(&frame));
                self.programs.accept(1 - from, frame);
            }
            Action::Lose(from, at) => {
                self.left.losses -= 1;
                self.flight[from].remove(at);
            }
            Action::Copy(from, at) => {
                self.left.copies -= 1;
                let copy = text(&self.flight[from][at]);
                self.note([1 - from], &copy);
                self.programs.accept(1 - from, serde_json::from_str(&copy).unwrap());
            }
            Action::Wait => {
                self.left.waits -= 1;
                self.note([0, 1], "wait");
                self.wait();
            }
            Action::Relink => {
                self.left.relinks -= 1;
                self.note([0, 1], "relink");
                self.flight = Default::default();
                self.programs.reconnect(|_| {});
            }
            Action::Restart => {
                self.left.restarts -= 1;
                self.note([0, 1], "restart");
                self.restart();
            }
            Action::Post => {
                self.note([1], "post");
                self.post_receives();
            }
        }
        self.collect();
    }

    /// Advances the clock to the next time at which a program has work.
    fn wait(&mut self) {
        let nets = &mut self.programs.nets;
        let due = nets.iter().filter_map(|net| net.fabric.next_due(net.now)).min();
        for net in nets.iter_mut() {
            let due = due.unwrap_or(net.now + Duration::from_secs(1));
            net.run_for(due.saturating_sub(net.now));
        }
    }

    /// Replaces the second program by another one, whose device has the same address and the same numbers.
    fn restart(&mut self) {
        self.flight = Default::default();
        self.programs.leave(0);
        let Programs { nets, qps, regions, links } = &mut self.programs;
        let pages = regions[1].pages.len() as u64;
        nets[1] = Net::of_program(&[Profile::Efa3], Settings::default(), 2, 2);
        nets[1].now = nets[0].now;
        let addresses = [1, 0].map(|other: usize| [nets[other].address(PortId(0))]);
        qps[1] = nets[1].qp(0, QpType::Srd);
        qps[1].ah = nets[1].handle_of(&qps[1], addresses[1][0]);
        regions[1] = nets[1].region(&qps[1], pages, 77);
        let newcomers = [0, 1].map(|at: usize| newcomer(&nets[at], 10 + at as u64, &addresses[at]));
        *links = [0, 1].map(|at: usize| {
            let offered = newcomers[1 - at].session.number;
            let wire = Arc::default();
            let link = try_join(&nets[at], &Newcomer { offered, ..newcomers[at] }, &wire);
            (link.unwrap(), wire)
        });
        self.is_other = true;
        self.post_receives();
    }

    /// Takes the packets that both programs send, and checks the messages that have arrived or ended.
    fn collect(&mut self) {
        for from in [0, 1] {
            let sent = self.programs.sent(from);
            self.flight[from].extend(sent);
        }
        while let Some(completion) = self.programs.poll(1) {
            let number = completion.imm;
            let length = self.left.lengths[number as usize];
            assert_eq!(status(&completion), OK);
            assert!(!self.arrived.contains(&number), "message {number} has arrived twice");
            let at = match self.left.kind {
                Kind::Message => u64::from(completion.req_id & 0x7fff) * SLOT,
                _ => u64::from(number) * SLOT,
            };
            let content = self.programs.content(1, at, length as usize);
            assert!(content == pattern(content.len(), number.into()), "message {number} is not whole");
            self.arrived.push(number);
        }
        while let Some(completion) = self.programs.poll(0) {
            let (number, how) = (completion.req_id, status(&completion));
            assert!(self.ended.iter().all(|(other, _)| *other != number), "request {number} has ended twice");
            if how == OK && self.left.kind == Kind::Read {
                let length = self.left.lengths[usize::from(number)] as usize;
                let content = self.programs.content(0, u64::from(number) * SLOT, length);
                assert!(content == pattern(length, number.into()), "read {number} is not whole");
            } else if how == OK {
                assert!(self.arrived.contains(&number.into()), "message {number} has ended, but not arrived");
            }
            self.ended.push((number, how));
        }
    }

    /// Lets all packets arrive until all messages have ended, and late packets have arrived.
    pub(super) fn finish(&mut self) {
        if self.left.is_late {
            self.post_receives();
        }
        let mut quiet = 0;
        for _ in 0..REST {
            self.collect();
            if let Some(from) = self.flight.iter().position(|frames| !frames.is_empty()) {
                self.act(Action::Arrive(from, 0));
                quiet = 0;
            } else if self.ended.len() < self.left.lengths.len() || quiet < 5 {
                self.wait();
                quiet += 1;
            } else {
                return;
            }
        }
        panic!("messages do not end: {:?} of {:?}", self.ended, self.left.lengths.len());
    }

    /// Notes an input of both programs, or of one.
    fn note(&mut self, programs: impl IntoIterator<Item = usize>, input: &str) {
        for program in programs {
            input.hash(&mut self.inputs[program]);
        }
    }

    /// Returns a hash of the state. A program's state follows from its inputs, in whatever order the other one has got its own.
    pub(super) fn state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for inputs in &self.inputs {
            inputs.finish().hash(&mut hasher);
        }
        for frames in &self.flight {
            let mut frames: Vec<_> = frames.iter().map(text).collect();
            frames.sort();
            frames.hash(&mut hasher);
        }
        let left = &self.left;
        [left.losses, left.copies, left.waits, left.relinks, left.restarts].hash(&mut hasher);
        hasher.finish()
    }
}

fn text(frame: &Frame) -> String {
    serde_json::to_string(frame).unwrap()
}
