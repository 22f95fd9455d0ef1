// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Complete devices, each with a driver, on the emulator's network. So the experiments measure the code that guests use.
//!
//! Payload has no contents. No result depends on them, and copies would take most of the time and memory of a large experiment.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use efa_fabric::{Access, CopyError, Fabric, Guest, Memory, Pins, PortId, Settings};
use efa_hw::{
    admin::{mr::RegMr, pd::AllocPd, qp::QpType},
    io::{CompStatus, OpType},
};
use efa_model::{Config, DmaError, Host, Profile, Segment, TraceEvent};
use efa_testing::{
    commands::reg_mr,
    mock::{Driver, World},
    qp::{self, DEPTH, Qp, Send, Shape},
    region::{ALL_PERMISSIONS, Region},
};
use parking_lot::Mutex;

use crate::traffic::{Arrived, Flow};

/// Number of uncompleted work requests of a queue pair: so many that there is always another one to send.
const OUTSTANDING: u64 = 32;

/// Address and maximum length of the payload, which has no contents.
const BUFFER: u64 = 1 << 40;
const LENGTH: u64 = 1 << 30;

/// Budget that exceeds the packets that are moved at one time.
const UNLIMITED_BUDGET: u32 = 1 << 20;

/// A device's host.
struct Machine {
    world: World,
    pins: Arc<Pins>,
    /// Its queue pairs, by start address of the completion queue. The value is the queue's end and the queue pair's number.
    queues: BTreeMap<u64, (u64, usize)>,
    /// Queue pairs of all machines with completions to poll.
    completed: Arc<Mutex<Vec<usize>>>,
}

/// Memory of a length, without contents.
#[derive(Debug)]
struct Nothing(usize);

/// A queue pair with address handles of others, and its flows.
struct Sender {
    port: usize,
    qp: Qp,
    region: Region,
    /// Flows that are still to be posted, in reverse order.
    work: Vec<Work>,
    /// Number of messages of the last entry of `work` that were posted.
    posted: u64,
    /// The flow of each work request.
    flows: [usize; DEPTH as usize],
    outstanding: u64,
}

/// A flow of a queue pair.
struct Work {
    flow: usize,
    /// The destination queue pair.
    to: usize,
    ah: u16,
}

/// Assignment of flows to queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Each flow has a queue pair of its own at both ends.
    Flow,
    /// All flows of a device share one.
    Device,
}

impl Host for Machine {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.world.dma_read(address, buffer)
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        if let Some((_, (end, sender))) = self.queues.range(..=address).next_back() {
            if address < *end {
                self.completed.lock().push(*sender);
            }
        }
        self.world.dma_write(address, data)
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        self.world.read_device_memory(offset, buffer);
    }

    fn interrupt(&mut self, _: u16) {}

    fn trace(&mut self, _: &TraceEvent) {}

    fn quiesce(&mut self) {
        self.pins.quiesce();
    }
}

impl Guest for Machine {
    type Memory = Nothing;

    fn memory(&self, segments: &[Segment], _: Access) -> Result<Nothing, DmaError> {
        let lengths = segments.iter().map(|segment| segment.length as usize);
        Ok(Nothing(lengths.sum()))
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}

impl Memory for Nothing {
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError> {
        assert_eq!(buffer.len(), self.0);
        Ok(())
    }

    fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        assert_eq!(data.len(), self.0);
        Ok(())
    }

    fn copy_to(&self, target: &Self) -> Result<(), CopyError> {
        assert_eq!(target.0, self.0);
        Ok(())
    }
}

/// Devices with queue pairs for some flows.
pub(crate) struct Cluster {
    fabric: Fabric<Machine>,
    senders: Vec<Sender>,
    lengths: Vec<(u32, u64)>,
    completed: Arc<Mutex<Vec<usize>>>,
    now: Duration,
}

impl Cluster {
    /// Creates `ports` devices, with the queue pairs and address handles for the flows.
    pub(crate) fn new(
        settings: &Settings,
        seed: u64,
        ports: usize,
        flows: &[Flow],
        share: Share,
    ) -> Self {
        let mut drivers: Vec<_> = (0..ports).map(Machine::drive).collect();
        let domains: Vec<_> = drivers.iter_mut().map(domain).collect();
        let mut senders = Vec::new();
        match share {
            Share::Flow => {
                for (flow, Flow { from, to, .. }) in flows.iter().enumerate() {
                    let (sender, receiver) = (senders.len(), senders.len() + 1);
                    for port in [*from, *to] {
                        senders.push(Sender::new(&mut drivers[port], port, &domains[port]));
                    }
                    let ah = handle(&mut drivers, &senders[sender], *to);
                    handle(&mut drivers, &senders[receiver], *from);
                    let to = receiver;
                    senders[sender].work.push(Work { flow, to, ah });
                }
            }
            Share::Device => {
                for (port, driver) in drivers.iter_mut().enumerate() {
                    senders.push(Sender::new(driver, port, &domains[port]));
                }
                for (flow, Flow { from, to, .. }) in flows.iter().enumerate() {
                    let ah = handle(&mut drivers, &senders[*from], *to);
                    senders[*from].work.push(Work { flow, to: *to, ah });
                }
            }
        }
        for sender in &mut senders {
            // The next flow to post is the last entry.
            sender.work.reverse();
        }
        let fabric = Fabric::new(settings.clone(), seed);
        let completed = Arc::new(Mutex::new(Vec::new()));
        for (port, driver) in drivers.into_iter().enumerate() {
            let own = senders.iter().enumerate();
            let own = own.filter(|(_, sender)| sender.port == port);
            let queue = |(number, sender): (usize, &Sender)| {
                let queue = sender.qp.completion_queue();
                (queue.start, (queue.end, number))
            };
            let machine = Machine {
                world: driver.world,
                pins: Arc::default(),
                queues: own.map(queue).collect(),
                completed: Arc::clone(&completed),
            };
            fabric.attach(driver.device, machine);
        }
        Self {
            fabric,
            senders,
            lengths: flows
                .iter()
                .map(|flow| (flow.length, flow.messages))
                .collect(),
            completed,
            now: Duration::from_secs(1),
        }
    }

