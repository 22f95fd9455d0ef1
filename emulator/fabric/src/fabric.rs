// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices with the network between them.

mod turns;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use efa_model::Device;
use parking_lot::Mutex;

use crate::{
    Frame, PathCounters, Settings, Tap,
    endpoint::Endpoint,
    links::{JoinError, Link, LinkId, Links, Newcomer, Peer, Session},
    memory::Guest,
    network::Network,
    packet::{Address, Body, Carried, FrameBody, OVERHEAD, Origin, Packet, PortId, Subject},
    schedule::{Run, Woken},
    srd::ConnectionState,
    wire::Wire,
};

/// Number of packets that a port moves per turn.
const TURN: u32 = 32;

/// Maximum payload of a packet from another program, in bytes: the largest MTU of any device.
const MAX_PAYLOAD: usize = 8928;

/// Endpoints and links, with the network between them.
///
/// Several threads may use it at the same time. It has no threads and no clock: the caller passes the time. So a test or a
/// simulation can run faster than any real network. Each endpoint has its own lock, and no thread holds two of them. Threads that
/// move packets hold it only briefly. A command may hold it for long. Threads that move packets do not wait for the command, and
/// do the rest after it.
///
/// An access to the memory of a guest may take as long as the guest likes. [`relieve`](Self::relieve) takes other guests' ports
/// away from the thread. From then on, for a minute, the memory is only accessed in turns of the guest's own port.
#[derive(Debug)]
pub struct Fabric<G: Guest> {
    wire: Wire,
    /// A snapshot, which is only replaced with `links` locked.
    ports: ArcSwap<Vec<Port<G>>>,
    links: Mutex<Links>,
    /// Number of threads that have come back after they had got a substitute.
    returned: AtomicUsize,
}

