// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices with the network between them.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    time::Duration,
};

use efa_hw::{
    admin::qp::QpType,
    io::{CompStatus, OpType},
};
use efa_model::{
    Arrival, Content as ArrivalContent, Device, DmaError, Host, Payload, QpId, Refusal, Request,
    Segment, TransportEvent,
};

use crate::{
    Frame, Network, PathCounters, Settings,
    network::Load,
    packet::{
        Ack, Address, Body, ConnectionId, Data, Datagram, FrameBody, Header, Packet, Reader,
        Subject, Verdict,
    },
    receiver::Receiver,
    sender::{Content, Limits, Message, Progress, Sender},
};

/// Packets that a connection sends before others have their turn.
const TURN: usize = 4;

/// Packets of a message that are moved as one where each would arrive at once and as it was sent.
const TOGETHER: u32 = 128;

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

/// A device of another program.
struct Remote {
    address: Address,
    link: LinkId,
}

/// Where the payload of a packet is.
enum Source<'a> {
    /// Where the sender's program has it.
    Sender(PortId),
    /// In the packet.
    Packet(&'a [u8]),
}

/// What becomes of a part of a message.
enum Outcome {
    /// The sender is told this.
    Tell(Verdict),
    /// Nobody is told.
    Silence,
    /// The sender finds that its message ends like this.
    Sender(CompStatus),
}

/// A read that waits.
struct Read {
    request: Request,
    received: u32,
    progress: Duration,
}

/// What became of a payload.
enum Moved {
    Done,
    /// The receiver's memory is not mapped.
    Lost(DmaError),
    /// The sender has no such data.
    Missing(CompStatus),
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

    /// Takes note of another program with these devices.
    pub fn join(&mut self, addresses: Vec<Address>) -> LinkId {
        let link = LinkId(self.links);
        self.links += 1;
        for address in addresses {
            self.remotes.push(Remote { address, link });
            self.network.add_port();
        }
        link
    }

    /// Takes note that another program is gone. What is sent to its devices is lost.
    pub fn leave(&mut self, link: LinkId) {
        for remote in &mut self.remotes {
            if remote.link == link {
                // No device has this address.
                remote.address = [0; 16];
            }
        }
    }

    /// How many devices of other programs there are.
    pub fn remote_devices(&self) -> usize {
        let known = |remote: &&Remote| remote.address != [0; 16];
        self.remotes.iter().filter(known).count()
    }

    /// Takes the packets for other programs.
    pub fn take_frames(&mut self) -> Vec<(LinkId, Frame)> {
        std::mem::take(&mut self.frames)
    }

    /// Takes a packet from another program.
    pub fn accept(&mut self, now: Duration, link: LinkId, frame: Frame) {
        let from = self.find(frame.from);
        let ours = self.find(frame.to).filter(|to| to.0 < self.ports.len());
        let (Some(from), Some(to)) = (from, ours) else {
            return;
        };
        // Nobody speaks for the devices of others.
        if self.remote(from).is_none_or(|remote| remote.link != link) {
            return;
        }
        match frame.body {
            FrameBody::Data {
                data,
                header,
                payload,
            } => {
                let genuine = header.peer == frame.from && payload.len() == data.length as usize;
                if genuine {
                    let source = Source::Packet(&payload);
                    let outcome = self.take(now, to, &data, &header, source);
                    self.answer(now, from, to, frame.path, &data, outcome);
                }
            }
            FrameBody::Ack(ack) => self.acknowledge(now, to, ack),
            FrameBody::Datagram(datagram) => {
                if datagram.peer == frame.from {
                    self.take_datagram(to, &datagram);
                }
            }
        }
    }

