// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices with the network between them.

mod datagrams;
mod payload;
mod programs;
mod reads;
mod receiving;
mod sending;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    time::Duration,
};

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::{Device, DmaError, Host, QpId, Request, Segment};

use self::{programs::Remote, reads::Read};
use crate::{
    Frame, Network, PathCounters, Settings,
    packet::{Address, Body, ConnectionId, Packet, Reader},
    receiver::Receiver,
    sender::Sender,
};

/// How often connections are looked at that may not be needed any more.
const SWEEP: Duration = Duration::from_secs(1);

/// How long a connection is kept that nothing was sent over.
const SENDER_IDLE: Duration = Duration::from_secs(5);

/// How long it is remembered what has arrived over a connection; much longer than anything is sent again.
const RECEIVER_IDLE: Duration = Duration::from_secs(60);

/// How long a read waits for the next part of what it reads.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A port of the network, to which a device is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub usize);

/// The host of a device, in whose memory payload is.
pub trait Guest: Host {
    /// Copies `length` bytes at `from` to another guest's memory at `at`.
    ///
    /// # Errors
    ///
    /// Not all of it is mapped for the devices.
    fn copy(&self, from: u64, to: &Self, at: u64, length: usize) -> Result<(), CopyError>;
}

/// Memory is not mapped for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// That of the sender.
    Source(DmaError),
    /// That of the receiver.
    Target(DmaError),
}

/// Another program with devices of the same network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(pub usize);

/// Devices, their hosts and the network between them.
pub struct Cluster<G> {
    ports: Vec<Port<G>>,
    /// Devices of other programs. Their ports come after those of all devices of this one.
    remotes: Vec<Remote>,
    /// Packets for other programs.
    frames: Vec<(LinkId, Frame)>,
    links: usize,
    network: Network<Packet>,
    senders: HashMap<u64, Sender>,
    /// Connections by queue pair and the address of the peer.
    by_flow: HashMap<(PortId, QpId, Address), u64>,
    /// What has arrived, by connection.
    receivers: HashMap<ConnectionId, Receiver>,
    /// Reads that wait for what they read.
    reads: HashMap<(PortId, Reader), Read>,
    /// Connections that may send, in the order of their turns.
    active: VecDeque<u64>,
    /// Distinguishes this program's connections from those of others.
    program: u64,
    next_connection: u64,
    /// When a connection has to send something again.
    timer: Option<Duration>,
    /// When to look for connections that are not needed.
    sweep: Option<Duration>,
    /// Where the payload of the packet at hand comes from and goes to; kept for their memory.
    source: Vec<Segment>,
    target: Vec<Segment>,
}

/// A device and its host.
struct Port<G> {
    device: Device,
    guest: G,
    /// When the device wants to run.
    due: Option<Duration>,
}

impl<G: Guest> Cluster<G> {
    /// A network without devices. The same seed gives the same losses and delays. `program` distinguishes this program
    /// from others with devices of the same network.
    pub fn new(settings: Settings, seed: u64, program: u64) -> Self {
        Self {
            ports: Vec::new(),
            remotes: Vec::new(),
            frames: Vec::new(),
            links: 0,
            program,
            network: Network::new(settings, seed),
            senders: HashMap::new(),
            by_flow: HashMap::new(),
            receivers: HashMap::new(),
            reads: HashMap::new(),
            active: VecDeque::new(),
            next_connection: 0,
            timer: None,
            sweep: None,
            source: Vec::new(),
            target: Vec::new(),
        }
    }

    /// Attaches a device. All are to be attached before another program joins.
    ///
    /// # Panics
    ///
    /// Another program has joined.
    pub fn attach(&mut self, device: Device, guest: G) -> PortId {
        assert_eq!(self.links, 0, "devices come before other programs");
        self.ports.push(Port {
            device,
            guest,
            due: None,
        });
        PortId(self.network.add_port())
    }

    /// The addresses of all devices of this program.
    pub fn addresses(&self) -> Vec<Address> {
        let addresses = self.ports.iter().map(|port| port.device.address());
        addresses.collect()
    }

    fn address(&self, port: PortId) -> Address {
        match self.remote(port) {
            Some(remote) => remote.address,
            None => self.ports[port.0].device.address(),
        }
    }

    /// What the network is like.
    pub fn settings(&self) -> &Settings {
        self.network.settings()
    }

    /// Changes what the network is like, for packets to come.
    pub fn set(&mut self, settings: Settings) {
        self.network.set(settings);
    }

