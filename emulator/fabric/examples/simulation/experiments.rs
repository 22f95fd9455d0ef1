// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The experiments of "A Cloud-Optimized Transport Protocol for Elastic and Scalable HPC" (IEEE Micro, 2020), and a large one.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use efa_fabric::Settings;
use serde_json::{Value, json};

use crate::{
    devices::{Cluster, Share},
    tcp::{MSS, Tcp},
    traffic::{Arrived, Flow, completion_times},
};

/// Rate of a server's link, and of an uplink, in Gbit/s.
const LINK_GBPS: f64 = 100.0;
const UPLINK_GBPS: f64 = 25.0;

/// Servers in each of two racks.
const SERVERS: usize = 8;

/// Bytes of a packet's headers on the wire.
const HEADER: u32 = 100;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

/// Number of flows of an incast, and of the servers that send them.
const INCAST: usize = 48;
const SENDERS: usize = 4;

/// Seeds for the random choice of delays and paths.
const SEEDS: RangeInclusive<u64> = 1..=5;

/// Time limit that no experiment reaches.
const LONG: Duration = Duration::from_secs(100);

const TRANSPORTS: [Transport; 2] = [Transport::Srd, Transport::Tcp];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Srd,
    Tcp,
}

/// Completion times of flows, relative to the ideal time.
struct Times {
    transport: Transport,
    length: u32,
    ideal: Duration,
    /// In ascending order.
    times: Vec<f64>,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Srd => "srd",
            Self::Tcp => "tcp",
        }
    }

    /// Runs flows; returns the arrivals.
    fn run(self, seed: u64, flows: &[Flow], time: Duration) -> Vec<Arrived> {
        let (network, ports) = (network(), 2 * SERVERS);
        match self {
            Self::Srd => Cluster::new(&network, seed, ports, flows, Share::Flow).run(time),
            Self::Tcp => Tcp::new(&network, seed, ports, flows).run(time),
        }
    }

    /// Runs flows once per seed; returns their completion times.
    fn times(self, seeds: RangeInclusive<u64>, flows: &[Flow], ideal: Duration) -> Times {
        let of_seed = |seed| completion_times(flows, &self.run(seed, flows, LONG));
        let ratio = |time: Duration| time.as_secs_f64() / ideal.as_secs_f64();
        let mut times: Vec<_> = seeds.flat_map(of_seed).map(ratio).collect();
        times.sort_by(f64::total_cmp);
        Times {
            transport: self,
            length: flows[0].length,
            ideal,
            times,
        }
    }
}

impl Times {
    fn part(&self, percent: usize) -> f64 {
        self.times[(self.times.len() - 1) * percent / 100]
    }

    fn mean(&self) -> f64 {
        self.times.iter().sum::<f64>() / self.times.len() as f64
    }

    fn json(&self) -> Value {
        json!({
            "transport": self.transport.name(),
            "bytes": self.length,
            "ideal_us": round(self.ideal.as_secs_f64() * 1e6),
            "median": round(self.part(50)),
            "mean": round(self.mean()),
            "max": round(self.part(100)),
            "cdf": (0..=100).map(|percent| round(self.part(percent))).collect::<Vec<_>>(),
        })
    }
}

/// Two racks, with uplinks of twice the total rate of their servers. The uplinks are many and slower than the servers' links, so
/// that the choice of a flow's uplink matters. The jitter of up to a microsecond per packet models switches. Without jitter,
/// flows could stay in step forever.
fn network() -> Settings {
    Settings {
        // CAST: a small number.
        paths: (2.0 * SERVERS as f64 * LINK_GBPS / UPLINK_GBPS) as u16,
        delay_us: 5.0,
        jitter_us: 1.0,
        link_gbps: LINK_GBPS,
        path_gbps: UPLINK_GBPS,
        buffer_kib: 2048,
        // CAST: a small number, too.
        rack: SERVERS as u16,
        ..Settings::default()
    }
}