    fn remote(&self, port: PortId) -> Option<&Remote> {
        self.remotes.get(port.0.checked_sub(self.ports.len())?)
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

    /// Starts a work request of SRD.
    fn start(&mut self, now: Duration, from: PortId, request: Request) {
        let Some(connection) = self.connection(now, from, request.qp, request.peer) else {
            self.finish(from, &request, CompStatus::LocalUnreachRemote);
            return;
        };
        let mut length = request.length;
        if request.operation == OpType::RdmaRead {
            length = 0;
            let read = Read {
                request: request.clone(),
                received: 0,
                progress: now,
            };
            self.reads.insert((from, reader(&request)), read);
        }
        self.push(connection, Content::Request(request), length);
    }

    /// The connection of a queue pair to a peer.
    fn connection(&mut self, now: Duration, from: PortId, qp: QpId, peer: [u8; 16]) -> Option<u64> {
        let flow = (from, qp, peer);
        if let Some(connection) = self.by_flow.get(&flow) {
            return Some(*connection);
        }
        let to = self.find(peer)?;
        let connection = self.next_connection;
        self.next_connection += 1;
        // CAST: a number below that of the paths.
        let paths = u32::from(self.settings().paths);
        let first_path = self.network.below(paths) as u16;
        let id = ConnectionId {
            program: self.program,
            number: connection,
        };
        let own = (from, self.address(from));
        let mut sender = Sender::new(id, own, to, qp, first_path);
        sender.last_used = now;
        self.senders.insert(connection, sender);
        self.by_flow.insert(flow, connection);
        self.sweep.get_or_insert(now + SWEEP);
        Some(connection)
    }

    fn push(&mut self, connection: u64, content: Content, length: u32) {
        if let Some(sender) = self.senders.get_mut(&connection) {
            sender.push(content, length);
            self.activate(connection);
        }
    }

    /// Gives a connection a turn to send, if it has something to send.
    fn activate(&mut self, connection: u64) {
        if let Some(sender) = self.senders.get_mut(&connection) {
            if !sender.active && sender.has_work() {
                sender.active = true;
                self.active.push_back(connection);
            }
        }
    }

    /// Lets a connection send for one turn.
    fn transmit(&mut self, now: Duration, connection: u64) {
        let settings = self.network.settings();
        let limits = Limits {
            paths: settings.paths,
            multipath: settings.multipath,
            has_rate: settings.has_rate(),
        };
        let ideal = settings.is_ideal();
        let Some(sender) = self.senders.get_mut(&connection) else {
            return;
        };
        sender.active = false;
        let (from, to, qp) = (sender.from, sender.to, sender.qp);
        if !self.ports[from.0].device.is_current(qp) {
            self.close(connection);
            return;
        }
        let mtu = self.ports[from.0].device.mtu();
        let together = if ideal && self.remote(to).is_none() {
            TOGETHER
        } else {
            1
        };
        for turn in 1..=TURN {
            let Some(sender) = self.senders.get_mut(&connection) else {
                return;
            };
            let Some(packet) = sender.next(now, mtu.saturating_mul(together), limits) else {
                break;
            };
            let due = sender.next_due_of(packet.data.psn);
            self.timer = [self.timer, due].into_iter().flatten().min();
            let bytes = packet.data.length;
            let device = &mut self.ports[from.0].device;
            let packets = device.packets(bytes);
            device.count(TransportEvent::Sent(bytes));
            if packet.again {
                device.count(TransportEvent::SentAgain(bytes));
            }
            let message = packet.data.message;
            let packet = Packet {
                from,
                to,
                path: packet.path,
                body: Body::Data(packet.data),
            };
            let sent = self.network.send(
                now,
                from.0,
                to.0,
                packet.path,
                Load { packets, bytes },
                packet,
            );
            if sent.is_err() {
                self.fail(now, connection, message, CompStatus::LocalUnreachRemote);
            }
            if turn == TURN {
                self.activate(connection);
            }
        }
    }

    /// Does what a packet that has arrived asks for.
    fn deliver(&mut self, now: Duration, packet: Packet) {
        let Packet {
            from,
            to,
            path,
            body,
        } = packet;
        if let Some(remote) = self.remote(to) {
            let (link, to) = (remote.link, remote.address);
            self.forward(now, link, from, to, path, body);
            return;
        }
        match body {
            Body::Data(data) => {
                // What its sender does not know any more is nothing.
                let Some(header) = self.header(&data) else {
                    return;
                };
                let outcome = self.take(now, to, &data, &header, Source::Sender(from));
                self.answer(now, from, to, path, &data, outcome);
            }
            Body::Ack(ack) => self.acknowledge(now, to, ack),
            Body::Datagram(datagram) => self.take_datagram(to, &datagram),
        }
    }

    /// Hands a packet to another program, with its payload.
    fn forward(
        &mut self,
        now: Duration,
        link: LinkId,
        from: PortId,
        to: Address,
        path: u16,
        body: Body,
    ) {
        let body = match body {
            Body::Data(data) => {
                let Some(header) = self.header(&data) else {
                    return;
                };
                match self.payload(from, &data) {
                    Ok(payload) => FrameBody::Data {
                        data,
                        header,
                        payload,
                    },
                    Err(status) => {
                        self.fail(now, data.connection.number, data.message, status);
                        return;
                    }
                }
            }
            Body::Ack(ack) => FrameBody::Ack(ack),
            Body::Datagram(datagram) => FrameBody::Datagram(datagram),
        };
        let from = self.address(from);
        let frame = Frame {
            from,
            to,
            path,
            body,
        };
        self.frames.push((link, frame));
    }

    /// What a part of a message says of it, if its sender still knows it.
    fn header(&self, data: &Data) -> Option<Header> {
        let sender = self.senders.get(&data.connection.number)?;
        let device = &self.ports[sender.from.0].device;
        let message = sender.message(data.message)?;
        device.is_current(sender.qp).then(|| sender.header(message))
    }

    /// Finds the payload of a part of a message in the memory of its sender, or in its request.
    fn locate(&mut self, from: PortId, data: &Data) -> Result<Payload<'_>, CompStatus> {
        self.source.clear();
        let sender = self.senders.get(&data.connection.number);
        let found = sender.and_then(|sender| Some((sender.qp, sender.message(data.message)?)));
        let (qp, message) = found.ok_or(CompStatus::Flushed)?;
        let device = &mut self.ports[from.0].device;
        match &message.content {
            Content::Request(request) if request.operation == OpType::RdmaRead => {
                Ok(Payload::Memory)
            }
            Content::Request(request) => {
                device.gather(request, data.offset, data.length, &mut self.source)
            }
            Content::Response { memory, .. } => {
                let (rkey, address) = *memory;
                let memory = (rkey, address.wrapping_add(data.offset.into()));
                device.gather_for_peer(qp, memory, data.length, &mut self.source)?;
                Ok(Payload::Memory)
            }
            Content::Failure { .. } => Ok(Payload::Memory),
        }
    }