    /// What each path did.
    pub fn paths(&self) -> &[PathCounters] {
        self.network.counters()
    }

    /// Works on a device, then lets it do what is due. What it wants to send is sent by [`run`](Self::run).
    pub fn with<R>(
        &mut self,
        port: PortId,
        now: Duration,
        work: impl FnOnce(&mut Device, &mut G) -> R,
    ) -> R {
        let Port { device, guest, due } = &mut self.ports[port.0];
        let result = work(device, guest);
        *due = device.run(guest, now);
        self.take_requests(port, now);
        result
    }

    /// Works on the host of a device.
    pub fn with_guest<R>(&mut self, port: PortId, work: impl FnOnce(&mut G) -> R) -> R {
        work(&mut self.ports[port.0].guest)
    }

    /// Does what is due, about as much as it takes to move `budget` packets, and returns when there will be something to do
    /// next, which may be now.
    pub fn run(&mut self, now: Duration, budget: u32) -> Option<Duration> {
        for index in 0..self.ports.len() {
            if self.ports[index].due.is_some_and(|due| due <= now) {
                self.with(PortId(index), now, |_, _| ());
            }
        }
        if self.timer.is_some_and(|timer| timer <= now) {
            self.expire(now);
        }
        if self.sweep.is_some_and(|sweep| sweep <= now) {
            self.sweep(now);
        }
        let mut left = budget;
        while left > 0 {
            if let Some(packet) = self.network.receive(now) {
                left = left.saturating_sub(self.packets(&packet));
                self.deliver(now, packet);
            } else if let Some(connection) = self.active.pop_front() {
                left -= 1;
                self.transmit(now, connection);
            } else {
                let devices = self.ports.iter().filter_map(|port| port.due);
                let own = [self.timer, self.sweep, self.network.next_due()];
                return devices.chain(own.into_iter().flatten()).min();
            }
        }
        Some(now)
    }

    /// How many packets there are in what is moved as one.
    fn packets(&self, packet: &Packet) -> u32 {
        match (&packet.body, self.ports.get(packet.from.0)) {
            (Body::Data(data), Some(port)) => port.device.packets(data.length),
            _ => 1,
        }
    }

    /// Takes the work requests that a device has fetched.
    fn take_requests(&mut self, port: PortId, now: Duration) {
        while let Some(request) = self.ports[port.0].device.next_request() {
            match request.transport {
                QpType::Ud => self.send_datagram(now, port, &request),
                QpType::Srd => self.start(now, port, request),
            }
        }
    }

    fn finish(&mut self, port: PortId, request: &Request, status: CompStatus) {
        let Port { device, guest, .. } = &mut self.ports[port.0];
        device.finish(guest, request, status);
    }

    fn find(&self, address: Address) -> Option<PortId> {
        let own = self.ports.iter().map(|port| port.device.address());
        let others = self.remotes.iter().map(|remote| remote.address);
        own.chain(others)
            .position(|other| other == address)
            .map(PortId)
    }

    /// Forgets what is not needed any more.
    fn sweep(&mut self, now: Duration) {
        let ports = &self.ports;
        let idle = |sender: &Sender| {
            !ports[sender.from.0].device.is_current(sender.qp)
                || sender.is_idle() && now.saturating_sub(sender.last_used) > SENDER_IDLE
        };
        let closed: Vec<_> = self
            .senders
            .iter()
            .filter(|(_, sender)| idle(sender))
            .map(|(connection, _)| *connection)
            .collect();
        for connection in closed {
            self.close(connection);
        }
        self.receivers
            .retain(|_, receiver| now.saturating_sub(receiver.last_used) <= RECEIVER_IDLE);
        let late: Vec<_> = self
            .reads
            .iter()
            .filter(|(_, read)| now.saturating_sub(read.progress) > READ_TIMEOUT)
            .map(|(key, _)| *key)
            .collect();
        for (port, reader) in late {
            self.end_read(port, reader, CompStatus::LocalUnrespRemote);
        }
        let any = !self.senders.is_empty() || !self.receivers.is_empty() || !self.reads.is_empty();
        self.sweep = any.then_some(now + SWEEP);
    }
}

impl<G> fmt::Debug for Cluster<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("ports", &self.ports.len())
            .field("senders", &self.senders)
            .field("receivers", &self.receivers.len())
            .field("reads", &self.reads.len())
            .finish_non_exhaustive()
    }
}
