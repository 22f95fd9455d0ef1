// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The network: links of devices, and paths between them.
//!
//! A packet uses the sender's link, one path and the receiver's link. Each of these sends packets one after the other at its
//! rate. Paths and receivers' links drop packets that do not fit into their buffers. With racks, a path consists of two links:
//! the uplink of the sender's rack, and the downlink of the receiver's rack.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering as Atomic},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use fastrand::Rng;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Settings, settings::micros};

/// Bytes of a packet's headers: Ethernet, IP and the transport.
const HEADER: u32 = 100;

/// Counters of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PathCounters {
    /// Packets sent over the path.
    pub packets: u64,
    /// Their payload in bytes.
    pub bytes: u64,
    /// Packets lost on the path.
    pub lost: u64,
}

/// Unit of transmission: a packet, or several packets of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Number of packets.
    pub(crate) packets: u32,
    /// Their payload in bytes.
    pub(crate) bytes: u32,
}

/// All paths are down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPath;

/// A network that carries packets of type `P`.
#[derive(Debug)]
pub(crate) struct Network<P> {
    settings: ArcSwap<Settings>,
    /// Counters of [`Settings::MAX_PATHS`] paths.
    counters: Box<[Counters]>,
    state: Mutex<State<P>>,
}

#[derive(Debug, Default)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    fn add(&self, load: Load) {
        self.packets.fetch_add(load.packets.into(), Atomic::Relaxed);
        self.bytes.fetch_add(load.bytes.into(), Atomic::Relaxed);
    }
}

/// State for delays and random choices.
#[derive(Debug)]
struct State<P> {
    random: Rng,
    /// Whether each path has lost its last packet. The last entry is that of packets that use no path.
    lost: Vec<bool>,
    up: Vec<Link>,
    /// Links of the paths. With racks, each rack has an uplink and a downlink per path.
    paths: Vec<Link>,
    down: Vec<Link>,
    /// Packets in transit, by the time of their next stage and a number.
    moving: BTreeMap<(Duration, u64), Box<Moving<P>>>,
    sequence: u64,
}

/// Link that sends packets one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// Time at which all packets so far are sent.
    free: Duration,
}

/// A packet in transit.
#[derive(Debug)]
struct Moving<P> {
    next: Stage,
    /// The racks of its sender and receiver, if it uses a path.
    racks: Option<(usize, usize)>,
    to: usize,
    path: u16,
    load: Load,
    packet: P,
}

/// Next stage of a packet in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Path,
    /// The downlink of a path between racks.
    Descent,
    Receiver,
    Arrival,
}

impl Link {
    /// Accepts a packet at time `now`. Returns the time at which its last byte leaves, or `None` if the buffer is full. A card at
    /// the link's end takes the time `card` for the packet, before it takes the next one.
    fn take(&mut self, now: Duration, bytes: u32, (gbps, card): (f64, Duration), buffer_kib: u32) -> Option<Duration> {
        let seconds = |bytes: f64| match gbps {
            0.0 => Duration::ZERO,
            _ => Duration::from_secs_f64(bytes * 8.0 / (gbps * 1e9)),
        };
        let start = self.free.max(now);
        if gbps > 0.0 && start - now > seconds(f64::from(buffer_kib) * 1024.0) {
            return None;
        }
        self.free = start + card + seconds(f64::from(bytes + HEADER));
        Some(self.free)
    }
}

impl<P> Network<P> {
    /// Maximum memory per packet in transit, in bytes: an allocation, and its part of a node of a tree, which is at least half full.
    pub(crate) const KEPT: usize = size_of::<Moving<P>>() + 32 + 96;

    /// Creates a network without ports. The same seed gives the same losses and delays.
    pub(crate) fn new(settings: Settings, seed: u64) -> Self {
        let paths = usize::from(Settings::MAX_PATHS);
        Self {
            settings: ArcSwap::from_pointee(settings),
            counters: (0..paths).map(|_| Counters::default()).collect(),
            state: Mutex::new(State {
                random: Rng::with_seed(seed),
                lost: vec![false; paths + 1],
                up: Vec::new(),
                paths: Vec::new(),
                down: Vec::new(),
                moving: BTreeMap::new(),
                sequence: 0,
            }),
        }
    }