    /// Reads the payload of a part of a message.
    fn payload(&mut self, from: PortId, data: &Data) -> Result<Vec<u8>, CompStatus> {
        if let Payload::Inline(bytes) = self.locate(from, data)? {
            return Ok(bytes.to_vec());
        }
        read(&mut self.ports[from.0].guest, &self.source)
    }

    /// Puts the payload of a part of a message where `self.target` says.
    fn place(&mut self, to: PortId, data: &Data, source: &Source<'_>) -> Moved {
        if data.length == 0 {
            return Moved::Done;
        }
        let moved = match source {
            Source::Packet(bytes) => scatter(&mut self.ports[to.0].guest, &self.target, bytes),
            Source::Sender(from) => match self.locate(*from, data) {
                Ok(Payload::Inline(bytes)) => {
                    let bytes = bytes.to_vec();
                    scatter(&mut self.ports[to.0].guest, &self.target, &bytes)
                }
                Ok(Payload::Memory) => transfer(
                    &self.ports[from.0].guest,
                    &self.source,
                    &self.ports[to.0].guest,
                    &self.target,
                ),
                Err(status) => Moved::Missing(status),
            },
        };
        if matches!(moved, Moved::Done) {
            let guest = &mut self.ports[to.0].guest;
            flip(&mut self.network, guest, &self.target);
        }
        moved
    }

