// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The network: links of devices, and paths between them.
//!
//! A packet goes over the sender's link, one path and the receiver's link. Each of these sends one packet after the other at
//! its rate, and loses those for which its buffer has no room.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use fastrand::Rng;
use serde::Serialize;

use crate::{Settings, settings::micros};

/// Bytes of a packet besides its payload: headers of Ethernet, IP and the transport.
const HEADER: u32 = 100;

/// What a path did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathCounters {
    /// Packets that it was given.
    pub packets: u64,
    /// Their payload in bytes.
    pub bytes: u64,
    /// How many of them it lost.
    pub lost: u64,
}

/// What goes over a path at a time: a packet, or several of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Packets.
    pub packets: u32,
    /// Their payload in bytes.
    pub bytes: u32,
}

/// All paths are down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPath;

/// A network that carries packets of type `P`.
#[derive(Debug)]
pub struct Network<P> {
    settings: Settings,
    random: Rng,
    up: Vec<Link>,
    paths: Vec<Link>,
    down: Vec<Link>,
    counters: Vec<PathCounters>,
    /// Packets on their way.
    moving: BinaryHeap<Reverse<Moving<P>>>,
    /// Packets that have arrived.
    arrived: VecDeque<P>,
    sequence: u64,
}

/// Something that sends one packet after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// When it has sent all that it was given.
    free: Duration,
}

/// A packet on its way.
#[derive(Debug)]
struct Moving<P> {
    at: Duration,
    sequence: u64,
    next: Stage,
    to: usize,
    path: u16,
    bytes: u32,
    packet: P,
}

/// What a packet comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Path,
    Receiver,
    Arrival,
}

impl<P> PartialEq for Moving<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Moving<P> {}

impl<P> PartialOrd for Moving<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Moving<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl Link {
    /// Takes a packet at a time; returns when its last byte has left, or `None` if there is no room for it.
    fn take(&mut self, now: Duration, bytes: u32, gbps: f64, buffer_kib: u32) -> Option<Duration> {
        if gbps == 0.0 {
            return Some(now);
        }
        let start = self.free.max(now);
        let room = Duration::from_secs_f64(f64::from(buffer_kib) * 8192.0 / (gbps * 1e9));
        if start - now > room {
            return None;
        }
        let time = f64::from(bytes + HEADER) * 8.0 / (gbps * 1e9);
        self.free = start + Duration::from_secs_f64(time);
        Some(self.free)
    }
}

impl<P> Network<P> {
    /// A network without ports. The same seed gives the same losses and delays.
    pub fn new(settings: Settings, seed: u64) -> Self {
        let mut network = Self {
            settings: Settings::default(),
            random: Rng::with_seed(seed),
            up: Vec::new(),
            paths: Vec::new(),
            down: Vec::new(),
            counters: Vec::new(),
            moving: BinaryHeap::new(),
            arrived: VecDeque::new(),
            sequence: 0,
        };
        network.set(settings);
        network
    }

    /// Adds a port; ports are numbered from 0.
    pub fn add_port(&mut self) -> usize {
        self.up.push(Link::default());
        self.down.push(Link::default());
        self.up.len() - 1
    }

    /// What the network is like.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes what the network is like, for packets to come.
    pub fn set(&mut self, settings: Settings) {
        let paths = usize::from(settings.paths.max(1));
        self.paths.resize(paths, Link::default());
        self.counters.resize(paths, PathCounters::default());
        self.settings = settings;
    }

    /// What each path did.
    pub fn counters(&self) -> &[PathCounters] {
        &self.counters
    }

    /// Whether the network may choose among the numbers from 0 to 1 one that is below `part`.
    pub fn happens(&mut self, part: f64) -> bool {
        part > 0.0 && self.random.f64() < part
    }

    /// A random number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.random.u32(..end.max(1))
    }

    /// Sends something from one port to another.
    ///
    /// # Errors
    ///
    /// There is no path that could take it.
    pub fn send(
        &mut self,
        now: Duration,
        from: usize,
        to: usize,
        path: u16,
        load: Load,
        packet: P,
    ) -> Result<(), NoPath> {
        let Load { packets, bytes } = load;
        let path = path % self.settings.paths.max(1);
        if (0..self.settings.paths).all(|path| self.settings.is_down(path)) {
            return Err(NoPath);
        }
        let counters = &mut self.counters[usize::from(path)];
        counters.packets += u64::from(packets);
        counters.bytes += u64::from(bytes);
        let loss = self.settings.loss_of(path);
        if self.settings.is_down(path) || self.happens(loss) {
            self.counters[usize::from(path)].lost += u64::from(packets);
            return Ok(());
        }
        let gbps = self.settings.link_gbps;
        // What does not fit into the buffer of a sender waits in its memory, so nothing is lost here.
        let sent = self.up[from].take(now, bytes, gbps, u32::MAX);
        let limited = self.settings.has_rate();
        let delay = self.settings.delay_of(path);
        let jitter = micros(self.settings.jitter_us * self.random_part());
        if !limited && delay.is_zero() && jitter.is_zero() {
            self.arrived.push_back(packet);
            return Ok(());
        }
        self.sequence += 1;
        self.moving.push(Reverse(Moving {
            at: sent.unwrap_or(now) + delay + jitter,
            sequence: self.sequence,
            next: if limited { Stage::Path } else { Stage::Arrival },
            to,
            path,
            bytes,
            packet,
        }));
        Ok(())
    }

    fn random_part(&mut self) -> f64 {
        if self.settings.jitter_us > 0.0 {
            self.random.f64()
        } else {
            0.0
        }
    }

    /// Takes the next packet that has arrived.
    pub fn receive(&mut self, now: Duration) -> Option<P> {
        while self.arrived.is_empty() {
            if self.moving.peek().is_none_or(|next| next.0.at > now) {
                break;
            }
            if let Some(Reverse(moving)) = self.moving.pop() {
                self.advance(moving);
            }
        }
        self.arrived.pop_front()
    }

    /// When something will arrive or move on.
    pub fn next_due(&self) -> Option<Duration> {
        if self.arrived.is_empty() {
            self.moving.peek().map(|next| next.0.at)
        } else {
            Some(Duration::ZERO)
        }
    }

    /// Lets a packet go on from where it is.
    fn advance(&mut self, mut moving: Moving<P>) {
        let buffer = self.settings.buffer_kib;
        let left = match moving.next {
            Stage::Arrival => {
                self.arrived.push_back(moving.packet);
                return;
            }
            Stage::Path => {
                moving.next = Stage::Receiver;
                let gbps = self.settings.path_gbps;
                match self.paths.get_mut(usize::from(moving.path)) {
                    Some(path) => path.take(moving.at, moving.bytes, gbps, buffer),
                    None => Some(moving.at),
                }
            }
            Stage::Receiver => {
                moving.next = Stage::Arrival;
                let gbps = self.settings.link_gbps;
                self.down[moving.to].take(moving.at, moving.bytes, gbps, buffer)
            }
        };
        match left {
            Some(at) => {
                moving.at = at;
                self.moving.push(Reverse(moving));
            }
            None => {
                if let Some(counters) = self.counters.get_mut(usize::from(moving.path)) {
                    counters.lost += 1;
                }
            }
        }
    }
}
