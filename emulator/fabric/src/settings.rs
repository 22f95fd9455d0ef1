// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Settings of the network.

use std::{net::Ipv6Addr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::packet::Address;

/// Settings of the network. By default, no packet is lost or delayed, and no rate is limited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of paths between any two devices.
    pub paths: u16,
    /// Whether a connection sprays packets over all paths, or keeps to one, chosen at random when it opens.
    pub multipath: bool,
    /// Minimum delay of a packet, in microseconds.
    pub delay_us: f64,
    /// Maximum of the random addition to the delay, in microseconds. It makes packets overtake each other.
    pub jitter_us: f64,
    /// Fraction of packets that is lost, from 0 to 1.
    pub loss: f64,
    /// Minimum of the mean number of packets of a path that are lost one after the other, at least 1. `loss` stays the fraction of
    /// all packets: losses are Gilbert's ("Capacity of a Burst-Noise Channel", Bell System Technical Journal 39(5), 1960).
    pub burst: f64,
    /// Fraction of packets of SRD messages that the network duplicates, from 0 to 1.
    pub duplicate: f64,
    /// Fraction of packets with payload that arrive with one wrong bit, from 0 to 1. The error is not detected.
    pub flip: f64,
    /// Rate of each device's link, in Gbit/s; 0 means no limit.
    pub link_gbps: f64,
    /// Rate of each path, in Gbit/s; 0 means no limit.
    pub path_gbps: f64,
    /// Time that a device's card takes to send or receive a packet, in nanoseconds, in addition to that of its bytes on the link.
    pub packet_ns: f64,
    /// Size of the buffer before each path and before each receiver's link, in KiB. Packets that do not fit are lost.
    pub buffer_kib: u32,
    /// Time without a response after which a peer is given up, in seconds. Emulators on a busy host may take longer.
    pub silence_s: f64,
    /// Number of devices per rack, in the order of their attachment; 0 means no racks. With racks, the paths are the uplinks of
    /// each rack, with a queue for each direction. Packets within a rack use no path.
    pub rack: u16,
    /// Settings that differ on individual paths, indexed by the path's number.
    pub path: Vec<PathSettings>,
    /// Pairs of devices whose packets security groups deny.
    pub deny: Vec<Denied>,
}

/// Packets that a security group denies. The network drops them without a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Denied {
    /// GID of the sender.
    pub from: Ipv6Addr,
    /// GID of the receiver.
    pub to: Ipv6Addr,
    /// Whether packets in the other direction are denied, too.
    #[serde(default)]
    pub both: bool,
}

/// Settings that differ on one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PathSettings {
    /// Whether the path accepts packets and loses all of them.
    pub down: bool,
    /// Minimum delay of a packet, in microseconds.
    pub delay_us: Option<f64>,
    /// Maximum of an addition to the delay that rises from 0 and falls again within each `swing_ms`, in microseconds.
    pub swing_us: f64,
    /// Period of this addition, in milliseconds.
    pub swing_ms: f64,
    /// Fraction of packets that is lost, from 0 to 1.
    pub loss: Option<f64>,
}

impl Default for PathSettings {
    fn default() -> Self {
        Self { down: false, delay_us: None, swing_us: 0.0, swing_ms: 1000.0, loss: None }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            paths: 4,
            multipath: true,
            delay_us: 0.0,
            jitter_us: 0.0,
            loss: 0.0,
            burst: 1.0,
            duplicate: 0.0,
            flip: 0.0,
            link_gbps: 0.0,
            path_gbps: 0.0,
            packet_ns: 0.0,
            buffer_kib: 4096,
            silence_s: 2.0,
            rack: 0,
            path: Vec::new(),
            deny: Vec::new(),
        }
    }
}

