// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Common parts of endpoints and links: the ports of a network, and the packets queued at them.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::{
    capture::{self, Message, Route, Tap},
    inbox::{Inbox, Popped},
    network::{Load, Network, NoPath},
    packet::{Address, Body, Origin, Packet, PortId},
    schedule::{Run, Schedule, Turn, Woken},
};

/// Number of calls of [`Wire::relieve`] for which a port counts as slow.
const SLOW: u32 = 1200;

/// Value of [`Mailbox::accessed`] while the port accesses only the memory of its own guest.
const NOBODY: usize = usize::MAX;

/// Queue of packets that arrived at a port, and the port's turn to run.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) turn: Turn,
    /// The port whose guest's memory this port accesses.
    accessed: AtomicUsize,
    /// Remaining calls of [`Wire::relieve`] for which accesses to the memory of the port's guest count as slow.
    slow: AtomicU32,
    /// Whether the port belongs to a device of another program.
    is_remote: bool,
    inbox: Mutex<Inbox>,
}

/// The network with its ports, and their schedule.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) network: Network<Packet>,
    pub(crate) schedule: Schedule,
    ports: ArcSwap<Ports>,
    /// Number of packets dropped because the queue of their port was full.
    overflows: AtomicUsize,
    tap: OnceLock<Arc<dyn Tap>>,
}

/// The ports, in a snapshot that readers use without a lock.
#[derive(Clone, Debug, Default)]
struct Ports {
    mailboxes: Vec<Arc<Mailbox>>,
    /// Device addresses, indexed by port.
    addresses: Vec<Address>,
    directory: HashMap<Address, Entry>,
}

/// Directory entry of an address.
#[derive(Clone, Copy, Debug)]
struct Entry {
    port: PortId,
    /// Time at which the entry expires, if the link to the device is lost.
    until: Option<Duration>,
}

impl Mailbox {
    /// Whether a thread was stuck in an access to the memory of the port's guest lately. Then only the port itself may access it.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// Begins a run of the port, if it is queued.
    pub(crate) fn begin(&self) -> Option<Run> {
        let run = self.turn.begin();
        if run.is_some() {
            // The last run may have been taken away from a thread that still accesses memory.
            self.accessed.store(NOBODY, Ordering::Relaxed);
        }
        run
    }

    /// Records that a run of the port accesses memory of another port's guest while `work` runs. The record is that of the run in
    /// progress: a thread that has lost the port, and comes back, must not hide what its substitute accesses.
    pub(crate) fn accessing<R>(&self, run: Run, port: PortId, work: impl FnOnce() -> R) -> R {
        let record = |port| {
            if self.turn.run() == Some(run) {
                self.accessed.store(port, Ordering::Relaxed);
            }
        };
        record(port.0);
        let result = work();
        record(NOBODY);
        result
    }

    /// Takes the next packet.
    pub(crate) fn pop(&self) -> Option<Popped> {
        self.inbox.lock().pop()
    }

    /// Puts the packet that was taken last back. It is not available until [`Self::resume`].
    pub(crate) fn put_back(&self, packet: Packet) {
        self.inbox.lock().put_back(packet);
    }

    /// Makes packets that were put back available again.
    pub(crate) fn resume(&self) {
        self.inbox.lock().resume();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.lock().is_empty()
    }
}

impl Wire {
    pub(crate) fn new(network: Network<Packet>) -> Self {
        Self {
            network,
            schedule: Schedule::default(),
            ports: ArcSwap::default(),
            overflows: AtomicUsize::new(0),
            tap: OnceLock::new(),
        }
    }

    /// Sets the observer of all packets. Only the first call has an effect.
    pub(crate) fn set_tap(&self, tap: Arc<dyn Tap>) {
        // An error means that an observer is set already. It stays.
        let _ = self.tap.set(tap);
    }

    /// Whether there is an observer of packets.
    pub(crate) fn is_tapped(&self) -> bool {
        self.tap.get().is_some()
    }

    /// Returns the maximum number of payload bytes that the observer wants per packet, or 0 without an observer.
    pub(crate) fn snap(&self) -> u32 {
        self.tap.get().map_or(0, |tap| tap.snap())
    }

