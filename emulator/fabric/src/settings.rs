// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What the network is like.

use std::{net::Ipv6Addr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::packet::Address;

/// What the network is like. By default nothing is lost, late or limited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many paths there are between any two devices.
    pub paths: u16,
    /// Whether a connection uses all paths, or always the same one, which its addresses choose.
    pub multipath: bool,
    /// How long a packet takes at least, in µs.
    pub delay_us: f64,
    /// How much longer it may take at random, in µs. So packets overtake each other.
    pub jitter_us: f64,
    /// The part of packets that is lost.
    pub loss: f64,
    /// The part of packets with payload in which a bit is wrong on arrival, which nothing notices.
    pub flip: f64,
    /// Rate of the link of each device, in Gbit/s; 0 means that it is not limited.
    pub link_gbps: f64,
    /// Rate of each path, in Gbit/s; 0 means that it is not limited.
    pub path_gbps: f64,
    /// What may wait for a link before packets are lost, in KiB.
    pub buffer_kib: u32,
    /// After how long without any answer a peer is given up, in seconds. On a busy host, an emulator of others may take longer.
    pub silence_s: f64,
    /// How many devices a rack has, in the order in which they were attached; 0 means that there are no racks. With racks, the
    /// paths are the uplinks of each, with a queue for each direction, and packets within a rack take none.
    pub rack: u16,
    /// What is different on some paths, by their numbers.
    pub path: Vec<PathSettings>,
    /// What security groups do not let through.
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
    /// Whether this is so in the other direction, too.
    #[serde(default)]
    pub both: bool,
}