    /// Sets the number of ports, which are numbered from 0.
    pub(crate) fn set_ports(&self, ports: usize) {
        let mut state = self.state.lock();
        state.up.resize(ports, Link::default());
        state.down.resize(ports, Link::default());
    }

    /// Returns the settings of the network.
    pub(crate) fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Changes the settings of the network, for packets sent from now on.
    pub(crate) fn set(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Returns the counters of each path.
    pub(crate) fn counters(&self) -> Vec<PathCounters> {
        let paths = usize::from(self.settings().paths);
        let of_path = |counters: &Counters| PathCounters {
            packets: counters.packets.load(Atomic::Relaxed),
            bytes: counters.bytes.load(Atomic::Relaxed),
            lost: counters.lost.load(Atomic::Relaxed),
        };
        self.counters.iter().take(paths).map(of_path).collect()
    }

    /// Returns a random number below `end`.
    pub(crate) fn below(&self, end: u32) -> u32 {
        self.state.lock().random.u32(..end.max(1))
    }

    /// Decides at random whether a packet is duplicated.
    pub(crate) fn duplicates(&self) -> bool {
        let part = self.settings().duplicate;
        part > 0.0 && self.state.lock().random.f64() < part
    }

    /// Decides at random whether a payload gets a bit error; returns the byte's offset, and the bit's number in that byte.
    pub(crate) fn flips(&self, length: u32) -> Option<(u32, u8)> {
        let part = self.settings().flip;
        if part == 0.0 || length == 0 {
            return None;
        }
        let random = &mut self.state.lock().random;
        (random.f64() < part).then(|| (random.u32(..length), random.u8(..8)))
    }

    /// Counts packets that are delivered without being sent.
    pub(crate) fn count(&self, (from, to): (usize, usize), path: u16, load: Load) {
        let settings = self.settings();
        if settings.racks(from, to).is_some() {
            self.counters[usize::from(path % settings.paths.max(1))].add(load);
        }
    }

    /// Sends a packet, or several as one, from one port to another. Returns the time at which its last byte leaves the sender, and
    /// the packet, if it has already arrived. Fails if the packet uses a path, and all paths are down.
    pub(crate) fn send(
        &self,
        now: Duration,
        (from, to): (usize, usize),
        path: u16,
        load: Load,
        packet: P,
    ) -> Result<(Duration, Option<P>), NoPath> {
        let Load { packets, bytes } = load;
        let settings = self.settings();
        let path = path % settings.paths.max(1);
        let racks = settings.racks(from, to);
        if racks.is_some() && (0..settings.paths).all(|path| settings.is_down(path)) {
            return Err(NoPath);
        }
        let counters = &self.counters[usize::from(path)];
        if racks.is_some() {
            counters.add(load);
        }
        if settings.is_ideal() {
            return Ok((now, Some(packet)));
        }
        let mut state = self.state.lock();
        let (loss, is_down, delay) = match racks {
            Some(_) => (settings.loss_of(path), settings.is_down(path), settings.delay_of(path, now)),
            None => (settings.loss, false, micros(settings.delay_us)),
        };
        // Packets that exceed a sender's rate wait in its memory, so none are lost there.
        let left = state.up[from].take(now, bytes, settings.card(), u32::MAX).unwrap_or(now);
        let place = racks.map_or(usize::from(Settings::MAX_PATHS), |_| path.into());
        if is_down || loss > 0.0 && state.loses(place, loss, settings.burst) {
            if racks.is_some() {
                counters.lost.fetch_add(packets.into(), Atomic::Relaxed);
            }
            return Ok((left, None));
        }
        let limited = settings.has_rate();
        let jitter = match settings.jitter_us {
            0.0 => Duration::ZERO,
            most => micros(most * state.random.f64()),
        };
        let delay = delay + jitter;
        if !limited && delay.is_zero() {
            return Ok((left, Some(packet)));
        }
        let moving = Moving {
            next: match racks {
                _ if !limited => Stage::Arrival,
                Some(_) => Stage::Path,
                None => Stage::Receiver,
            },
            racks,
            to,
            path,
            load,
            packet,
        };
        state.sequence += 1;
        let at = (left + delay, state.sequence);
        state.moving.insert(at, Box::new(moving));
        Ok((left, None))
    }

    /// Takes the next packet that has arrived.
    pub(crate) fn receive(&self, now: Duration) -> Option<P> {
        let settings = self.settings();
        let mut state = self.state.lock();
        while let Some(first) = state.moving.first_entry() {
            let (at, sequence) = *first.key();
            if at > now {
                break;
            }
            let mut moving = first.remove();
            if moving.next == Stage::Arrival {
                return Some(moving.packet);
            }
            if let Some(at) = state.advance(&settings, at, &mut moving) {
                state.moving.insert((at, sequence), moving);
            } else if moving.racks.is_some() {
                let lost = &self.counters[usize::from(moving.path)].lost;
                lost.fetch_add(moving.load.packets.into(), Atomic::Relaxed);
            }
        }
        None
    }

    /// Returns the time at which the next packet arrives, or reaches its next stage.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.moving.first_key_value().map(|((at, _), _)| *at)
    }
}

