// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Links to other programs with devices on the same network.

use std::{collections::VecDeque, fmt::Debug, iter, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    Frame,
    packet::{Address, PortId},
    quota::Quota,
    srd::REMEMBERED,
    wire::{Mailbox, Wire},
};

/// Maximum number of links, including lost ones that may be restored.
const MAX_LINKS: usize = 64;

/// Maximum number of links to the programs of one host.
const MAX_LINKS_OF_HOST: usize = 8;

/// Maximum number of devices of another program.
const MAX_DEVICES: usize = 256;

/// Maximum number of ports of devices of other programs.
const MAX_PORTS: usize = 4096;

/// Limit on these ports for the programs of one host, including the ports that they have left and that rest.
const MAX_PORTS_OF_HOST: usize = MAX_PORTS / 4;

/// Time before a port is reused. It exceeds the time that any packet is in flight. A device does not get its own port back earlier
/// either, since a packet may have a connection number that the next run of its program uses, too.
const PORT_REST: Duration = Duration::from_secs(60);

/// Time during which the devices behind a lost link stay addressable, because the link may be restored.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit on another program's packets that wait for local devices, in bytes. Packets beyond it are lost.
const INCOMING_BYTES: usize = 8 << 20;

/// Identifier of a link to another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(usize);

/// Connection to another program.
pub trait Link: Debug + Send + Sync {
    /// Queues a packet, or drops it if too many are queued. It does not block.
    fn send(&self, frame: Frame);
}

/// Another program that joins.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// Distinguishes it from other programs, and from earlier runs of the same program.
    pub program: u64,
    /// Its host, unless this program has connected to it.
    pub host: Option<IpAddr>,
    /// Addresses of its devices.
    pub addresses: &'a [Address],
    /// Session that this program has offered to it.
    pub session: Session,
    /// Number of the session that it has offered to this program.
    pub offered: u64,
}

/// Identity of the state that this program keeps for another one, between the first join and the loss of that state.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Number that no other session of this program has.
    pub number: u64,
    /// Whether there is such state.
    exists: bool,
}

/// Reason why another program cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Two devices would have the same address.
    #[error("a device of the other emulator has the address of another device: give each device its own number")]
    AddressTaken,
    /// There would be too many links, devices or ports.
    #[error("too many emulators have joined, or the other one has too many devices")]
    TooMany,
    /// The state for the other program was dropped after its session was offered.
    #[error("the other emulator was away for too long, and has to join again")]
    TooLate,
}

/// The port of a device of another program.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) port: PortId,
    pub(crate) address: Address,
    pub(crate) link: LinkId,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) quotas: Quotas,
    way: Mutex<Option<Arc<dyn Link>>>,
}

impl Peer {
    /// Sends a packet, if the link is working.
    pub(crate) fn send(&self, frame: Frame) {
        let way = self.way.lock().clone();
        if let Some(way) = way {
            way.send(frame);
        }
    }
}

/// All links.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: Vec<Option<Entry>>,
    /// Number of sessions so far.
    sessions: u64,
    /// Unused ports, the times since which they are unused, and the hosts of the devices that had them.
    free: VecDeque<(Duration, Option<IpAddr>, Arc<Peer>)>,
}

#[derive(Debug)]
struct Entry {
    /// Distinguishes the program from other programs, and from earlier runs of the same program.
    program: u64,
    host: Option<IpAddr>,
    /// Numbers of the sessions of both programs.
    sessions: [u64; 2],
    peers: Vec<Arc<Peer>>,
    /// Time at which the link was lost.
    lost: Option<Duration>,
}

/// Quotas of another program in this one, which its devices share.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    /// Bytes of its packets that wait for local devices.
    pub(crate) incoming: Quota,
    /// Bytes of receiver state for its devices' connections.
    pub(crate) remembered: Quota,
}

/// Result of the join of another program.
pub(crate) struct Joined {
    pub(crate) link: LinkId,
    /// The ports of its devices.
    pub(crate) peers: Vec<Arc<Peer>>,
}

impl Entry {
    /// Whether the link is that of this program, with exactly these devices.
    fn is_of(&self, program: u64, addresses: &[Address]) -> bool {
        let own = self.peers.iter().map(|peer| peer.address);
        self.program == program && own.eq(addresses.iter().copied())
    }

    /// Whether the link can be restored for a program: both still have their state. With the state of one end only, packets that
    /// were delivered before would be delivered again.
    fn is(&self, newcomer: &Newcomer<'_>) -> bool {
        self.is_of(newcomer.program, newcomer.addresses) && self.sessions == [newcomer.session.number, newcomer.offered]
    }

    /// Whether one of the link's devices has one of these addresses.
    fn shares(&self, addresses: &[Address]) -> bool {
        let mut own = self.peers.iter();
        own.any(|peer| addresses.contains(&peer.address))
    }
}

impl Links {
    /// Returns the session to offer to a program before it joins.
    pub(crate) fn session(&mut self, program: u64, addresses: &[Address]) -> Session {
        let mut entries = self.links.iter().flatten();
        let known = entries.find(|entry| entry.is_of(program, addresses));
        let known = known.map(|entry| entry.sessions[0]);
        let number = known.unwrap_or_else(|| {
            self.sessions += 1;
            self.sessions
        });
        let exists = known.is_some();
        Session { number, exists }
    }

    /// Whether there is no longer the state of a session that was offered.
    pub(crate) fn is_stale(&self, session: Session) -> bool {
        let mut entries = self.links.iter().flatten();
        session.exists && !entries.any(|entry| entry.sessions[0] == session.number)
    }