/// What is different on one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PathSettings {
    /// Whether it takes packets and loses them all.
    pub down: bool,
    /// How long a packet takes at least, in µs.
    pub delay_us: Option<f64>,
    /// The part of packets that is lost.
    pub loss: Option<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            paths: 4,
            multipath: true,
            delay_us: 0.0,
            jitter_us: 0.0,
            loss: 0.0,
            flip: 0.0,
            link_gbps: 0.0,
            path_gbps: 0.0,
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

    /// Settings that have a name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ideal" => Some(Self::default()),
            "realistic" => Some(Self::realistic()),
            _ => None,
        }
    }

    /// A network that reorders as that of SRD does, and loses nothing.
    ///
    /// SRD sprays packets over many of the equal paths between two servers: 64, according to its authors ("A Cloud-Optimized
    /// Transport Protocol for Elastic and Scalable HPC", IEEE Micro 40(6), 2020). They and AWS report a latency of some 15 µs for a
    /// small message, cards and software included. So a path through idle switches takes half of that, and a queue in one of them
    /// as much again. A packet of 8 KiB takes less than a microsecond at 100 Gbit/s: several later ones overtake each packet.
    fn realistic() -> Self {
        Self {
            paths: 64,
            delay_us: 8.0,
            jitter_us: 16.0,
            ..Self::default()
        }
    }

    /// Most paths.
    pub const MAX_PATHS: u16 = 256;

    /// Most pairs of addresses that `deny` has.
    pub const MAX_DENIED: usize = 1024;

    /// The longest silence in seconds.
    pub const MAX_SILENCE_S: f64 = 3600.0;

    /// The longest delay in µs.
    pub const MAX_DELAY_US: f64 = 10e6;

    /// Checks that all values make sense.
    ///
    /// # Errors
    ///
    /// One sentence about the first that does not.
    pub fn check(&self) -> Result<(), String> {
        let paths = 1..=Self::MAX_PATHS;
        if !paths.contains(&self.paths) {
            return Err(format!(
                "paths is {}, but there can be 1 to {}",
                self.paths,
                Self::MAX_PATHS
            ));
        }
        let parts = [("loss", Some(self.loss)), ("flip", Some(self.flip))];
        let delays = [
            ("delay_us", Some(self.delay_us)),
            ("jitter_us", Some(self.jitter_us)),
        ];
        let path_parts = self.path.iter().map(|path| ("loss of a path", path.loss));
        let path_delays = self
            .path
            .iter()
            .map(|path| ("delay_us of a path", path.delay_us));
        for (name, value) in parts.into_iter().chain(path_parts) {
            if value.is_some_and(|value| !(0.0..=1.0).contains(&value)) {
                return Err(format!("{name} must be between 0 and 1"));
            }
        }
        for (name, value) in delays.into_iter().chain(path_delays) {
            if value.is_some_and(|value| !(0.0..=Self::MAX_DELAY_US).contains(&value)) {
                return Err(format!(
                    "{name} must be between 0 and {}",
                    Self::MAX_DELAY_US
                ));
            }
        }
        for (name, rate) in [("link_gbps", self.link_gbps), ("path_gbps", self.path_gbps)] {
            if !(rate == 0.0 || (1e-6..=1e6).contains(&rate)) {
                return Err(format!("{name} must be 0 or between 0.000001 and 1000000"));
            }
        }
        if !(0.1..=Self::MAX_SILENCE_S).contains(&self.silence_s) {
            return Err(format!(
                "silence_s must be between 0.1 and {}",
                Self::MAX_SILENCE_S
            ));
        }
        if self.path.len() > usize::from(self.paths) {
            return Err(format!(
                "there are settings for {} paths, but only {} paths",
                self.path.len(),
                self.paths
            ));
        }
        if self.deny.len() > Self::MAX_DENIED {
            let (count, most) = (self.deny.len(), Self::MAX_DENIED);
            return Err(format!("deny has {count} entries, but there can be {most}"));
        }
        Ok(())
    }

    /// Whether a security group lets nothing through from one address to another.
    pub(crate) fn denies(&self, from: Address, to: Address) -> bool {
        let (from, to) = (Ipv6Addr::from(from), Ipv6Addr::from(to));
        self.deny.iter().any(|denied| {
            let back = denied.both && (denied.from, denied.to) == (to, from);
            back || (denied.from, denied.to) == (from, to)
        })
    }

    /// Whether anything limits what can be sent at a time.
    pub(crate) fn has_rate(&self) -> bool {
        self.link_gbps > 0.0 || self.path_gbps > 0.0
    }

    /// Whether every packet arrives at once and as it was sent.
    pub fn is_ideal(&self) -> bool {
        let as_sent = |path: &PathSettings| {
            !path.down && path.delay_us.unwrap_or(0.0) == 0.0 && path.loss.unwrap_or(0.0) == 0.0
        };
        let parts = [self.delay_us, self.jitter_us, self.loss, self.flip];
        !self.has_rate()
            && self.deny.is_empty()
            && parts == [0.0; 4]
            && self.path.iter().all(as_sent)
    }

    /// The racks of two ports, if packets between them take a path.
    pub(crate) fn racks(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        if self.rack == 0 {
            return Some((0, 0));
        }
        let size = usize::from(self.rack);
        let racks = (from / size, to / size);
        (racks.0 != racks.1).then_some(racks)
    }

    pub(crate) fn is_down(&self, path: u16) -> bool {
        self.path
            .get(usize::from(path))
            .is_some_and(|path| path.down)
    }

    pub(crate) fn loss_of(&self, path: u16) -> f64 {
        let own = self.path.get(usize::from(path)).and_then(|path| path.loss);
        own.unwrap_or(self.loss)
    }

    pub(crate) fn delay_of(&self, path: u16) -> Duration {
        let own = self
            .path
            .get(usize::from(path))
            .and_then(|path| path.delay_us);
        micros(own.unwrap_or(self.delay_us))
    }
}

pub(crate) fn micros(us: f64) -> Duration {
    Duration::from_secs_f64(us / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_have_a_name_make_sense() {
        for name in Settings::NAMES {
            let settings = Settings::named(name).unwrap();
            assert_eq!(settings.check(), Ok(()), "{name}");
            assert_eq!(settings.is_ideal(), name == "ideal");
        }
        assert_eq!(Settings::named("real"), None);
    }

    #[test]
    fn a_path_that_is_down_is_not_ideal() {
        let with = |down| {
            let path = PathSettings {
                down,
                ..PathSettings::default()
            };
            Settings {
                path: vec![PathSettings::default(), path],
                ..Settings::default()
            }
        };
        assert!(with(false).is_ideal());
        assert!(!with(true).is_ideal());
    }
}
