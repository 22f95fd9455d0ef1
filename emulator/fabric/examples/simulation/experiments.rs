// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The experiments of "A Cloud-Optimized Transport Protocol for Elastic and Scalable HPC" (IEEE Micro, 2020), and a large one.

use std::{
    fs,
    time::{Duration, Instant},
};

use efa_fabric::Settings;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Flow};

/// Rate of a server's link, and of an uplink, in Gbit/s.
const LINK_GBPS: f64 = 100.0;
const UPLINK_GBPS: f64 = 25.0;

/// Servers in each of two racks.
const SERVERS: usize = 8;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

/// Number of flows of an incast, and of the servers that send them.
const INCAST: usize = 48;
const SENDERS: usize = 4;

/// Number of flows of each server between racks.
const FLOWS: usize = 16;

/// Number of seeds for the random choice of delays and paths.
const SEEDS: u64 = 5;

/// Time limit that no experiment reaches.
const LONG: Duration = Duration::from_secs(100);

/// Memory for a device, and for the state of both ends of a connection, in bytes.
const DEVICE: usize = 512 << 10;
const CONNECTION: usize = 1 << 10;

/// Returns two racks, with changes as a JSON object. Their uplinks have twice the rate of their servers. These are many and slower
/// than the servers' links, so that the choice of a flow's uplink matters. bench/README.md has the origin of all values.
pub(crate) fn network(changes: &str) -> Result<Settings, String> {
    let own = Settings {
        // CAST: a small number.
        paths: (2.0 * SERVERS as f64 * LINK_GBPS / UPLINK_GBPS) as u16,
        delay_us: 5.0,
        jitter_us: 1.0,
        link_gbps: LINK_GBPS,
        path_gbps: UPLINK_GBPS,
        packet_ns: 100.0,
        buffer_kib: 3008,
        // CAST: a small number, too.
        rack: SERVERS as u16,
        ..Settings::default()
    };
    let parsed = serde_json::from_str::<Value>(changes).and_then(|changes| {
        let mut all = serde_json::to_value(own)?;
        for (name, value) in changes.as_object().into_iter().flatten() {
            all[name] = value.clone();
        }
        serde_json::from_value::<Settings>(all)
    });
    let settings = parsed.map_err(|error| error.to_string())?;
    settings.check().map(|()| settings)
}

/// Returns the ideal time of messages to one server: that of their payload on its link.
fn ideal(messages: usize, length: u32) -> Duration {
    let bytes = messages as f64 * f64::from(length);
    Duration::from_secs_f64(bytes * 8e-9 / LINK_GBPS)
}

/// Runs an experiment of the paper.
pub(crate) fn of_paper(name: &str, network: &Settings) -> Result<Value, String> {
    match name {
        "incast" => {
            let lengths = [64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB];
            let rows = lengths.map(|length| times(network, &incast(length, 1), INCAST, SEEDS));
            Ok(json!({ "network": network, "incast": rows }))
        }
        "persistent" => Ok(json!({ "persistent": [persistent(network, 500)] })),
        "racks" => Ok(json!({ "racks": [times(network, &racks(), FLOWS, SEEDS)] })),
        _ => Err(format!("there is no experiment {name}")),
    }
}

/// Returns the flows from each server of a rack to those of the other.
fn racks() -> Vec<Flow> {
    let flow = |flow| {
        let (server, program) = (flow % SERVERS, flow / SERVERS);
        let to = (
            SERVERS + program % SERVERS,
            server + program / SERVERS * SERVERS,
        );
        Flow::new((server, program), to, 2 * MIB)
    };
    (0..SERVERS * FLOWS).map(flow).collect()
}

/// Returns flows to one server of the other rack.
fn incast(length: u32, messages: u32) -> Vec<Flow> {
    let flow = |flow| Flow {
        messages,
        ..Flow::new((flow % SENDERS, flow / SENDERS), (SERVERS, flow), length)
    };
    (0..INCAST).map(flow).collect()
}