    /// Tells the sender of a part of a message what became of it.
    fn answer(
        &mut self,
        now: Duration,
        from: PortId,
        to: PortId,
        path: u16,
        data: &Data,
        outcome: Outcome,
    ) {
        let verdict = match outcome {
            Outcome::Tell(verdict) => verdict,
            Outcome::Silence => return,
            Outcome::Sender(status) => {
                self.fail(now, data.connection.number, data.message, status);
                return;
            }
        };
        let ack = Ack {
            connection: data.connection,
            psn: data.psn,
            verdict,
        };
        let packet = Packet {
            from: to,
            to: from,
            path,
            body: Body::Ack(ack),
        };
        // One that can't be sent is one that is lost.
        let load = Load {
            packets: 1,
            bytes: 0,
        };
        let _ = self.network.send(now, to.0, from.0, path, load, packet);
    }

    /// Takes a part of a message.
    fn take(
        &mut self,
        now: Duration,
        to: PortId,
        data: &Data,
        header: &Header,
        source: Source<'_>,
    ) -> Outcome {
        self.sweep.get_or_insert(now + SWEEP);
        let receiver = self.receivers.entry(data.connection).or_default();
        receiver.last_used = now;
        if receiver.has(data.psn) {
            return Outcome::Tell(Verdict::Taken);
        }
        let complete = receiver.with(data.message, data.length);
        match header.subject {
            Subject::Send { qp, immediate } => {
                let content = ArrivalContent::Send {
                    length: data.length,
                    immediate,
                };
                let landed = self.land(to, data, header, qp, content, &source);
                self.conclude(data, landed.map(|_| ()))
            }
            Subject::Write {
                qp,
                memory: (key, address),
                length,
                immediate,
            } => {
                let content = ArrivalContent::Write {
                    memory: (key, address.wrapping_add(data.offset.into())),
                    length: data.length,
                    end: immediate
                        .filter(|_| complete >= length)
                        .map(|immediate| (immediate, length)),
                };
                let landed = self.land(to, data, header, qp, content, &source);
                if landed.is_ok() && immediate.is_some() {
                    if let Some(receiver) = self.receivers.get_mut(&data.connection) {
                        receiver.add_part(data.message, data.length, length);
                    }
                }
                self.conclude(data, landed.map(|_| ()))
            }
            Subject::Read {
                qp,
                memory,
                length,
                reader,
            } => {
                let content = ArrivalContent::Read { memory, length };
                let landed = self.land(to, data, header, qp, content, &source);
                if let Ok(own) = &landed {
                    self.respond(now, to, *own, header.peer, reader, memory, length);
                }
                self.conclude(data, landed.map(|_| ()))
            }
            Subject::Response { reader } => self.take_response(now, to, data, reader, &source),
            Subject::Failure { reader, status } => {
                let status = CompStatus::try_from(status).unwrap_or(CompStatus::RemoteAbort);
                self.end_read(to, reader, status);
                self.conclude(data, Ok(()))
            }
        }
    }

    /// Takes note of how a part of a message ended that is not to be taken again.
    fn conclude(&mut self, data: &Data, landed: Result<(), Outcome>) -> Outcome {
        let outcome = match landed {
            Ok(()) => Outcome::Tell(Verdict::Taken),
            Err(outcome) => outcome,
        };
        if let Some(receiver) = self.receivers.get_mut(&data.connection) {
            match outcome {
                Outcome::Tell(Verdict::Taken) => receiver.add(data.psn),
                Outcome::Tell(Verdict::Failed(_)) => {
                    receiver.add(data.psn);
                    receiver.forget(data.message);
                }
                _ => {}
            }
        }
        outcome
    }