impl<P> State<P> {
    /// Decides at random whether a packet at a place is lost, the more likely after a loss the longer bursts are.
    fn loses(&mut self, place: usize, loss: f64, burst: f64) -> bool {
        let again = loss.max(1.0 - 1.0 / burst);
        let part = match self.lost[place] {
            true => again,
            false if loss < 1.0 => loss * (1.0 - again) / (1.0 - loss),
            false => 1.0,
        };
        self.lost[place] = self.random.f64() < part;
        self.lost[place]
    }

    /// Moves a packet to its next stage; returns its time, or `None` if the packet is dropped because a buffer is full.
    fn advance(&mut self, settings: &Settings, at: Duration, moving: &mut Moving<P>) -> Option<Duration> {
        let (path, racks) = (moving.path, moving.racks.unwrap_or_default());
        let path_rate = (settings.path_gbps, Duration::ZERO);
        let (link, rate, next) = match moving.next {
            Stage::Arrival => return Some(at),
            Stage::Path if settings.rack > 0 => {
                let link = self.path(2 * racks.0, path);
                (link, path_rate, Stage::Descent)
            }
            Stage::Path => (self.path(0, path), path_rate, Stage::Receiver),
            Stage::Descent => {
                let link = self.path(2 * racks.1 + 1, path);
                (link, path_rate, Stage::Receiver)
            }
            Stage::Receiver => {
                let link = self.down.get_mut(moving.to)?;
                (link, settings.card(), Stage::Arrival)
            }
        };
        moving.next = next;
        link.take(at, moving.load.bytes, rate, settings.buffer_kib)
    }