/// The runs of ports that were in progress at the last call of [`Fabric::relieve`].
#[derive(Debug, Default)]
pub struct Runs(Vec<Option<Run>>);

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
            ports: ArcSwap::default(),
            links: Mutex::default(),
            returned: AtomicUsize::new(0),
        }
    }

    /// Sets the observer of all packets. Only the first call has an effect.
    pub fn set_tap(&self, tap: Arc<dyn Tap>) {
        self.wire.set_tap(tap);
    }

    /// Attaches a device.
    pub fn attach(&self, device: Device, guest: G) -> PortId {
        let _links = self.links.lock();
        let mut ports = Vec::clone(&self.ports.load());
        let (port, mailbox) = self.wire.add_port(false);
        self.wire.enter(device.address(), port, None);
        let endpoint = Endpoint::new(port, mailbox, device, guest);
        ports.push(Port::Endpoint(Arc::new(endpoint)));
        self.ports.store(Arc::new(ports));
        port
    }

    /// Returns the addresses of all devices of this program.
    pub fn addresses(&self) -> Vec<Address> {
        let endpoints = self.endpoints().into_iter();
        endpoints.map(|endpoint| endpoint.address).collect()
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint<G>>> {
        let ports = self.ports.load();
        let endpoints = ports.iter().filter_map(|port| match port {
            Port::Endpoint(endpoint) => Some(Arc::clone(endpoint)),
            Port::Peer(_) => None,
        });
        endpoints.collect()
    }

    fn port(&self, port: PortId) -> Option<Port<G>> {
        self.ports.load().get(port.0).cloned()
    }

    fn endpoint(&self, port: PortId) -> Option<Arc<Endpoint<G>>> {
        match self.port(port)? {
            Port::Endpoint(endpoint) => Some(endpoint),
            Port::Peer(_) => None,
        }
    }

    /// Returns the settings of the network.
    pub fn settings(&self) -> Arc<Settings> {
        Guard::into_inner(self.wire.network.settings())
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

    /// Returns the state of the first connections of a device.
    ///
    /// # Panics
    ///
    /// There is no device at this port.
    pub fn connections(&self, port: PortId) -> Vec<ConnectionState> {
        let endpoint = self.endpoint(port).expect("the port has a device");
        let mut connections = endpoint.lock().connections();
        for (to, connection) in &mut connections {
            let address = self.port(*to).map(|port| match port {
                Port::Endpoint(endpoint) => endpoint.address,
                Port::Peer(peer) => peer.address,
            });
            connection.peer = address.map(Into::into);
        }
        connections.into_iter().map(|it| it.1).collect()
    }

    /// Calls `work` on a device. Then runs the device and the ports that it wakes, for about `budget` packets. [`run`](Self::run)
    /// does the rest.
    ///
    /// # Panics
    ///
    /// There is no device at this port.
    pub fn with<R>(&self, port: PortId, now: Duration, budget: u32, work: impl FnOnce(&mut Device, &mut G) -> R) -> R {
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

    /// Returns the number of threads that have run a port since the last call. Each needs a substitute until it
    /// [returns](Self::has_returned).
    pub fn relieve(&self, seen: &mut Runs) -> usize {
        self.wire.relieve(&mut seen.0)
    }

    /// Whether a thread that has a substitute has returned. This counts each only once.
    pub fn has_returned(&self) -> bool {
        let less = |count: usize| count.checked_sub(1);
        let (relaxed, returned) = (Ordering::Relaxed, &self.returned);
        returned.fetch_update(relaxed, relaxed, less).is_ok()
    }

    /// Wakes a port and the ports that have waited for it. Then runs the woken ports, for about `budget` packets. The caller may
    /// be a thread that other ports do not wait for, so it leaves those whose memory may be slow.
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
        let is_ideal = self.wire.network.settings().is_ideal();
        let mut own = Some(port).filter(|_| !is_ideal);
        let mut left = budget;
        let mut others = Woken::new();
        while left > 0 {
            let Some(next) = woken.pop_front() else {
                break;
            };
            let may_wait = !is_ideal && own.take_if(|own| *own == next).is_none();
            if may_wait || self.wire.is_slow(next) {
                others.push_back(next);
                continue;
            }
            left = left.saturating_sub(self.serve(next, now, left.min(TURN), is_ideal, &mut woken));
        }
        woken.append(&mut others);
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
                    Some(packet) => self.wire.arrive(packet.to, packet, &mut woken),
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
            left = left.saturating_sub(self.serve(port, now, left.min(TURN), true, &mut woken));
        }
        self.wire.schedule.leave(&mut woken);
        self.next_due(now)
    }

    /// Returns the time of the next work, which may be now.
    pub fn next_due(&self, now: Duration) -> Option<Duration> {
        let own = [self.wire.schedule.next_due(now), self.wire.network.next_due()];
        own.into_iter().flatten().min()
    }

    /// Returns the session to offer to another program, with these devices, before it joins. It has to offer one, too. If both
    /// have kept the state of a lost link, the link is restored.
    pub fn session(&self, program: u64, addresses: &[Address]) -> Session {
        self.links.lock().session(program, addresses)
    }

    /// Registers another program. `way` sends packets to it.
    ///
    /// # Errors
    ///
    /// An address is taken, there are too many links, devices or ports, or the session is over.
    pub fn join(&self, now: Duration, newcomer: &Newcomer<'_>, way: &Arc<dyn Link>) -> Result<LinkId, JoinError> {
        let endpoints = self.endpoints();
        let mut own = endpoints.iter();
        if own.any(|own| newcomer.addresses.contains(&own.address)) {
            return Err(JoinError::AddressTaken);
        }
        let (gone, joined) = {
            let mut links = self.links.lock();
            let mut ports = Vec::clone(&self.ports.load());
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
            self.ports.store(Arc::new(ports));
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
            FrameBody::Data { data, header, payload } => {
                let genuine = header.peer == frame.from && payload.len() == data.length as usize;
                // These packets have no destination for payload.
                let is_bare = matches!(header.subject, Subject::Read { .. } | Subject::Failure { .. });
                if !genuine || payload.len() > MAX_PAYLOAD || is_bare && !payload.is_empty() {
                    return;
                }
                let carried = Carried { header, payload, permit, remembered: peer.quotas.remembered.clone() };
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
        let packet = Packet { from: peer.port, to, path: frame.path, body };
        let mut woken = Woken::new();
        self.wire.arrive(packet.to, packet, &mut woken);
        self.wire.schedule.leave(&mut woken);
        self.run(now, budget);
    }
}