    /// Puts a part of a request where the receiver's program wants it; returns its queue pair.
    fn land(
        &mut self,
        to: PortId,
        data: &Data,
        header: &Header,
        qp: u16,
        content: ArrivalContent,
        source: &Source<'_>,
    ) -> Result<QpId, Outcome> {
        let arrival = Arrival {
            peer: header.peer,
            peer_qp: header.peer_qp,
            qp,
            transport: QpType::Srd,
            qkey: 0,
            content,
        };
        let refused = |refusal| match refusal {
            Refusal::Drop => Outcome::Silence,
            Refusal::NotReady => Outcome::Tell(Verdict::NotReady),
            Refusal::Status(status) => Outcome::Tell(Verdict::failed(status)),
        };
        self.target.clear();
        let Port { device, guest, .. } = &mut self.ports[to.0];
        let landing = device
            .land(guest, &arrival, &mut self.target)
            .map_err(refused)?;
        let written = match self.place(to, data, source) {
            Moved::Done => Ok(()),
            Moved::Lost(error) => Err(error),
            Moved::Missing(status) => return Err(Outcome::Sender(status)),
        };
        let Port { device, guest, .. } = &mut self.ports[to.0];
        device
            .landed(guest, &arrival, &landing, written)
            .map_err(refused)?;
        Ok(landing.qp())
    }