impl Settings {
    /// The names of settings for [`named`](Self::named).
    pub const NAMES: [&'static str; 2] = ["ideal", "realistic"];

    /// Returns the settings with this name, if there are any.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ideal" => Some(Self::default()),
            // A network that reorders packets like SRD's, and loses none. SRD sprays packets over many of the equal paths between
            // two servers: 64, according to its authors ("A Cloud-Optimized Transport Protocol for Elastic and Scalable HPC", IEEE
            // Micro 40(6), 2020). They and AWS report a latency of some 15 microseconds for a small message, including cards and
            // software. So an idle path takes half of that, and a queue in a switch up to all of it. A packet of 8 KiB takes less
            // than a microsecond at 100 Gbit/s, so several later ones overtake it.
            "realistic" => Some(Self { paths: 64, delay_us: 8.0, jitter_us: 16.0, ..Self::default() }),
            _ => None,
        }
    }

    /// Maximum number of paths.
    pub const MAX_PATHS: u16 = 256;

    /// Maximum number of entries of `deny`.
    pub const MAX_DENIED: usize = 1024;

    /// Maximum of `silence_s`, in seconds.
    pub const MAX_SILENCE_S: f64 = 3600.0;

    /// Maximum of each delay, in microseconds.
    pub const MAX_DELAY_US: f64 = 10e6;

    /// Checks that all values are within their limits.
    ///
    /// # Errors
    ///
    /// A value is not. The error is a sentence about the first such value.
    pub fn check(&self) -> Result<(), String> {
        let paths = 1..=Self::MAX_PATHS;
        if !paths.contains(&self.paths) {
            return Err(format!("paths is {}, but must be between 1 and {}", self.paths, Self::MAX_PATHS));
        }
        let (part, delay) = (0.0..=1.0, 0.0..=Self::MAX_DELAY_US);
        let of_network = [
            ("loss", self.loss, &part),
            ("burst", self.burst, &(1.0..=1e6)),
            ("duplicate", self.duplicate, &part),
            ("flip", self.flip, &part),
            ("delay_us", self.delay_us, &delay),
            ("jitter_us", self.jitter_us, &delay),
            ("packet_ns", self.packet_ns, &delay),
            ("silence_s", self.silence_s, &(0.1..=Self::MAX_SILENCE_S)),
        ];
        let of_paths = self.path.iter().flat_map(|path| {
            [
                ("loss of a path", path.loss.unwrap_or(0.0), &part),
                ("delay_us of a path", path.delay_us.unwrap_or(0.0), &delay),
                ("swing_us of a path", path.swing_us, &delay),
                ("swing_ms of a path", path.swing_ms, &(0.001..=1e6)),
            ]
        });
        for (name, value, limits) in of_network.into_iter().chain(of_paths) {
            if !limits.contains(&value) {
                let (least, most) = (limits.start(), limits.end());
                return Err(format!("{name} must be between {least} and {most}"));
            }
        }
        for (name, rate) in [("link_gbps", self.link_gbps), ("path_gbps", self.path_gbps)] {
            if !(rate == 0.0 || (1e-6..=1e6).contains(&rate)) {
                return Err(format!("{name} must be 0 or between 0.000001 and 1000000"));
            }
        }
        if self.path.len() > usize::from(self.paths) {
            return Err(format!("there are settings for {} paths, but only {} paths", self.path.len(), self.paths));
        }
        if self.deny.len() > Self::MAX_DENIED {
            let (count, most) = (self.deny.len(), Self::MAX_DENIED);
            return Err(format!("deny has {count} entries, but the limit is {most}"));
        }
        Ok(())
    }

    /// Whether a security group denies packets from one address to another.
    pub(crate) fn denies(&self, from: Address, to: Address) -> bool {
        let (from, to) = (Ipv6Addr::from(from), Ipv6Addr::from(to));
        self.deny.iter().any(|denied| {
            let back = denied.both && (denied.from, denied.to) == (to, from);
            back || (denied.from, denied.to) == (from, to)
        })
    }

    /// Whether links, paths or cards have a limited rate.
    pub(crate) fn has_rate(&self) -> bool {
        self.link_gbps > 0.0 || self.path_gbps > 0.0 || self.packet_ns > 0.0
    }

    /// Returns the rate of a device's link, and the time that its card takes for a packet.
    pub(crate) fn card(&self) -> (f64, Duration) {
        (self.link_gbps, micros(self.packet_ns / 1e3))
    }

    /// Whether every packet arrives immediately and unchanged.
    pub fn is_ideal(&self) -> bool {
        let as_sent = |path: &PathSettings| {
            let values = [path.delay_us, path.loss, Some(path.swing_us)];
            !path.down && values.iter().flatten().all(|value| *value == 0.0)
        };
        let faults = [self.loss, self.duplicate, self.flip];
        !self.has_rate()
            && self.deny.is_empty()
            && [self.delay_us, self.jitter_us] == [0.0; 2]
            && faults == [0.0; 3]
            && self.path.iter().all(as_sent)
    }

    /// Returns the racks of two ports, or `None` if packets between them use no path. Without racks, all ports are in rack 0.
    pub(crate) fn racks(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        if self.rack == 0 {
            return Some((0, 0));
        }
        let size = usize::from(self.rack);
        let racks = (from / size, to / size);
        (racks.0 != racks.1).then_some(racks)
    }

    fn of(&self, path: u16) -> Option<&PathSettings> {
        self.path.get(usize::from(path))
    }

    /// Whether a path accepts packets and loses all of them.
    pub fn is_down(&self, path: u16) -> bool {
        self.of(path).is_some_and(|path| path.down)
    }

    pub(crate) fn loss_of(&self, path: u16) -> f64 {
        let own = self.of(path).and_then(|path| path.loss);
        own.unwrap_or(self.loss)
    }

    /// Returns the minimum delay of a path at a time.
    pub(crate) fn delay_of(&self, path: u16, now: Duration) -> Duration {
        let own = self.of(path);
        let least = own.and_then(|path| path.delay_us).unwrap_or(self.delay_us);
        let swing = own.map_or(0.0, |path| {
            let part = now.as_secs_f64() * 1e3 / path.swing_ms % 1.0;
            path.swing_us * (1.0 - (2.0 * part - 1.0).abs())
        });
        micros(least + swing)
    }
}

pub(crate) fn micros(us: f64) -> Duration {
    Duration::from_secs_f64(us / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_settings_are_valid() {
        for name in Settings::NAMES {
            let settings = Settings::named(name).unwrap();
            assert_eq!(settings.check(), Ok(()), "{name}");
            assert_eq!(settings.is_ideal(), name == "ideal");
        }
        assert_eq!(Settings::named("real"), None);
    }
}