    /// Passes a packet to the observer when it leaves a device of this program, or arrives at one.
    pub(crate) fn show(&self, packet: &Packet, has_left: bool, message: Option<Message<'_>>) {
        let Some(tap) = self.tap.get() else {
            return;
        };
        let ports = self.ports.load();
        let address = |port: PortId| ports.addresses.get(port.0).copied();
        let route = Route {
            from: address(packet.from).unwrap_or_default(),
            to: address(packet.to).unwrap_or_default(),
            path: packet.path,
        };
        let record = match &packet.body {
            Body::Data(data, Origin::Program(carried)) => {
                let message = Message {
                    header: &carried.header,
                    payload: capture::start(&carried.payload, tap.snap()),
                    again: false,
                };
                route.data(data, Some(message))
            }
            Body::Data(data, Origin::Device(_)) => route.data(data, message),
            Body::Ack(ack, _) => route.ack(ack),
            Body::Datagram(datagram, _) => route.datagram(datagram, tap.snap()),
        };
        let port = if has_left { packet.from } else { packet.to };
        tap.show(port, has_left, record);
    }

    /// Adds a port with the next number.
    pub(crate) fn add_port(&self, is_remote: bool) -> (PortId, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox {
            turn: Turn::default(),
            accessed: AtomicUsize::new(NOBODY),
            slow: AtomicU32::new(0),
            is_remote,
            inbox: Mutex::default(),
        });
        let before = self.change(|ports| ports.mailboxes.push(Arc::clone(&mailbox)));
        let port = before.mailboxes.len();
        self.network.set_ports(port + 1);
        (PortId(port), mailbox)
    }

    /// Directs packets for an address to a port, permanently or until a given time.
    pub(crate) fn enter(&self, address: Address, port: PortId, until: Option<Duration>) {
        self.change(|ports| {
            let addresses = &mut ports.addresses;
            addresses.resize(addresses.len().max(port.0 + 1), Address::default());
            addresses[port.0] = address;
            ports.directory.insert(address, Entry { port, until });
        });
    }

    /// Removes an address from the directory, if it belongs to this port.
    pub(crate) fn forget(&self, address: Address, port: PortId) {
        self.change(|ports| {
            let found = ports.directory.get(&address);
            if found.is_some_and(|entry| entry.port == port) {
                ports.directory.remove(&address);
            }
        });
    }

    /// Replaces the snapshot of the ports; returns the one before.
    fn change(&self, change: impl Fn(&mut Ports)) -> Arc<Ports> {
        self.ports.rcu(|ports| {
            let mut ports = Ports::clone(ports);
            change(&mut ports);
            ports
        })
    }

    /// Returns the port with an address.
    pub(crate) fn find(&self, now: Duration, address: Address) -> Option<PortId> {
        let entry = *self.ports.load().directory.get(&address)?;
        let is_valid = entry.until.is_none_or(|until| now < until);
        is_valid.then_some(entry.port)
    }

    /// Sends a packet; returns the time at which its last byte leaves.
    ///
    /// # Errors
    ///
    /// The packet uses a path, and all paths are down.
    pub(crate) fn send(
        &self,
        now: Duration,
        packet: Packet,
        load: Load,
        woken: &mut Woken,
    ) -> Result<Duration, NoPath> {
        // The observer already has parts of messages, with details that only the sender knows.
        if !matches!(packet.body, Body::Data(..)) {
            self.show(&packet, true, None);
        }
        if self.is_denied(&packet) {
            return Ok(now);
        }
        let ends = (packet.from.0, packet.to.0);
        let doubled = self.network.duplicates().then(|| packet.copy());
        let mut left = now;
        for packet in [Some(packet), doubled.flatten()].into_iter().flatten() {
            let arrived;
            (left, arrived) = self.network.send(now, ends, packet.path, load, packet)?;
            if let Some(packet) = arrived {
                self.arrive(packet.to, packet, woken);
            }
        }
        Ok(left)
    }

    /// Whether security groups deny a packet.
    pub(crate) fn is_denied(&self, packet: &Packet) -> bool {
        let settings = self.network.settings();
        if settings.deny.is_empty() {
            return false;
        }
        let ports = self.ports.load();
        let [from, to] = [packet.from, packet.to].map(|port| ports.addresses.get(port.0).copied());
        from.zip(to).is_some_and(|(from, to)| settings.denies(from, to))
    }

    /// Queues a packet at a port, and wakes the port. If the queue is full, the packet is dropped.
    pub(crate) fn arrive(&self, port: PortId, packet: Packet, woken: &mut Woken) {
        let ports = self.ports.load();
        let Some(mailbox) = ports.mailboxes.get(port.0) else {
            return;
        };
        if mailbox.inbox.lock().push(packet) {
            if mailbox.turn.wake() {
                woken.push_back(port);
            }
        } else {
            self.overflows.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of packets dropped because the queue of their port was full.
    pub(crate) fn overflows(&self) -> usize {
        self.overflows.load(Ordering::Relaxed)
    }

    /// Whether a port belongs to a device of another program.
    pub(crate) fn is_remote(&self, port: PortId) -> bool {
        self.has(port, |mailbox| mailbox.is_remote)
    }

    /// Whether a packet has its payload in slow memory of another port's guest. That port has to read it.
    pub(crate) fn is_unread(&self, packet: &Packet) -> bool {
        let Packet { from, to, body, .. } = packet;
        matches!(body, Body::Data(_, Origin::Device(_))) && from != to && self.is_slow(*from)
    }

    /// See [`Mailbox::is_slow`].
    pub(crate) fn is_slow(&self, port: PortId) -> bool {
        self.has(port, Mailbox::is_slow)
    }

    /// Returns the number of threads that have run a port since the last call and have no substitute. The memory that they access
    /// counts as slow then. A port that accesses memory of another one's guest is taken away from its thread. `seen` has the runs
    /// of the last call.
    pub(crate) fn relieve(&self, seen: &mut Vec<Option<Run>>) -> usize {
        let mailboxes = &self.ports.load().mailboxes;
        seen.resize(mailboxes.len(), None);
        let mut stuck = 0;
        for ((port, mailbox), seen) in mailboxes.iter().enumerate().zip(seen) {
            let less = |slow: u32| slow.checked_sub(1);
            let (relaxed, slow) = (Ordering::Relaxed, &mailbox.slow);
            let _ = slow.fetch_update(relaxed, relaxed, less);
            let before = mem::replace(seen, mailbox.turn.run());
            let Some(run) = before.filter(|_| before == *seen) else {
                continue;
            };
            let other = Some(mailbox.accessed.load(relaxed)).filter(|other| *other != port);
            let other = other.and_then(|other| mailboxes.get(other));
            other.unwrap_or(mailbox).slow.store(SLOW, relaxed);
            let is_taken = other.is_some() && mailbox.turn.take(run);
            if is_taken {
                self.schedule.leave(&mut Woken::from([PortId(port)]));
            }
            stuck += usize::from(is_taken || mailbox.turn.mark_late(run));
        }
        stuck
    }

    /// Wakes a port.
    pub(crate) fn wake(&self, port: PortId, woken: &mut Woken) {
        if self.has(port, |mailbox| mailbox.turn.wake()) {
            woken.push_back(port);
        }
    }

    /// Whether there is such a port, and `test` holds for it.
    fn has(&self, port: PortId, test: impl FnOnce(&Mailbox) -> bool) -> bool {
        self.ports.load().mailboxes.get(port.0).is_some_and(|mailbox| test(mailbox))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::Settings;

    /// Lets the runs in progress last longer than two calls.
    fn relieve(wire: &Wire) -> usize {
        let mut seen = Vec::new();
        (0..2).map(|_| wire.relieve(&mut seen)).sum()
    }

    #[test]
    fn an_address_is_forgotten_with_its_own_port_only() {
        let wire = Wire::new(Network::new(Settings::default(), 1));
        let [old, new] = [(); 2].map(|()| wire.add_port(false).0);
        let address = Address::default();
        for port in [old, new] {
            wire.enter(address, port, None);
        }
        wire.forget(address, old);
        assert!(wire.ports.load().directory.contains_key(&address));
        wire.forget(address, new);
        assert!(wire.ports.load().directory.is_empty());
    }

    /// Takes a port twice: from a thread that comes back, and then from its substitute.
    #[test]
    fn a_thread_that_comes_back_does_not_hide_what_its_substitute_accesses() {
        let wire = Wire::new(Network::new(Settings::default(), 1));
        let [port, slow, slower] = [(); 3].map(|()| wire.add_port(false));
        let mailbox = &port.1;
        let (begins, begun) = mpsc::channel();
        let (ends, ended) = mpsc::channel::<()>();
        let begin = || {
            assert!(mailbox.turn.wake() || mailbox.turn.run().is_none());
            mailbox.begin().unwrap()
        };
        thread::scope(|scope| {
            // Dropped by a failure, too.
            let ends = ends;
            let first = begin();
            let second = mailbox.accessing(first, slow.0, || {
                assert_eq!((relieve(&wire), slow.1.is_slow()), (1, true));
                let second = begin();
                let slower = slower.0;
                scope.spawn(move || {
                    mailbox.accessing(second, slower, || {
                        begins.send(()).unwrap();
                        let _ = ended.recv();
                    });
                });
                begun.recv().unwrap();
                second
            });
            // As after a copy.
            mailbox.accessing(first, slow.0, || ());
            assert_eq!((relieve(&wire), slower.1.is_slow(), mailbox.is_slow()), (1, true, false));
            assert_ne!(mailbox.turn.run(), Some(second));
            // The substitute's record does not outlast its run.
            let third = begin();
            assert_eq!((relieve(&wire), mailbox.is_slow(), mailbox.turn.run()), (1, true, Some(third)));
            drop(ends);
        });
    }
}