/// Starts flows at the same time, with `seeds` seeds. Returns the distribution of their times, relative to the ideal one of `together` flows.
fn times(network: &Settings, flows: &[Flow], together: usize, seeds: u64) -> Value {
    let length = flows[0].length;
    let ideal = ideal(together, length);
    let mut times = Vec::new();
    for seed in 1..=seeds {
        let mut cluster = Cluster::new(network, seed, 2 * SERVERS, flows.to_vec());
        cluster.run(LONG, |at, _| {
            times.push(at.as_secs_f64() / ideal.as_secs_f64())
        });
    }
    times.sort_by(f64::total_cmp);
    let part = |percent: usize| round(times[(times.len() - 1) * percent / 100]);
    json!({
        "transport": "srd",
        "bytes": length,
        "ideal_us": round(ideal.as_secs_f64() * 1e6),
        "median": part(50),
        "mean": round(times.iter().sum::<f64>() / times.len() as f64),
        "max": part(100),
        "cdf": (0..=100).map(part).collect::<Vec<_>>(),
    })
}

/// Returns the rate of each flow of an incast that does not end, over `ms` milliseconds.
fn persistent(network: &Settings, ms: u64) -> Value {
    const STEP: u64 = 10;
    const LENGTH: u32 = 64 * KIB;
    let mut gbps = vec![vec![0.0; (ms / STEP) as usize]; INCAST];
    let mut cluster = Cluster::new(network, 1, 2 * SERVERS, incast(LENGTH, u32::MAX));
    cluster.run(Duration::from_millis(ms), |at, flow| {
        if let Some(rate) = gbps[flow].get_mut(at.as_millis() as usize / STEP as usize) {
            *rate = round(*rate + f64::from(LENGTH) * 8e-6 / STEP as f64);
        }
    });
    json!({ "transport": "srd", "step_ms": STEP, "gbps": gbps })
}

/// Each of `devices` devices sends a message to each other one.
pub(crate) fn all_to_all(devices: usize) -> Result<Value, String> {
    const LENGTH: u32 = 8 * KIB;
    let messages = devices.saturating_mul(devices.saturating_sub(1));
    let needed = devices
        .saturating_mul(DEVICE)
        .saturating_add(messages.saturating_mul(CONNECTION))
        >> 20;
    let available = proc_number("/proc/meminfo", "MemAvailable:") >> 10;
    if messages == 0 || needed > available {
        return Err(format!(
            "{devices} devices need about {needed} MiB of memory, but {available} MiB are available"
        ));
    }
    let begun = Instant::now();
    let to = |from| {
        (1..devices).map(move |other| Flow::new((from, 0), ((from + other) % devices, 0), LENGTH))
    };
    let network = Settings {
        rack: 32,
        path_gbps: LINK_GBPS,
        ..network("{}")?
    };
    let mut cluster = Cluster::new(&network, 1, devices, (0..devices).flat_map(to).collect());
    let set_up = begun.elapsed();
    let mut took = Duration::ZERO;
    cluster.run(LONG, |at, _| took = at);
    let paths = cluster.net.fabric.paths();
    Ok(json!({
        "devices": devices,
        "messages": messages,
        "bytes": LENGTH,
        "simulated_us": round(took.as_secs_f64() * 1e6),
        "ideal_us": round(ideal(devices - 1, LENGTH).as_secs_f64() * 1e6),
        "lost": paths.iter().map(|path| path.lost).sum::<u64>(),
        "set_up_seconds": round(set_up.as_secs_f64()),
        "seconds": round(begun.elapsed().as_secs_f64()),
        "cpu_seconds": round(proc_number("/proc/self/schedstat", "") as f64 * 1e-9),
        "peak_mib": proc_number("/proc/self/status", "VmHWM:") >> 10,
    }))
}

/// Returns the number that follows `name` in a file of Linux, or 0.
pub(crate) fn proc_number(path: &str, name: &str) -> usize {
    let text = fs::read_to_string(path).unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let number = rest.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

pub(crate) fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incast_takes_little_longer_than_the_link() {
        let row = times(&network("{}").unwrap(), &incast(256 * KIB, 1), INCAST, 1);
        let most = row["max"].as_f64().unwrap();
        // No time is below that of the payload.
        assert!((1.0..=1.25).contains(&most), "{most}");
    }

    #[test]
    fn all_devices_reach_all_others() {
        let results = all_to_all(40).unwrap();
        assert_eq!(
            (&results["messages"], &results["lost"]),
            (&json!(40 * 39), &json!(0))
        );
        let error = all_to_all(1 << 24).unwrap_err();
        assert!(error.contains("16777216 devices need about"), "{error}");
    }
}