    /// Returns the link of a path in a direction: twice the rack's number, plus 1 for a downlink.
    fn path(&mut self, direction: usize, path: u16) -> &mut Link {
        let index = direction * usize::from(Settings::MAX_PATHS) + usize::from(path);
        if index >= self.paths.len() {
            self.paths.resize(index + 1, Link::default());
        }
        &mut self.paths[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { packets: 1, bytes: 9900 };

    /// Returns the arrival times, in nanoseconds, of packets that are sent at the same time, each with its ends and its path.
    fn arrivals(settings: &Settings, sent: &[(usize, usize, u16)]) -> Vec<u128> {
        let network = Network::new(settings.clone(), 1);
        network.set_ports(8);
        for (number, (from, to, path)) in sent.iter().enumerate() {
            let sent = network.send(Duration::ZERO, (*from, *to), *path, LOAD, number);
            assert!(sent.unwrap().1.is_none());
        }
        let mut at = vec![0; sent.len()];
        while let Some(now) = network.next_due() {
            while let Some(number) = network.receive(now) {
                at[number] = now.as_nanos();
            }
        }
        at
    }

    fn settings(json: &str) -> Settings {
        serde_json::from_str(json).unwrap()
    }

    /// Each packet takes 10 microseconds on each link.
    #[test]
    fn paths_are_the_uplinks_of_racks() {
        let racks = settings(r#"{"rack":4,"link_gbps":8.0,"path_gbps":8.0}"#);
        let no_racks = settings(r#"{"link_gbps":8.0,"path_gbps":8.0}"#);
        for (settings, sent, expected) in [
            // Each uses two links of devices, and two of a path: in two directions, over two paths, and over one.
            (&racks, [(0, 4, 0), (4, 0, 0)], [40, 40]),
            (&racks, [(0, 4, 0), (1, 5, 1)], [40, 40]),
            (&racks, [(0, 4, 0), (1, 5, 0)], [40, 50]),
            // In a rack, and without racks.
            (&racks, [(0, 1, 0), (2, 3, 0)], [20, 20]),
            (&no_racks, [(0, 4, 0), (4, 0, 0)], [30, 40]),
        ] {
            let expected = expected.map(|us| us * 1000);
            assert_eq!(arrivals(settings, &sent), expected, "{sent:?}");
        }
    }

    #[test]
    fn a_card_takes_time_for_each_packet() {
        let settings = Settings { packet_ns: 100.0, ..Settings::default() };
        // Two packets of a sender, and one of another. The cards of sender and receiver work at the same time.
        let sent = [(0, 4, 0), (0, 4, 1), (1, 4, 0)];
        assert_eq!(arrivals(&settings, &sent), [200, 400, 300]);
    }

    #[test]
    fn losses_come_in_bursts() {
        for (loss, burst, in_a_row) in [(0.1, 1.0, 1.0 / 0.9), (0.1, 8.0, 8.0), (1.0, 4.0, 2e5)] {
            let network = Network::new(Settings { loss, burst, ..Settings::default() }, 1);
            network.set_ports(2);
            let arrives = |_| {
                let sent = network.send(Duration::ZERO, (0, 1), 0, LOAD, ());
                sent.unwrap().1.is_some()
            };
            let arrived: Vec<_> = (0..200_000).map(arrives).collect();
            let lost = arrived.iter().filter(|arrived| !**arrived).count() as f64;
            let bursts = arrived.split(|arrived| *arrived).filter(|lost| !lost.is_empty());
            let (part, mean) = (lost / 2e5, lost / bursts.count() as f64);
            assert!((part / loss - 1.0).abs() < 0.1, "{loss} {burst}: {part}");
            assert!((mean / in_a_row - 1.0).abs() < 0.1, "{loss} {burst}: {mean}");
        }
    }

    #[test]
    fn the_delay_of_a_path_rises_and_falls() {
        let settings = settings(r#"{"delay_us":5.0,"path":[{},{"swing_us":100.0,"swing_ms":2.0}]}"#);
        let at = |us| settings.delay_of(1, Duration::from_micros(us)).as_micros();
        assert_eq!([0, 500, 1000, 1500, 2000].map(at), [5, 55, 105, 55, 5]);
        assert_eq!(settings.delay_of(0, Duration::from_millis(1)).as_micros(), 5);
        assert!(!settings.is_ideal());
    }

    #[test]
    fn a_packet_within_a_rack_needs_no_path() {
        let settings = settings(r#"{"rack":4,"link_gbps":8.0,"path":[{"down":true}]}"#);
        let network = Network::new(settings, 1);
        network.set_ports(8);
        for ends in [(0, 1), (0, 4)] {
            network.send(Duration::ZERO, ends, 0, LOAD, ends).unwrap();
        }
        let later = Duration::from_secs(1);
        assert_eq!(network.receive(later), Some((0, 1)));
        assert_eq!(network.receive(later), None);
        let counters = network.counters()[0];
        assert_eq!((counters.packets, counters.lost), (1, 1));
    }
}