/// Returns the minimum time that messages take over one link of a server. It includes the time until the first packet arrives and
/// is acknowledged on an idle network.
fn ideal(messages: u64, length: u32) -> Duration {
    let packets = u64::from(length.div_ceil(MSS));
    let bytes = messages * (u64::from(length) + packets * u64::from(HEADER));
    // Time until the first packet is queued at the last link, and until its acknowledgement arrives.
    let way = |bytes: u32| f64::from(bytes) * 8e-9 * (1.0 / LINK_GBPS + 2.0 / UPLINK_GBPS);
    let ack = way(HEADER) + f64::from(HEADER) * 8e-9 / LINK_GBPS;
    let delays = 2.0 * network().delay_us * 1e-6;
    let link = bytes as f64 * 8e-9 / LINK_GBPS;
    Duration::from_secs_f64(way(length.min(MSS) + HEADER) + link + ack + delays)
}

/// The three experiments.
pub(crate) fn all() -> Value {
    json!({
        "network": network(),
        "incast": incast(),
        "persistent": persistent(),
        "racks": racks(),
    })
}

/// Flows to one server of the other rack, which all start at the same time.
pub(crate) fn incast() -> Value {
    let lengths = [64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB];
    let rows = lengths
        .into_iter()
        .flat_map(|length| TRANSPORTS.map(|transport| incast_of(transport, SEEDS, length).json()));
    rows.collect::<Vec<_>>().into()
}

fn incast_of(transport: Transport, seeds: RangeInclusive<u64>, length: u32) -> Times {
    let flow = |flow| Flow::once(flow % SENDERS, SERVERS, length);
    let flows: Vec<_> = (0..INCAST).map(flow).collect();
    transport.times(seeds, &flows, ideal(INCAST as u64, length))
}

/// 16 flows from each server of one rack to those of the other.
pub(crate) fn racks() -> Value {
    TRANSPORTS
        .map(|transport| racks_of(transport, SEEDS).json())
        .to_vec()
        .into()
}

fn racks_of(transport: Transport, seeds: RangeInclusive<u64>) -> Times {
    const FLOWS: usize = 16;
    let flow = |flow| {
        let to = SERVERS + flow / SERVERS % SERVERS;
        Flow::once(flow % SERVERS, to, 2 * MIB)
    };
    let flows: Vec<_> = (0..SERVERS * FLOWS).map(flow).collect();
    transport.times(seeds, &flows, ideal(FLOWS as u64, 2 * MIB))
}

/// An incast that never ends: the rate of each flow over time.
pub(crate) fn persistent() -> Value {
    const TIME: Duration = Duration::from_millis(500);
    const STEP: Duration = Duration::from_millis(10);
    let gbps = |bytes: &u64| round(*bytes as f64 * 8e-9 / STEP.as_secs_f64());
    let of_transport = |transport: Transport| {
        let bytes = persistent_of(transport, TIME, STEP);
        let of_flow = |bytes: Vec<u64>| bytes.iter().map(gbps).collect::<Vec<_>>();
        json!({
            "transport": transport.name(),
            "step_ms": STEP.as_millis() as u64,
            "gbps": bytes.into_iter().map(of_flow).collect::<Vec<_>>(),
        })
    };
    TRANSPORTS.map(of_transport).to_vec().into()
}

/// Returns the bytes of each flow that arrive in each step.
fn persistent_of(transport: Transport, time: Duration, step: Duration) -> Vec<Vec<u64>> {
    let flow = |flow| Flow {
        messages: 1 << 30,
        ..Flow::once(flow % SENDERS, SERVERS, 64 * KIB)
    };
    let flows: Vec<_> = (0..INCAST).map(flow).collect();
    let steps = (time.as_nanos() / step.as_nanos()) as usize;
    let mut bytes = vec![vec![0; steps]; INCAST];
    for arrived in transport.run(1, &flows, time) {
        let at = (arrived.at.as_nanos() / step.as_nanos()) as usize;
        if at < steps {
            bytes[arrived.flow][at] += arrived.bytes;
        }
    }
    bytes
}

