// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Complete devices, each with a driver, on the emulator's network. So the experiments measure the code that guests use.

use std::{collections::HashMap, time::Duration};

use efa_fabric::{PortId, Settings};
use efa_hw::{
    admin::qp::QpType,
    io::{CompStatus, OpType},
};
use efa_model::Profile;
use efa_testing::{
    net::Net,
    qp::{self, DEPTH, Qp, Send, Shape},
    region::{ALL_PERMISSIONS, Region},
};
use serde::Deserialize;

/// Address and maximum length of the payload, which has no contents.
const BUFFER: u64 = 1 << 40;
const LENGTH: u64 = 1 << 30;

/// Interval at which programs poll for completions.
const POLL: Duration = Duration::from_micros(1);

/// A program: a device's port, and the program's number there. It has a queue pair.
type Program = (usize, usize);

/// Messages from one program to another, in sequence.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Flow {
    from: Program,
    to: Program,
    /// Bytes of each message.
    length: u32,
    /// Number of messages.
    messages: u32,
}

impl Flow {
    /// Returns a flow of one message between the first programs of two devices.
    pub(crate) fn new(from: usize, to: usize, length: u32) -> Self {
        Self { from: (from, 0), to: (to, 0), length, messages: 1 }
    }
}

/// Devices with programs that send flows.
pub(crate) struct Cluster {
    pub(crate) net: Net,
    senders: Vec<Sender>,
    flows: Vec<Flow>,
}

/// A queue pair, and its flows.
struct Sender {
    qp: Qp,
    region: Region,
    /// Flows that are still to be posted, in reverse order.
    work: Vec<Work>,
    /// Number of messages of the last entry of `work` that were posted.
    posted: u32,
    /// The flow of each work request.
    sent: [u32; DEPTH as usize],
    outstanding: u16,
}

/// A flow of a queue pair.
struct Work {
    flow: u32,
    ah: u16,
    peer_qp: u16,
    rkey: u32,
}

impl Cluster {
    /// Creates `ports` devices, with the queue pairs and address handles for the flows.
    pub(crate) fn new(settings: &Settings, seed: u64, ports: usize, flows: Vec<Flow>) -> Self {
        let mut net = Net::of_program(&vec![Profile::Efa3; ports], settings.clone(), seed, 0);
        for port in 0..ports {
            net.world(PortId(port), |world| world.is_blank = true);
        }
        let addresses: Vec<_> = (0..ports).map(|port| net.address(PortId(port))).collect();
        let mut programs = HashMap::new();
        let mut senders: Vec<Sender> = Vec::new();
        for (flow, Flow { from, to, .. }) in flows.iter().enumerate() {
            let [from, to] = [*from, *to].map(|program| {
                *programs.entry(program).or_insert_with(|| {
                    senders.push(Sender::new(&mut net, program.0));
                    senders.len() - 1
                })
            });
            let ah = net.handle_of(&senders[from].qp, addresses[senders[to].qp.port.0]);
            let (peer_qp, rkey) = (senders[to].qp.number, senders[to].region.rkey);
            // CAST: far fewer.
            let flow = flow as u32;
            senders[from].work.push(Work { flow, ah, peer_qp, rkey });
        }
        for Flow { from, to, .. } in &flows {
            // A receiver has to know its sender's device.
            let receiver = &senders[programs[to]];
            if receiver.work.is_empty() {
                net.handle_of(&receiver.qp, addresses[from.0]);
            }
        }
        senders.iter_mut().for_each(|sender| sender.work.reverse());
        Self { net, senders, flows }
    }

    /// Lets all flows send until all messages have arrived, or `time` has passed. Reports each with its time and its flow.
    pub(crate) fn run(&mut self, time: Duration, mut arrived: impl FnMut(Duration, usize)) {
        let start = self.net.now;
        let messages = self.flows.iter().map(|flow| u64::from(flow.messages));
        let mut left: u64 = messages.sum();
        loop {
            let passed = self.net.now - start;
            for sender in &mut self.senders {
                while let Some(completion) = self.net.poll(&mut sender.qp) {
                    assert_eq!(qp::status(&completion), CompStatus::Ok);
                    sender.outstanding -= 1;
                    left -= 1;
                    arrived(passed, sender.sent[usize::from(completion.req_id % DEPTH)] as usize);
                }
                sender.post(&mut self.net, &self.flows);
            }
            if left == 0 || passed >= time {
                break;
            }
            self.net.run_for(POLL);
        }
    }
}

impl Sender {
    /// Creates a queue pair that can send and receive.
    fn new(net: &mut Net, port: usize) -> Self {
        let qp = net.qp_of(port, Shape::new(QpType::Srd, 64));
        let region = net.physical_region(&qp, BUFFER, LENGTH, ALL_PERMISSIONS);
        Self { qp, region, work: Vec::new(), posted: 0, sent: [0; DEPTH as usize], outstanding: 0 }
    }

    /// Posts as many work requests as may be outstanding.
    fn post(&mut self, net: &mut Net, flows: &[Flow]) {
        let before = self.outstanding;
        while self.outstanding < DEPTH {
            let Some(work) = self.work.last() else {
                break;
            };
            let Flow { length, messages, .. } = flows[work.flow as usize];
            let send = Send {
                operation: OpType::RdmaWrite.into(),
                buffers: vec![(BUFFER, length, self.region.lkey)],
                remote: Some((BUFFER, length, work.rkey)),
                ah: Some(work.ah),
                peer_qp: work.peer_qp,
                ..Send::default()
            };
            let req_id = net.put(&mut self.qp, &send);
            self.sent[usize::from(req_id % DEPTH)] = work.flow;
            self.outstanding += 1;
            self.posted += 1;
            if self.posted == messages {
                self.posted = 0;
                self.work.pop();
            }
        }
        if self.outstanding > before {
            net.ring_send(&self.qp);
        }
    }
}