    /// Starts to send what a peer reads.
    #[allow(
        clippy::too_many_arguments,
        reason = "each is another part of one message"
    )]
    fn respond(
        &mut self,
        now: Duration,
        from: PortId,
        own: QpId,
        peer: Address,
        reader: Reader,
        memory: (u32, u64),
        length: u32,
    ) {
        if length == 0 {
            return;
        }
        if let Some(connection) = self.connection(now, from, own, peer) {
            self.push(connection, Content::Response { reader, memory }, length);
        }
    }

    /// Takes a part of what a read reads.
    fn take_response(
        &mut self,
        now: Duration,
        to: PortId,
        data: &Data,
        reader: Reader,
        source: &Source<'_>,
    ) -> Outcome {
        // A read that is not there any more has ended.
        let Some(read) = self.reads.get(&(to, reader)) else {
            return self.conclude(data, Ok(()));
        };
        self.target.clear();
        let device = &mut self.ports[to.0].device;
        let found = device.scatter(&read.request, data.offset, data.length, &mut self.target);
        let moved = match found {
            Ok(()) => self.place(to, data, source),
            Err(status) => {
                self.end_read(to, reader, status);
                return self.conclude(data, Ok(()));
            }
        };
        match moved {
            Moved::Done => {}
            Moved::Lost(_) => self.end_read(to, reader, CompStatus::LocalInvalidLkey),
            Moved::Missing(status) => return Outcome::Sender(status),
        }
        if let Some(read) = self.reads.get_mut(&(to, reader)) {
            read.progress = now;
            read.received = read.received.saturating_add(data.length);
            if read.received >= read.request.length {
                self.end_read(to, reader, CompStatus::Ok);
            }
        }
        self.conclude(data, Ok(()))
    }

    /// Ends a read, if it has not ended.
    fn end_read(&mut self, port: PortId, reader: Reader, status: CompStatus) {
        if let Some(read) = self.reads.remove(&(port, reader)) {
            self.finish(port, &read.request, status);
        }
    }

    /// Does what the answer to a packet asks for.
    fn acknowledge(&mut self, now: Duration, port: PortId, ack: Ack) {
        let connection = ack.connection.number;
        let sender = self.senders.get_mut(&connection);
        let Some(sender) =
            sender.filter(|sender| sender.from == port && ack.connection.program == self.program)
        else {
            return;
        };
        match ack.verdict {
            Verdict::Taken => {
                if let Progress::Sent(message) = sender.taken(now, ack.psn) {
                    self.sent(port, *message);
                }
            }
            Verdict::NotReady => match sender.not_ready(now, ack.psn) {
                Progress::NotReady(message) => {
                    self.fail(now, connection, message, CompStatus::RemoteRnr);
                }
                _ => {
                    let due = sender.next_due_of(ack.psn);
                    self.timer = [self.timer, due].into_iter().flatten().min();
                }
            },
            Verdict::Failed(status) => {
                if let Some(message) = sender.message_of(ack.psn) {
                    let status = CompStatus::try_from(status).unwrap_or(CompStatus::RemoteAbort);
                    self.fail(now, connection, message, status);
                }
            }
        }
        self.activate(connection);
    }

    /// All of a message is acknowledged.
    fn sent(&mut self, port: PortId, message: Message) {
        let Content::Request(request) = message.content else {
            return;
        };
        // A read ends when all was read.
        if request.operation == OpType::RdmaRead {
            if request.length > 0 {
                return;
            }
            self.reads.remove(&(port, reader(&request)));
        }
        self.finish(port, &request, CompStatus::Ok);
    }

    /// Gives a message up.
    fn fail(&mut self, now: Duration, connection: u64, message: u64, status: CompStatus) {
        let Some(sender) = self.senders.get_mut(&connection) else {
            return;
        };
        let port = sender.from;
        let Some(message) = sender.remove(message) else {
            return;
        };
        sender.last_used = now;
        match message.content {
            Content::Request(request) => {
                self.reads.remove(&(port, reader(&request)));
                self.finish(port, &request, status);
            }
            Content::Response { reader, .. } => {
                self.push(connection, Content::Failure { reader, status }, 0);
            }
            Content::Failure { .. } => {}
        }
    }

    /// Finds what is to be sent again.
    fn expire(&mut self, now: Duration) {
        let connections: Vec<_> = self
            .senders
            .iter()
            .filter(|(_, sender)| sender.next_due().is_some_and(|due| due <= now))
            .map(|(connection, _)| *connection)
            .collect();
        for connection in connections {
            let Some(sender) = self.senders.get_mut(&connection) else {
                continue;
            };
            let expired = sender.expire(now);
            let device = &mut self.ports[sender.from.0].device;
            for _ in 0..expired.timeouts {
                device.count(TransportEvent::TimedOut);
            }
            for _ in 0..expired.impaired {
                device.count(TransportEvent::Impaired);
            }
            if let Some(message) = expired.given_up {
                device.count(TransportEvent::Unresponsive);
                self.fail(now, connection, message, CompStatus::LocalUnrespRemote);
            }
            self.activate(connection);
        }
        self.timer = self.senders.values().filter_map(Sender::next_due).min();
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

    /// Forgets a connection, with all that was to be sent over it.
    fn close(&mut self, connection: u64) {
        self.senders.remove(&connection);
        self.by_flow.retain(|_, other| *other != connection);
    }

    /// Sends an unreliable datagram.
    fn send_datagram(&mut self, now: Duration, from: PortId, request: &Request) {
        let Port { device, guest, .. } = &mut self.ports[from.0];
        self.source.clear();
        let payload = match device.gather(request, 0, request.length, &mut self.source) {
            Ok(Payload::Inline(bytes)) => Ok(bytes.to_vec()),
            Ok(Payload::Memory) => read(guest, &self.source),
            Err(status) => Err(status),
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(status) => {
                self.finish(from, request, status);
                return;
            }
        };
        device.count(TransportEvent::Sent(request.length));
        let datagram = Box::new(Datagram {
            peer: device.address(),
            peer_qp: request.qp.number,
            qp: request.peer_qp,
            qkey: request.qkey,
            immediate: request.immediate,
            payload,
        });
        // One to nobody is one that is lost.
        let load = Load {
            packets: 1,
            bytes: request.length,
        };
        if let Some(to) = self.find(request.peer) {
            let path = request.qp.number;
            let packet = Packet {
                from,
                to,
                path,
                body: Body::Datagram(datagram),
            };
            let _ = self.network.send(now, from.0, to.0, path, load, packet);
        }
        self.finish(from, request, CompStatus::Ok);
    }

    /// Takes an unreliable datagram, or drops it.
    fn take_datagram(&mut self, to: PortId, datagram: &Datagram) {
        let arrival = Arrival {
            peer: datagram.peer,
            peer_qp: datagram.peer_qp,
            qp: datagram.qp,
            transport: QpType::Ud,
            qkey: datagram.qkey,
            content: ArrivalContent::Send {
                // CAST: it is no longer than a request.
                length: datagram.payload.len() as u32,
                immediate: datagram.immediate,
            },
        };
        self.target.clear();
        let Port { device, guest, .. } = &mut self.ports[to.0];
        let Ok(landing) = device.land(guest, &arrival, &mut self.target) else {
            return;
        };
        let written = match scatter(guest, &self.target, &datagram.payload) {
            Moved::Lost(error) => Err(error),
            Moved::Done | Moved::Missing(_) => Ok(()),
        };
        flip(&mut self.network, guest, &self.target);
        // Nobody is told.
        let _ = device.landed(guest, &arrival, &landing, written);
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

/// Who reads by a request.
fn reader(request: &Request) -> Reader {
    Reader {
        qp: request.qp,
        request: request.id,
    }
}

/// Copies from segments of one guest's memory to segments of another's.
fn transfer<G: Guest>(source: &G, from: &[Segment], target: &G, to: &[Segment]) -> Moved {
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let (mut read, mut write) = (from.next(), to.next());
    while let (Some(source_part), Some(target_part)) = (&mut read, &mut write) {
        let length = source_part.length.min(target_part.length);
        // CAST: 32 bits fit.
        let copied = source.copy(
            source_part.address,
            target,
            target_part.address,
            length as usize,
        );
        match copied {
            Ok(()) => {}
            Err(CopyError::Source(_)) => return Moved::Missing(CompStatus::LocalInvalidLkey),
            Err(CopyError::Target(error)) => return Moved::Lost(error),
        }
        if advance(source_part, length) {
            read = from.next();
        }
        if advance(target_part, length) {
            write = to.next();
        }
    }
    Moved::Done
}

/// Leaves out the start of a segment; returns whether nothing is left.
fn advance(segment: &mut Segment, length: u32) -> bool {
    segment.address = segment.address.wrapping_add(length.into());
    segment.length -= length;
    segment.length == 0
}

/// Writes bytes to segments of a guest's memory.
fn scatter(guest: &mut dyn Host, segments: &[Segment], mut bytes: &[u8]) -> Moved {
    for segment in segments {
        let (now, later) = bytes.split_at(bytes.len().min(segment.length as usize));
        if let Err(error) = guest.dma_write(segment.address, now) {
            return Moved::Lost(error);
        }
        bytes = later;
    }
    Moved::Done
}

/// Reads segments of a guest's memory.
fn read(guest: &mut dyn Host, segments: &[Segment]) -> Result<Vec<u8>, CompStatus> {
    let mut bytes = Vec::new();
    for segment in segments {
        let start = bytes.len();
        bytes.resize(start + segment.length as usize, 0);
        guest
            .dma_read(segment.address, &mut bytes[start..])
            .map_err(|_| CompStatus::LocalInvalidLkey)?;
    }
    Ok(bytes)
}

/// Makes a bit wrong, if the network is one that does.
fn flip<P>(network: &mut Network<P>, guest: &mut dyn Host, segments: &[Segment]) {
    let part = network.settings().flip;
    let length = segments.iter().map(|segment| segment.length).sum::<u32>();
    if length == 0 || !network.happens(part) {
        return;
    }
    let mut offset = network.below(length);
    for segment in segments {
        if offset < segment.length {
            let address = segment.address + u64::from(offset);
            let mut byte = [0];
            if guest.dma_read(address, &mut byte).is_ok() {
                byte[0] ^= 1 << network.below(8);
                // It was just written.
                let _ = guest.dma_write(address, &byte);
            }
            return;
        }
        offset -= segment.length;
    }
}