    /// Lets all flows send until all messages have arrived, or `time` has passed. Returns the arrivals.
    pub(crate) fn run(&mut self, time: Duration) -> Vec<Arrived> {
        let start = self.now;
        let mut arrived = Vec::new();
        let mut left: u64 = self.lengths.iter().map(|(_, messages)| messages).sum();
        for sender in 0..self.senders.len() {
            self.post(sender);
        }
        while left > 0 {
            let due = self
                .fabric
                .run(self.now, UNLIMITED_BUDGET)
                .expect("an event is pending");
            let mut completed = std::mem::take(&mut *self.completed.lock());
            completed.dedup();
            for sender in completed {
                while let Some(flow) = self.poll(sender) {
                    left -= 1;
                    arrived.push(Arrived {
                        at: self.now - start,
                        flow,
                        bytes: self.lengths[flow].0.into(),
                    });
                }
                self.post(sender);
            }
            self.now = self.now.max(due);
            if self.now - start > time {
                break;
            }
        }
        arrived
    }

    /// Posts as many work requests as may be outstanding.
    fn post(&mut self, number: usize) {
        let mut sends = Vec::new();
        let sender = &self.senders[number];
        let (mut posted, mut index) = (sender.posted, sender.work.len());
        while sender.outstanding + (sends.len() as u64) < OUTSTANDING && index > 0 {
            let work = &sender.work[index - 1];
            let (length, messages) = self.lengths[work.flow];
            let to = &self.senders[work.to];
            let send = Send {
                operation: OpType::RdmaWrite.into(),
                buffers: vec![(BUFFER, length, sender.region.lkey)],
                remote: Some((BUFFER, length, to.region.rkey)),
                ah: Some(work.ah),
                peer_qp: to.qp.number,
                ..Send::default()
            };
            sends.push((work.flow, send));
            posted += 1;
            if posted == messages {
                (posted, index) = (0, index - 1);
            }
        }
        if sends.is_empty() {
            return;
        }
        let sender = &mut self.senders[number];
        sender.work.truncate(index);
        sender.posted = posted;
        sender.outstanding += sends.len() as u64;
        let port = PortId(sender.port);
        self.fabric.with(port, self.now, 0, |device, machine| {
            for (flow, send) in sends {
                let req_id = sender.qp.put(&mut machine.world, &send);
                sender.flows[usize::from(req_id % DEPTH)] = flow;
            }
            device.write_doorbell(machine, sender.qp.doorbells[0], sender.qp.sent.into());
        });
    }

    /// Takes a completion of a queue pair; returns its flow.
    fn poll(&mut self, number: usize) -> Option<usize> {
        let sender = &mut self.senders[number];
        let cq = &mut sender.qp.cq;
        let port = PortId(sender.port);
        let completion = self
            .fabric
            .with_guest(port, |machine| cq.poll(&machine.world))?;
        assert_eq!(qp::status(&completion), CompStatus::Ok);
        sender.outstanding -= 1;
        Some(sender.flows[usize::from(completion.req_id % DEPTH)])
    }

    /// Returns the number of packets lost on paths.
    pub(crate) fn lost(&self) -> u64 {
        self.fabric.paths().iter().map(|path| path.lost).sum()
    }
}

impl Machine {
    /// Returns a device with a minimal driver.
    fn drive(number: usize) -> Driver {
        Driver::with(Config::new(Profile::Efa3, number as u32))
    }
}

/// Creates the protection domain and the region that all queue pairs of a device share.
fn domain(driver: &mut Driver) -> (u16, Region) {
    let pd = driver.execute(&AllocPd {}).unwrap().pd;
    let command = RegMr {
        permissions: ALL_PERMISSIONS,
        ..reg_mr(pd, BUFFER, LENGTH)
    };
    (pd, Region::physical(driver, command))
}

/// Creates a queue pair's address handle for another device.
fn handle(drivers: &mut [Driver], sender: &Sender, to: usize) -> u16 {
    let address = drivers[to].device.address();
    sender.qp.handle_of(&mut drivers[sender.port], address)
}

impl Sender {
    /// Creates a queue pair that can send and receive.
    fn new(driver: &mut Driver, port: usize, (pd, region): &(u16, Region)) -> Self {
        Self {
            port,
            qp: Qp::in_domain(driver, *pd, Shape::new(QpType::Srd, 64)),
            region: region.clone(),
            work: Vec::new(),
            posted: 0,
            flows: [0; DEPTH as usize],
            outstanding: 0,
        }
    }
}
