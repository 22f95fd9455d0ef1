// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices of two programs on one network.

mod hostile;
mod models;
mod transfers;

use std::sync::Mutex;

use efa_testing::cases::Pair;
use serde_json::Value;

use super::*;

/// Packets in flight to another program.
#[derive(Debug, Default)]
struct Wire(Mutex<Vec<Frame>>);

impl Link for Wire {
    fn send(&self, frame: Frame) {
        self.0.lock().unwrap().push(frame);
    }
}

impl Wire {
    fn take(&self) -> Vec<Frame> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Returns another program that has been asked to join, has been offered a session, and offers none.
fn newcomer<'a>(net: &Net, program: u64, addresses: &'a [[u8; 16]]) -> Newcomer<'a> {
    Newcomer { program, host: None, addresses, session: net.fabric.session(program, addresses), offered: 0 }
}

/// Lets another program join.
fn try_join(net: &Net, newcomer: &Newcomer<'_>, wire: &Arc<Wire>) -> Result<LinkId, JoinError> {
    let way: Arc<dyn Link> = Arc::clone(wire) as _;
    net.fabric.join(net.now, newcomer, &way)
}

/// Joins another program to the network; returns its link and the packets that are sent over it.
fn join(net: &Net, program: u64, addresses: &[[u8; 16]]) -> (LinkId, Arc<Wire>) {
    let wire = Arc::default();
    let link = try_join(net, &newcomer(net, program, addresses), &wire);
    (link.unwrap(), wire)
}

/// Joins two programs with one device each.
fn join_each_other(nets: &mut [Net; 2]) -> [(LinkId, Arc<Wire>); 2] {
    let addresses = [1, 0].map(|other: usize| [nets[other].address(PortId(0))]);
    let newcomers = [0, 1].map(|index: usize| newcomer(&nets[index], 1 - index as u64, &addresses[index]));
    [0, 1].map(|index: usize| {
        let newcomer = Newcomer { offered: newcomers[1 - index].session.number, ..newcomers[index] };
        let wire = Arc::default();
        let link = try_join(&nets[index], &newcomer, &wire);
        (link.unwrap(), wire)
    })
}

/// Two programs with a device, a queue pair and a region each.
struct Programs {
    nets: [Net; 2],
    qps: [Qp; 2],
    regions: [Region; 2],
    links: [(LinkId, Arc<Wire>); 2],
}

impl Programs {
    fn new(qp_type: QpType, settings: &Settings, pages: u64) -> Self {
        let mut nets = [1, 2].map(|program| Net::of_program(&[Profile::Efa3], settings.clone(), program, program));
        let addresses = [0, 1].map(|index: usize| nets[index].address(PortId(0)));
        let mut qps = [0, 1].map(|index: usize| nets[index].qp(0, qp_type));
        for index in 0..2 {
            qps[index].ah = nets[index].handle_of(&qps[index], addresses[1 - index]);
        }
        let regions = [0, 1].map(|at: usize| nets[at].region(&qps[at], pages, 77));
        let links = join_each_other(&mut nets);
        Self { nets, qps, regions, links }
    }

    /// Returns programs with SRD queue pairs, and a region of a page of each.
    fn srd(settings: &Settings) -> Self {
        Self::new(QpType::Srd, settings, 1)
    }

    /// Returns work requests of one program: a message, a write, and a read.
    fn sends(&self, from: usize, length: u32) -> [Send; 3] {
        let (peer, own, theirs) = (&self.qps[1 - from], &self.regions[from], &self.regions[1 - from]);
        let message = Send::message(peer, own, length);
        let write = Send::write(peer, own, theirs, length);
        [message, write, Send::read(peer, own, theirs, length)]
    }

    /// Posts a receive work request of the second program.
    fn ready(&mut self, length: u16) {
        let place = (self.regions[1].iova, length, self.regions[1].lkey);
        self.receive(1, &[place]);
    }

    /// Posts a work request of the first program; returns its status.
    fn outcome(&mut self, send: &Send) -> CompStatus {
        self.post(0, send);
        status(&self.wait(0))
    }

    /// Runs one program; returns the packets that it sends.
    fn sent(&mut self, index: usize) -> Vec<Frame> {
        self.nets[index].run();
        self.links[index].1.take()
    }

    /// Passes a packet of the other program to a program.
    fn accept(&self, index: usize, frame: Frame) {
        let net = &self.nets[index];
        net.fabric.accept(net.now, self.links[index].0, frame, 1000);
    }

    /// As [`Self::accept`], for a packet as JSON.
    fn accept_json(&self, index: usize, frame: Value) {
        self.accept(index, serde_json::from_value(frame).unwrap());
    }

    /// Passes packets that one program sends to the other one.
    fn pass(&self, from: usize, frames: Vec<Frame>) {
        for frame in frames {
            self.accept(1 - from, frame);
        }
    }

    /// Runs one program, and passes the packets that it sends to the other one.
    fn carry(&mut self, from: usize) {
        let frames = self.sent(from);
        self.pass(from, frames);
    }

    /// Loses the link of one program.
    fn leave(&self, index: usize) {
        let net = &self.nets[index];
        net.fabric.leave(net.now, self.links[index].0);
    }

    /// Runs both programs and carries their packets, until there are no more.
    fn run(&mut self) {
        loop {
            for net in &mut self.nets {
                net.run_for(Duration::from_micros(100));
            }
            let frames = [0, 1].map(|index: usize| self.links[index].1.take());
            if frames.iter().all(Vec::is_empty) {
                return;
            }
            (0..).zip(frames).for_each(|(from, frames)| self.pass(from, frames));
        }
    }

    /// Loses the links, and joins the programs again after `meanwhile`.
    fn reconnect(&mut self, meanwhile: impl FnOnce(&mut [Net; 2])) {
        [0, 1].map(|index| self.leave(index));
        meanwhile(&mut self.nets);
        self.links = join_each_other(&mut self.nets);
    }
}

impl Pair for Programs {
    fn end(&self, at: usize) -> (&Qp, &Region) {
        (&self.qps[at], &self.regions[at])
    }

    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.nets[at].fill(&self.regions[at], 0, bytes);
    }

    fn content(&mut self, at: usize, offset: u64, length: usize) -> Vec<u8> {
        self.nets[at].content(&self.regions[at], offset, length)
    }

    fn post(&mut self, at: usize, send: &Send) -> u16 {
        self.nets[at].post(&mut self.qps[at], send)
    }

    fn receive(&mut self, at: usize, buffers: &[(u64, u16, u32)]) -> u16 {
        self.nets[at].receive(&mut self.qps[at], buffers)
    }

    fn poll(&mut self, at: usize) -> Option<Cdesc> {
        self.nets[at].run();
        self.nets[at].poll(&mut self.qps[at])
    }

    fn wait(&mut self, at: usize) -> Cdesc {
        for _ in 0..100_000 {
            self.run();
            if let Some(completion) = self.poll(at) {
                return completion;
            }
        }
        panic!("no completion arrives");
    }
}
