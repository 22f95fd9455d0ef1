// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices with the network between them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use efa_model::Device;
use parking_lot::{Mutex, RwLock};

use crate::{
    Frame, PathCounters, Settings, Tap,
    delivery::{self, Delivered, Occupied, Transfer},
    endpoint::Endpoint,
    inbox::Popped,
    links::{JoinError, Link, LinkId, Links, Newcomer, Peer, Session},
    memory::Guest,
    network::Network,
    packet::{Address, Body, Carried, FrameBody, Origin, Packet, PortId, Subject},
    schedule::Woken,
    wire::Wire,
};

/// Number of packets that a port moves per turn.
const TURN: u32 = 32;

/// Bytes of payload that count as one packet against the budget.
const PACKET: u32 = 8928;

/// Maximum payload of a packet from another program, in bytes: the largest MTU of any device.
const MAX_PAYLOAD: usize = 8928;

/// Bytes that a packet from another program is charged in addition to its payload.
const OVERHEAD: usize = 256;

/// Endpoints and links, with the network between them.
///
/// Several threads may use it at the same time. It has no threads and no clock: the caller passes the time. So a test or a
/// simulation can run faster than any real network. Each endpoint has its own lock, and no thread holds two of them. Threads that
/// move packets hold it only briefly. A command may hold it for long. Threads that move packets do not wait for the command, and
/// do the rest after it.
#[derive(Debug)]
pub struct Fabric<G: Guest> {
    wire: Wire,
    ports: RwLock<Vec<Port<G>>>,
    links: Mutex<Links>,
}

/// Endpoint or remote device at a port of the network.
#[derive(Debug)]
enum Port<G: Guest> {
    Endpoint(Arc<Endpoint<G>>),
    Peer(Arc<Peer>),
}

impl<G: Guest> Clone for Port<G> {
    fn clone(&self) -> Self {
        match self {
            Self::Endpoint(endpoint) => Self::Endpoint(Arc::clone(endpoint)),
            Self::Peer(peer) => Self::Peer(Arc::clone(peer)),
        }
    }
}

