// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Experiments with flows between devices.

use std::time::{Duration, Instant};

use efa_fabric::Settings;
use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Cluster, Flow},
    cpu_seconds, peak_mib, proc_number,
};

/// Memory for a device, and for the state of both ends of a connection, in bytes, as measured with 512 and 1,024 devices.
const DEVICE: usize = 256 << 10;
const CONNECTION: usize = 1088;

/// Flows between devices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Experiment {
    network: Settings,
    seed: u64,
    devices: usize,
    /// Time after which it ends, even if messages are on the way.
    #[serde(default)]
    ms: Option<u64>,
    /// Without any, each device sends a message of 8 KiB to each other one.
    #[serde(default)]
    flows: Vec<Flow>,
}

/// Results of an experiment.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    /// Time at which each message has arrived, in microseconds, and the number of its flow.
    arrivals: Vec<(f64, usize)>,
    lost: u64,
    set_up_seconds: f64,
    seconds: f64,
    cpu_seconds: f64,
    peak_mib: usize,
}

impl Experiment {
    /// Runs it, unless it needs too much memory.
    pub(crate) fn run(self) -> Result<Results, String> {
        let (begun, devices) = (Instant::now(), self.devices);
        self.network.check()?;
        let flows = match self.flows.len() {
            0 => devices.saturating_mul(devices.saturating_sub(1)),
            flows => flows,
        };
        let bytes = flows.saturating_mul(CONNECTION);
        let needed = bytes.saturating_add(devices.saturating_mul(DEVICE)) >> 20;
        let available = proc_number("/proc/meminfo", "MemAvailable:") >> 10;
        if needed > available {
            return Err(format!(
                "{devices} devices need about {needed} MiB of memory, but {available} MiB are available"
            ));
        }
        let of_device = |from| (1..devices).map(move |other| (from, (from + other) % devices));
        let pairs = (0..devices).flat_map(of_device);
        let flows = match self.flows.is_empty() {
            true => pairs.map(|(from, to)| Flow::new(from, to, 8 << 10)).collect(),
            false => self.flows,
        };
        let mut cluster = Cluster::new(&self.network, self.seed, devices, flows);
        let set_up = begun.elapsed();
        let mut arrivals = Vec::new();
        let time = self.ms.map_or(Duration::MAX, Duration::from_millis);
        cluster.run(time, |at, flow| arrivals.push((at.as_secs_f64() * 1e6, flow)));
        let paths = cluster.net.fabric.paths().into_iter();
        Ok(Results {
            arrivals,
            lost: paths.map(|path| path.lost).sum(),
            set_up_seconds: set_up.as_secs_f64(),
            seconds: begun.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds(),
            peak_mib: peak_mib(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(devices: usize, flows: Vec<Flow>) -> Result<Results, String> {
        let network = Settings { delay_us: 5.0, link_gbps: 100.0, ..Settings::default() };
        let (seed, ms) = (1, None);
        Experiment { network, seed, devices, ms, flows }.run()
    }

    #[test]
    fn an_incast_takes_little_longer_than_the_link() {
        let flows = (1..16).map(|from| Flow::new(from, 0, 256 << 10)).collect();
        let results = experiment(16, flows).unwrap();
        let last = results.arrivals.last().unwrap().0;
        let ideal = f64::from(15 << 18) * 8.0 / 100e3;
        // No time is below that of the payload.
        assert!((1.0..=1.25).contains(&(last / ideal)), "{last} {ideal}");
    }

    #[test]
    fn all_devices_reach_all_others() {
        let results = experiment(40, Vec::new()).unwrap();
        assert_eq!((results.arrivals.len(), results.lost), (40 * 39, 0));
        let error = experiment(1 << 24, Vec::new()).unwrap_err();
        assert!(error.contains("16777216 devices need about"), "{error}");
    }
}