    /// Removes lost links that will not be restored: those lost for too long, or with an address that the joining program uses,
    /// too. Returns the ports of their devices. Endpoints have to forget these ports, whether or not that program can join.
    pub(crate) fn forget_lost(&mut self, now: Duration, wire: &Wire, newcomer: &Newcomer<'_>) -> Vec<PortId> {
        let is_gone = |entry: &Entry| {
            let is_over = |lost| now.saturating_sub(lost) > REJOIN_TIMEOUT;
            entry.lost.is_some_and(|lost| is_over(lost) || entry.shares(newcomer.addresses)) && !entry.is(newcomer)
        };
        let entries = self.links.iter().enumerate();
        let gone: Vec<_> =
            entries.filter(|(_, entry)| entry.as_ref().is_some_and(is_gone)).map(|(index, _)| index).collect();
        let ports = gone.into_iter().flat_map(|index| self.forget(now, wire, index));
        ports.collect()
    }

    /// Registers another program. If its link was lost, the link is restored with all connections.
    pub(crate) fn join(
        &mut self,
        now: Duration,
        wire: &Wire,
        newcomer: &Newcomer<'_>,
        way: &Arc<dyn Link>,
    ) -> Result<Joined, JoinError> {
        let addresses = newcomer.addresses;
        let entries = self.links.iter_mut().enumerate();
        let mut entries = entries.filter_map(|(index, entry)| Some((index, entry.as_mut()?)));
        let known = entries.find(|(_, entry)| entry.shares(addresses) || entry.lost.is_some() && entry.is(newcomer));
        if let Some((index, entry)) = known {
            if entry.lost.is_none() || !entry.is(newcomer) {
                return Err(JoinError::AddressTaken);
            }
            entry.lost = None;
            for peer in &entry.peers {
                *peer.way.lock() = Some(Arc::clone(way));
                wire.enter(peer.address, peer.port, None);
            }
            return Ok(Joined { link: LinkId(index), peers: entry.peers.clone() });
        }
        let unused = self.links.iter().position(Option::is_none);
        let index = unused.unwrap_or(self.links.len());
        let entries = self.links.iter().flatten();
        let of_host = entries.filter(|entry| entry.host == newcomer.host).count();
        if index == MAX_LINKS
            || newcomer.host.is_some() && of_host == MAX_LINKS_OF_HOST
            || addresses.len() > MAX_DEVICES
            || !self.has_ports(now, newcomer)
        {
            return Err(JoinError::TooMany);
        }
        let link = LinkId(index);
        let quotas = Quotas { incoming: Quota::new(INCOMING_BYTES), remembered: Quota::new(REMEMBERED) };
        let mut peers = Vec::new();
        for address in addresses {
            let (port, mailbox) = self.port(now, wire);
            wire.enter(*address, port, None);
            peers.push(Arc::new(Peer {
                port,
                address: *address,
                link,
                mailbox,
                quotas: quotas.clone(),
                way: Mutex::new(Some(Arc::clone(way))),
            }));
        }
        let entry = Entry {
            program: newcomer.program,
            host: newcomer.host,
            sessions: [newcomer.session.number, newcomer.offered],
            peers: peers.clone(),
            lost: None,
        };
        self.links.resize_with(self.links.len().max(index + 1), || None);
        self.links[index] = Some(entry);
        Ok(Joined { link, peers })
    }

    /// Whether there are enough ports for the devices of a program.
    fn has_ports(&self, now: Duration, newcomer: &Newcomer<'_>) -> bool {
        let entries = self.links.iter().flatten();
        let used = entries.flat_map(|entry| iter::repeat_n(entry.host, entry.peers.len()));
        let resting = self.free.iter().filter(|free| !has_rested(now, free.0));
        let hosts: Vec<_> = used.chain(resting.map(|free| free.1)).collect();
        let of_host = hosts.iter().filter(|host| **host == newcomer.host).count();
        let more = newcomer.addresses.len();
        hosts.len() + more <= MAX_PORTS && (newcomer.host.is_none() || of_host + more <= MAX_PORTS_OF_HOST)
    }

    fn port(&mut self, now: Duration, wire: &Wire) -> (PortId, Arc<Mailbox>) {
        match self.free.front() {
            Some((since, _, peer)) if has_rested(now, *since) => {
                let port = (peer.port, Arc::clone(&peer.mailbox));
                self.free.pop_front();
                port
            }
            _ => wire.add_port(true),
        }
    }

    /// Marks a link as lost. Packets for its devices are lost until the link is restored.
    pub(crate) fn leave(&mut self, now: Duration, wire: &Wire, link: LinkId) {
        if let Some(Some(entry)) = self.links.get_mut(link.0) {
            entry.lost = Some(now);
            for peer in &entry.peers {
                *peer.way.lock() = None;
                wire.enter(peer.address, peer.port, Some(now + REJOIN_TIMEOUT));
            }
        }
    }

    /// Removes a link; returns the ports of its devices.
    fn forget(&mut self, now: Duration, wire: &Wire, index: usize) -> Vec<PortId> {
        let Some(Entry { host, peers, .. }) = self.links[index].take() else {
            return Vec::new();
        };
        let ports = peers.into_iter().map(|peer| {
            wire.forget(peer.address, peer.port);
            let port = peer.port;
            self.free.push_back((now, host, peer));
            port
        });
        ports.collect()
    }

    /// Returns the number of devices of other programs with a working link.
    pub(crate) fn devices(&self) -> usize {
        let entries = self.links.iter().flatten();
        let there = entries.filter(|entry| entry.lost.is_none());
        there.map(|entry| entry.peers.len()).sum()
    }
}

/// Whether a port that is unused since then may be reused.
fn has_rested(now: Duration, since: Duration) -> bool {
    now.saturating_sub(since) > PORT_REST
}