/// Each of `devices` devices sends a message to each other device.
pub(crate) fn all_to_all(devices: usize) -> Value {
    const LENGTH: u32 = 8 * KIB;
    let begun = Instant::now();
    let to = |from: usize| (1..devices).map(move |other| (from, (from + other) % devices));
    let flows: Vec<_> = (0..devices)
        .flat_map(to)
        .map(|(from, to)| Flow::once(from, to, LENGTH))
        .collect();
    let network = Settings {
        rack: 32,
        path_gbps: LINK_GBPS,
        ..network()
    };
    let mut cluster = Cluster::new(&network, 1, devices, &flows, Share::Device);
    let set_up = begun.elapsed();
    let arrived = cluster.run(LONG);
    assert_eq!(arrived.len(), flows.len());
    let last = arrived.iter().map(|arrived| arrived.at).max();
    let took = last.unwrap_or_default();
    json!({
        "devices": devices,
        "messages": flows.len(),
        "bytes": LENGTH,
        "simulated_us": round(took.as_secs_f64() * 1e6),
        "ideal_us": round(ideal(devices as u64 - 1, LENGTH).as_secs_f64() * 1e6),
        "lost": cluster.lost(),
        "set_up_seconds": round(set_up.as_secs_f64()),
        "seconds": round(begun.elapsed().as_secs_f64()),
        "cpu_seconds": cpu_seconds().map(round),
        "peak_mib": peak_mib(),
    })
}

/// Returns the peak memory of the program in MiB, as reported by Linux.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib >> 10)
}

/// Returns the CPU time of the program in seconds, as reported by Linux.
fn cpu_seconds() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let ns: f64 = status.split_whitespace().next()?.parse().ok()?;
    Some(ns * 1e-9)
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incast_takes_no_longer_than_the_link_needs() {
        for length in [64 * KIB, 256 * KIB, 2 * MIB] {
            let times = incast_of(Transport::Srd, 1..=1, length);
            assert_eq!(times.times.len(), INCAST);
            let most = times.part(100);
            // A time below the ideal one would show an error in one of them.
            assert!((0.99..=1.05).contains(&most), "{length}: {most}");
        }
    }

    #[test]
    fn flows_between_racks_do_not_wait_for_each_other() {
        let srd = racks_of(Transport::Srd, 1..=1);
        let (median, most) = (srd.part(50), srd.part(100));
        let mean = racks_of(Transport::Tcp, 1..=1).mean();
        assert!(median <= 1.15 && most < mean, "{median}, {most}, {mean}");
        // Connections that each keep to one path would take longer than this.
        assert!(most <= 1.1, "{most}");
    }

    #[test]
    fn tcp_loses_packets_in_an_incast() {
        let most = incast_of(Transport::Tcp, 1..=1, 2 * MIB).part(100);
        assert!((3.0..=20.0).contains(&most), "{most}");
    }

    #[test]
    fn flows_of_an_incast_share_the_link_fairly() {
        let (time, step) = (Duration::from_millis(60), Duration::from_millis(20));
        let bytes = persistent_of(Transport::Srd, time, step);
        let last = bytes.iter().map(|bytes| bytes[2]);
        let fair = last.clone().sum::<u64>() as f64 / INCAST as f64;
        assert!(fair * INCAST as f64 * 8.0 > 0.97 * LINK_GBPS * 1e9 * step.as_secs_f64());
        for bytes in last {
            let part = bytes as f64 / fair;
            assert!((0.75..=1.25).contains(&part), "{part}");
        }
    }

    #[test]
    fn all_devices_reach_all_others() {
        let results = all_to_all(40);
        assert_eq!(
            (&results["messages"], &results["lost"]),
            (&json!(40 * 39), &json!(0))
        );
        let took = results["simulated_us"].as_f64().unwrap();
        assert!(took < 1.5 * results["ideal_us"].as_f64().unwrap(), "{took}");
    }
}