impl<G: Guest> Fabric<G> {
    /// Creates a network without devices. The same seed gives the same losses and delays.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            wire: Wire::new(Network::new(settings, seed)),
            ports: RwLock::default(),
            links: Mutex::default(),
        }
    }

    /// Sets the observer of all packets. Only the first call has an effect.
    pub fn set_tap(&self, tap: Arc<dyn Tap>) {
        self.wire.set_tap(tap);
    }

    /// Attaches a device.
    pub fn attach(&self, device: Device, guest: G) -> PortId {
        let mut ports = self.ports.write();
        let (port, mailbox) = self.wire.add_port(false);
        self.wire.enter(device.address(), port, None);
        let endpoint = Endpoint::new(port, mailbox, device, guest);
        ports.push(Port::Endpoint(Arc::new(endpoint)));
        port
    }

    /// Returns the addresses of all devices of this program.
    pub fn addresses(&self) -> Vec<Address> {
        let endpoints = self.endpoints().into_iter();
        endpoints.map(|endpoint| endpoint.address).collect()
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint<G>>> {
        let ports = self.ports.read();
        let endpoints = ports.iter().filter_map(|port| match port {
            Port::Endpoint(endpoint) => Some(Arc::clone(endpoint)),
            Port::Peer(_) => None,
        });
        endpoints.collect()
    }

    fn port(&self, port: PortId) -> Option<Port<G>> {
        self.ports.read().get(port.0).cloned()
    }

    fn endpoint(&self, port: PortId) -> Option<Arc<Endpoint<G>>> {
        match self.port(port)? {
            Port::Endpoint(endpoint) => Some(endpoint),
            Port::Peer(_) => None,
        }
    }

    /// Returns the settings of the network.
    pub fn settings(&self) -> Arc<Settings> {
        self.wire.network.settings()
    }

    /// Changes the settings of the network, for packets sent from now on.
    pub fn set(&self, settings: Settings) {
        self.wire.network.set(settings);
    }

    /// Returns the counters of each path.
    pub fn paths(&self) -> Vec<PathCounters> {
        self.wire.network.counters()
    }

    /// Returns the number of packets dropped because the queue of their port was full.
    pub fn overflows(&self) -> usize {
        self.wire.overflows()
    }

    /// Returns the number of messages and reads that the transport holds for a device. They include those of ended queue pairs.
    ///
    /// # Panics
    ///
    /// There is no device at this port.
    pub fn held(&self, port: PortId) -> usize {
        let endpoint = self.endpoint(port).expect("the port has a device");
        endpoint.lock().held()
    }

    /// Calls `work` on a device. Then runs the device and the ports that it wakes, for about `budget` packets. [`run`](Self::run)
    /// does the rest.
    ///
    /// # Panics
    ///
    /// There is no device at this port.
    pub fn with<R>(
        &self,
        port: PortId,
        now: Duration,
        budget: u32,
        work: impl FnOnce(&mut Device, &mut G) -> R,
    ) -> R {
        let endpoint = self.endpoint(port).expect("the port has a device");
        let (result, waiting) = endpoint.occupy(|state| state.with(now, work));
        self.prompt(port, waiting, now, budget);
        result
    }

    /// Calls `work` on the host of a device. It must not create work for the device, which is not run afterwards.
    ///
    /// # Panics
    ///
    /// There is no device at this port.
    pub fn with_guest<R>(&self, port: PortId, work: impl FnOnce(&mut G) -> R) -> R {
        let endpoint = self.endpoint(port).expect("the port has a device");
        work(&mut endpoint.lock().guest)
    }

    /// Wakes a port and the ports that have waited for it. Then runs the woken ports, for about `budget` packets.
    fn prompt(&self, port: PortId, waiting: BTreeSet<PortId>, now: Duration, budget: u32) {
        let mut woken = Woken::new();
        self.wire.wake(port, &mut woken);
        for port in waiting {
            self.wire.wake(port, &mut woken);
        }
        if woken.is_empty() && budget > 0 {
            // Another thread has the port in its list, and may have been preempted.
            woken.push_back(port);
        }
        let mut left = budget;
        while left > 0 {
            let Some(port) = woken.pop_front() else {
                break;
            };
            left = left.saturating_sub(self.serve(port, now, left.min(TURN), &mut woken));
        }
        self.wire.schedule.leave(&mut woken);
    }

    /// Processes due work, as much as moving about `budget` packets takes. Returns the time of the next work, which may be now.
    pub fn run(&self, now: Duration, budget: u32) -> Option<Duration> {
        let mut woken = Woken::new();
        let mut left = budget;
        while left > 0 {
            while let Some(port) = self.wire.schedule.take_due(now) {
                self.wire.wake(port, &mut woken);
            }
            for _ in 0..TURN {
                match self.wire.network.receive(now) {
                    Some(packet) => self.wire.arrive(packet, &mut woken),
                    None => break,
                }
            }
            self.wire.schedule.leave(&mut woken);
            let Some(port) = self.wire.schedule.take_ready() else {
                if self.wire.network.next_due().is_some_and(|due| due <= now) {
                    continue;
                }
                break;
            };
            left = left.saturating_sub(self.serve(port, now, left.min(TURN), &mut woken));
        }
        self.wire.schedule.leave(&mut woken);
        self.next_due(now)
    }

    /// Returns the time of the next work, which may be now.
    pub fn next_due(&self, now: Duration) -> Option<Duration> {
        let own = [
            self.wire.schedule.next_due(now),
            self.wire.network.next_due(),
        ];
        own.into_iter().flatten().min()
    }

    /// Runs a woken port; returns the number of packets that it has moved, or 1 if none.
    fn serve(&self, port: PortId, now: Duration, budget: u32, woken: &mut Woken) -> u32 {
        let (used, again) = match self.port(port) {
            None => return 1,
            Some(Port::Endpoint(endpoint)) => {
                if !endpoint.mailbox.turn.begin() {
                    return 1;
                }
                let (used, more) = self.serve_endpoint(&endpoint, now, budget, woken);
                (used, endpoint.mailbox.turn.end(more))
            }
            Some(Port::Peer(peer)) => {
                if !peer.mailbox.turn.begin() {
                    return 1;
                }
                let (used, more) = self.serve_peer(&peer, now, budget);
                (used, peer.mailbox.turn.end(more))
            }
        };
        if again {
            woken.push_back(port);
        }
        used.max(1)
    }

    fn serve_endpoint(
        &self,
        endpoint: &Endpoint<G>,
        now: Duration,
        budget: u32,
        woken: &mut Woken,
    ) -> (u32, bool) {
        // If a command occupies the endpoint, this turn ends early. The port is woken when the command ends.
        let mut received = 0;
        let unfinished = endpoint.unfinished.lock().take();
        if let Some(copied) = unfinished {
            let sender = self.endpoint(copied.packet.from);
            let transfer = Transfer {
                wire: &self.wire,
                now,
                to: endpoint,
                sender: sender.as_deref(),
            };
            match transfer.finish(copied, woken) {
                Delivered::Done => received += 1,
                Delivered::Later(packet) => endpoint.mailbox.put_back(packet),
                Delivered::Unfinished => return (0, false),
            }
        }
        endpoint.mailbox.resume();
        while received < budget {
            let Some(popped) = endpoint.mailbox.pop() else {
                break;
            };
            let packets = match &popped.packet.body {
                Body::Data(data, Origin::Device(_)) => data.length / PACKET + 1,
                _ => 1,
            };
            match self.deliver(endpoint, now, popped, woken) {
                Delivered::Done => received += packets,
                Delivered::Later(packet) => endpoint.mailbox.put_back(packet),
                Delivered::Unfinished => return (received, false),
            }
        }
        let Some(mut state) = endpoint.lock_for(endpoint.port) else {
            return (received, false);
        };
        let (sent, more) = state.work(now, &self.wire, budget, woken);
        drop(state);
        (received + sent, more || !endpoint.mailbox.is_empty())
    }

    /// Delivers a packet to an endpoint.
    fn deliver(
        &self,
        to: &Endpoint<G>,
        now: Duration,
        popped: Popped,
        woken: &mut Woken,
    ) -> Delivered {
        let wire = &self.wire;
        let Popped { packet, again } = popped;
        if !again {
            wire.show(&packet, false, None);
        }
        match &packet.body {
            Body::Ack(ack, _) => match to.lock_for(to.port) {
                Some(mut state) => state.acknowledge(now, packet.from, ack),
                None => return Delivered::Later(packet),
            },
            Body::Datagram(datagram, _) => {
                // CAST: it is no longer than an MTU.
                let flip = wire.network.flips(datagram.payload.len() as u32);
                match to.lock_for(to.port) {
                    Some(mut state) => state.receive_datagram(datagram, flip),
                    None => return Delivered::Later(packet),
                }
            }
            Body::Data(..) => {
                let sender = self.endpoint(packet.from);
                let transfer = Transfer {
                    wire,
                    now,
                    to,
                    sender: sender.as_deref(),
                };
                return transfer.deliver(packet, woken);
            }
        }
        Delivered::Done
    }

    /// Passes packets to another program.
    fn serve_peer(&self, peer: &Peer, now: Duration, budget: u32) -> (u32, bool) {
        let mut moved = 0;
        peer.mailbox.resume();
        while moved < budget {
            let Some(Popped { packet, .. }) = peer.mailbox.pop() else {
                return (moved, false);
            };
            moved += 1;
            let Some(sender) = self.endpoint(packet.from) else {
                continue;
            };
            let body = match packet.body {
                Body::Data(data, _) => match delivery::read(now, &sender, peer.port, &data) {
                    Ok(Some((header, payload))) => FrameBody::Data {
                        data,
                        header,
                        payload,
                    },
                    Ok(None) => continue,
                    Err(Occupied) => {
                        peer.mailbox.put_back(packet);
                        continue;
                    }
                },
                Body::Ack(ack, _) => FrameBody::Ack(ack),
                Body::Datagram(datagram, _) => FrameBody::Datagram(datagram),
            };
            peer.send(Frame {
                from: sender.address,
                to: peer.address,
                path: packet.path,
                body,
            });
        }
        (moved, true)
    }

    /// Returns the session to offer to another program, with these devices, before it joins. It has to offer one, too. If both have
    /// kept the state of a lost link, the link is restored.
    pub fn session(&self, program: u64, addresses: &[Address]) -> Session {
        self.links.lock().session(program, addresses)
    }

    /// Registers another program. `way` sends packets to it.
    ///
    /// # Errors
    ///
    /// An address is taken, there are too many links, devices or ports, or the session is over.
    pub fn join(
        &self,
        now: Duration,
        newcomer: &Newcomer<'_>,
        way: &Arc<dyn Link>,
    ) -> Result<LinkId, JoinError> {
        let endpoints = self.endpoints();
        let mut own = endpoints.iter();
        if own.any(|own| newcomer.addresses.contains(&own.address)) {
            return Err(JoinError::AddressTaken);
        }
        let (gone, joined) = {
            let mut ports = self.ports.write();
            let mut links = self.links.lock();
            if links.is_stale(newcomer.session) {
                return Err(JoinError::TooLate);
            }
            let gone = links.forget_lost(now, &self.wire, newcomer);
            let joined = links.join(now, &self.wire, newcomer, way);
            for peer in joined.iter().flat_map(|joined| &joined.peers) {
                let port = peer.port.0;
                let peer = Port::Peer(Arc::clone(peer));
                if port < ports.len() {
                    ports[port] = peer;
                } else {
                    ports.push(peer);
                }
            }
            (gone, joined)
        };
        let mut woken = Woken::new();
        for port in gone {
            for endpoint in &endpoints {
                let ((), waiting) = endpoint.occupy(|state| state.forget(now, port));
                let waiting = waiting.into_iter();
                waiting.for_each(|port| self.wire.wake(port, &mut woken));
            }
        }
        self.wire.schedule.leave(&mut woken);
        joined.map(|joined| joined.link)
    }

    /// Marks a link as lost.
    pub fn leave(&self, now: Duration, link: LinkId) {
        self.links.lock().leave(now, &self.wire, link);
    }

    /// Returns the number of devices of other programs with a working link.
    pub fn remote_devices(&self) -> usize {
        self.links.lock().devices()
    }

    /// Accepts a packet from another program, then processes about `budget` packets.
    pub fn accept(&self, now: Duration, link: LinkId, frame: Frame, budget: u32) {
        // A program may only send packets of its own devices.
        let from = self.wire.find(now, frame.from);
        let peer = match from.and_then(|from| self.port(from)) {
            Some(Port::Peer(peer)) if peer.link == link => peer,
            _ => return,
        };
        let to = self.wire.find(now, frame.to);
        let to = to.filter(|to| !self.wire.is_remote(*to));
        let permit = peer.quotas.incoming.take(frame.payload() + OVERHEAD);
        let (Some(to), Some(permit)) = (to, permit) else {
            return;
        };
        let body = match frame.body {
            FrameBody::Data {
                data,
                header,
                payload,
            } => {
                let genuine = header.peer == frame.from && payload.len() == data.length as usize;
                // These packets have no destination for payload.
                let is_bare = matches!(
                    header.subject,
                    Subject::Read { .. } | Subject::Failure { .. }
                );
                if !genuine || payload.len() > MAX_PAYLOAD || is_bare && !payload.is_empty() {
                    return;
                }
                let carried = Carried {
                    header,
                    payload,
                    permit,
                    remembered: peer.quotas.remembered.clone(),
                };
                Body::Data(data, Origin::Program(Box::new(carried)))
            }
            FrameBody::Ack(ack) => Body::Ack(ack, Some(permit)),
            FrameBody::Datagram(datagram) => {
                if datagram.peer != frame.from || datagram.payload.len() > MAX_PAYLOAD {
                    return;
                }
                Body::Datagram(datagram, permit)
            }
        };
        let packet = Packet {
            from: peer.port,
            to,
            path: frame.path,
            body,
        };
        let mut woken = Woken::new();
        self.wire.arrive(packet, &mut woken);
        self.wire.schedule.leave(&mut woken);
        self.run(now, budget);
    }
}
