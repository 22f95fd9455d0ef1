// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices of two programs on one network.

mod hostile;
mod transfers;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use efa_fabric::{Frame, JoinError, Link, LinkId, Newcomer, PortId, Settings};
use efa_hw::{
    admin::qp::QpType,
    io::{Cdesc, CompStatus},
};
use efa_model::Profile;
use efa_testing::{
    net::{Net, Qp, Region, Send},
    qp::status,
};

/// Packets in flight to another program.
#[derive(Default)]
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
    Newcomer {
        program,
        host: None,
        addresses,
        session: net.fabric.session(program, addresses),
        offered: 0,
    }
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
    let newcomers =
        [0, 1].map(|index: usize| newcomer(&nets[index], 1 - index as u64, &addresses[index]));
    [0, 1].map(|index: usize| {
        let newcomer = Newcomer {
            offered: newcomers[1 - index].session.number,
            ..newcomers[index]
        };
        let wire = Arc::default();
        let link = try_join(&nets[index], &newcomer, &wire);
        (link.unwrap(), wire)
    })
}

/// Two programs with a device and a queue pair each.
struct Programs {
    nets: [Net; 2],
    qps: [Qp; 2],
    links: [(LinkId, Arc<Wire>); 2],
}

impl Programs {
    fn new(qp_type: QpType, settings: &Settings) -> Self {
        let mut nets = [1, 2]
            .map(|program| Net::of_program(&[Profile::Efa3], settings.clone(), program, program));
        let addresses = [0, 1].map(|index: usize| nets[index].address(PortId(0)));
        let mut qps = [0, 1].map(|index: usize| nets[index].qp(0, qp_type));
        for index in 0..2 {
            qps[index].ah = nets[index].handle_of(&qps[index], addresses[1 - index]);
        }
        let links = join_each_other(&mut nets);
        Self { nets, qps, links }
    }

    /// Returns programs with SRD queue pairs, and a region of each.
    fn srd(settings: &Settings) -> (Self, [Region; 2]) {
        let mut programs = Self::new(QpType::Srd, settings);
        let regions = programs.regions(1, 0);
        (programs, regions)
    }

    /// Registers a region of each program.
    fn regions(&mut self, pages: u64, offset: u64) -> [Region; 2] {
        [0, 1].map(|index: usize| self.nets[index].region(&self.qps[index], pages, offset))
    }

    /// Posts a receive work request of the second program.
    fn receive(&mut self, region: &Region, length: u16) {
        self.nets[1].receive(&mut self.qps[1], &[(region.iova, length, region.lkey)]);
    }

    fn post(&mut self, index: usize, send: &Send) {
        self.nets[index].post(&mut self.qps[index], send);
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

    /// Runs one program, and passes the packets that it sends to the other one.
    fn carry(&mut self, from: usize) {
        for frame in self.sent(from) {
            self.accept(1 - from, frame);
        }
    }

    /// Runs one program; returns its next completion, if there is one.
    fn poll(&mut self, index: usize) -> Option<Cdesc> {
        self.nets[index].run();
        self.nets[index].poll(&mut self.qps[index])
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
            let mut any = false;
            for index in 0..2 {
                for frame in self.links[index].1.take() {
                    self.accept(1 - index, frame);
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    /// Loses the links, and joins the programs again after `meanwhile`.
    fn reconnect(&mut self, meanwhile: impl FnOnce(&mut [Net; 2])) {
        for index in 0..2 {
            self.leave(index);
        }
        meanwhile(&mut self.nets);
        self.links = join_each_other(&mut self.nets);
    }

    fn wait(&mut self, index: usize) -> Cdesc {
        for _ in 0..100_000 {
            self.run();
            if let Some(completion) = self.poll(index) {
                return completion;
            }
        }
        panic!("no completion arrives");
    }
}
