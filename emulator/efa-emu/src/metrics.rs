// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Metrics for Prometheus: counters, gauges and latencies of devices and paths, in the OpenMetrics text format.

mod http;

use std::{fmt, path::PathBuf};

use efa_fabric::PathCounters;
use efa_model::{CommandTimes, Counters, Histogram, Profile, ResourceCounts, State, Times};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::control::Emulator;
pub(crate) use http::{MAX_CONNECTIONS, serve};

/// Prefix of the names of all metrics.
const PREFIX: &str = "efa_emu";

/// The labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// Values of all metrics at one time.
#[derive(Debug)]
struct Scrape {
    devices: Vec<Device>,
    paths: Vec<PathCounters>,
    remote_devices: usize,
    overflows: usize,
}

/// Values of all metrics of a device.
#[derive(Debug)]
struct Device {
    profile: Profile,
    socket: PathBuf,
    counters: Counters,
    state: State,
    times: Times,
}

impl Emulator {
    /// Returns all metrics in the OpenMetrics text format.
    ///
    /// # Errors
    ///
    /// None is known: the text is written to a string.
    pub fn metrics(&self) -> Result<String, fmt::Error> {
        let devices = self.devices().iter().map(|device| {
            let (counters, state, times) = device
                .function
                .with(|device, _, _| (device.counters(), device.state(), device.times().clone()));
            Device {
                profile: device.profile,
                socket: device.socket.clone(),
                counters,
                state,
                times,
            }
        });
        let scrape = Scrape {
            devices: devices.collect(),
            paths: self.runtime.paths(),
            remote_devices: self.runtime.remote_devices(),
            overflows: self.runtime.overflows(),
        };
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// A metric of a `T`: its name, its help text, its unit, and a function that reads it.
type Count<T> = (&'static str, &'static str, Option<Unit>, fn(&T) -> u64);

/// The statistics of a device.
const STATISTICS: [Count<Counters>; 23] = [
    ("tx", "Payload sent", Some(Unit::Bytes), |c| c.tx_bytes),
    ("tx_packets", "Packets sent", None, |c| c.tx_pkts),
    ("rx", "Payload received", Some(Unit::Bytes), |c| c.rx_bytes),
    ("rx_packets", "Packets received", None, |c| c.rx_pkts),
    (
        "rx_dropped_packets",
        "Packets received and dropped",
        None,
        |c| c.rx_drops,
    ),
    (
        "qkey_violations",
        "Packets received with the wrong Q_Key",
        None,
        |c| c.qkey_viol,
    ),
    ("send_work_requests", "Messages sent", None, |c| c.send_wrs),
    ("send", "Messages sent", Some(Unit::Bytes), |c| c.send_bytes),
    ("receive_work_requests", "Messages received", None, |c| {
        c.recv_wrs
    }),
    ("receive", "Messages received", Some(Unit::Bytes), |c| {
        c.recv_bytes
    }),
    ("rdma_read_work_requests", "RDMA reads", None, |c| {
        c.read_wrs
    }),
    ("rdma_read", "RDMA reads", Some(Unit::Bytes), |c| {
        c.read_bytes
    }),
    (
        "rdma_read_work_request_errors",
        "RDMA reads that failed",
        None,
        |c| c.read_wr_err,
    ),
    (
        "rdma_read_response",
        "Payload that peers have read by RDMA",
        Some(Unit::Bytes),
        |c| c.read_resp_bytes,
    ),
    ("rdma_write_work_requests", "RDMA writes", None, |c| {
        c.write_wrs
    }),
    ("rdma_write", "RDMA writes", Some(Unit::Bytes), |c| {
        c.write_bytes
    }),
    (
        "rdma_write_work_request_errors",
        "RDMA writes that failed",
        None,
        |c| c.write_wr_err,
    ),
    (
        "rdma_write_receive",
        "Payload that peers have written by RDMA",
        Some(Unit::Bytes),
        |c| c.write_recv_bytes,
    ),
    (
        "retransmitted_packets",
        "Retransmitted packets",
        None,
        |c| c.retrans_pkts,
    ),
    (
        "retransmitted",
        "Payload of retransmitted packets",
        Some(Unit::Bytes),
        |c| c.retrans_bytes,
    ),
    (
        "retransmission_timeouts",
        "Packets that were not acknowledged in time",
        None,
        |c| c.retrans_timeout_events,
    ),
    (
        "unresponsive_remotes",
        "Peers that did not respond",
        None,
        |c| c.unresponsive_remote_events,
    ),
    (
        "impaired_remote_connections",
        "Paths that became avoided after repeated losses",
        None,
        |c| c.impaired_remote_conn_events,
    ),
];

/// Further counters of a device.
const COUNTERS: [Count<State>; 11] = [
    (
        "protocol_errors",
        "Protocol violations by the driver",
        None,
        |s| s.protocol_errors,
    ),
    (
        "cq_overflows",
        "Completion queues that overflowed",
        None,
        |s| s.program_errors.cq_overflows,
    ),
    (
        "regions_in_use",
        "Memory regions that were deregistered while work requests used them",
        None,
        |s| s.program_errors.regions_in_use,
    ),
    ("duplicate_ids", "Duplicate work request ids", None, |s| {
        s.program_errors.duplicate_ids
    }),
    (
        "malformed_work_requests",
        "Malformed work requests",
        None,
        |s| s.program_errors.malformed_requests,
    ),
    ("function_resets", "Resets of the PCI function", None, |s| {
        s.function_resets
    }),
    ("register_reads", "Reads of registers", None, |s| {
        s.register_reads
    }),
    (
        "stale_doorbells",
        "Doorbells of queues that a reset had destroyed",
        None,
        |s| s.stale_doorbells,
    ),
    ("fault_hits", "Hits of fault rules", None, |s| s.faults_hit),
    ("fast_registrations", "Fast registrations", None, |s| {
        s.fast_regs
    }),
    ("fast_invalidations", "Fast invalidations", None, |s| {
        s.fast_invs
    }),
];

/// Gauges of a device.
const GAUGES: [Count<State>; 5] = [
    (
        "device_ready",
        "Whether the device reports that it is ready",
        None,
        |s| s.ready.into(),
    ),
    (
        "device_plugged",
        "Whether the device is plugged into its slot",
        None,
        |s| s.plugged.into(),
    ),
    ("device_dead", "Whether the device is dead", None, |s| {
        s.dead.into()
    }),
    (
        "admin_commands_in_flight",
        "Admin commands in flight",
        None,
        |s| gauge(s.admin.in_flight),
    ),
    ("fault_rules", "Number of fault rules", None, |s| {
        gauge(s.faults)
    }),
];

/// Function that reads the number of objects of a kind.
type Present = fn(&ResourceCounts) -> usize;

/// The objects of a device, by kind.
const OBJECTS: [(&str, Present); 9] = [
    ("pd", |r| r.pd),
    ("uar", |r| r.uar),
    ("eq", |r| r.eq),
    ("ah", |r| r.ah),
    ("mr", |r| r.mr),
    ("mr_page", |r| r.mr_pages),
    ("cq", |r| r.cq),
    ("qp", |r| r.qp),
    ("event_counter", |r| r.event_counter),
];

/// Counters of a path.
const PATHS: [Count<PathCounters>; 3] = [
    ("path_packets", "Packets sent on the path", None, |p| {
        p.packets
    }),
    (
        "path",
        "Payload of the packets sent on the path",
        Some(Unit::Bytes),
        |p| p.bytes,
    ),
    ("path_lost_packets", "Packets lost on the path", None, |p| {
        p.lost
    }),
];

fn gauge(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn device_label(index: usize) -> (&'static str, String) {
    ("device", index.to_string())
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
        one(
            encoder,
            GAUGE,
            "build_info",
            "Version of the program",
            [(vec![version], 1)],
        )?;
        let info = self.devices().map(|(index, device)| {
            let id = format!("{:x}", device.profile.pci_device());
            let socket = ("socket", device.socket.display().to_string());
            (vec![device_label(index), ("profile", id), socket], 1)
        });
        one(
            encoder,
            GAUGE,
            "device_info",
            "Profile and socket of the device",
            info,
        )?;

        for count in STATISTICS {
            self.of_devices(encoder, COUNTER, count, |device| &device.counters)?;
        }
        for count in COUNTERS {
            self.of_devices(encoder, COUNTER, count, |device| &device.state)?;
        }
        for count in GAUGES {
            self.of_devices(encoder, GAUGE, count, |device| &device.state)?;
        }
        let objects = self.devices().flat_map(|(index, device)| {
            OBJECTS.into_iter().map(move |(kind, count)| {
                let labels = vec![device_label(index), ("kind", kind.to_owned())];
                (labels, gauge(count(&device.state.resources)))
            })
        });
        one(encoder, GAUGE, "objects", "Number of objects", objects)?;

        let completed = self
            .commands()
            .map(|(labels, commands)| (labels, commands.times.count()));
        let help = "Completed admin commands";
        one(encoder, COUNTER, "admin_commands", help, completed)?;
        let failed = self
            .commands()
            .map(|(labels, commands)| (labels, commands.failed));
        let help = "Admin commands that completed with an error status";
        one(encoder, COUNTER, "admin_command_failures", help, failed)?;
        let times = self
            .commands()
            .map(|(labels, commands)| (labels, &commands.times));
        let help = "Duration of admin commands, from the doorbell to the completion";
        durations(encoder, "admin_command_duration", help, times)?;
        let requests = self.devices().flat_map(|(index, device)| {
            device.times.requests().map(move |(name, times)| {
                let labels = vec![device_label(index), ("operation", name.to_owned())];
                (labels, times)
            })
        });
        let help = "Duration of successful work requests, from the doorbell to the completion";
        durations(encoder, "work_request_duration", help, requests)?;

        for (name, help, unit, value) in PATHS {
            let paths = self.paths.iter().enumerate();
            let paths =
                paths.map(|(number, path)| (vec![("path", number.to_string())], value(path)));
            several(encoder, COUNTER, (name, help, unit), paths)?;
        }
        let help = "Packets dropped for lack of room at the receiver";
        let lost = [(vec![], gauge(self.overflows))];
        one(encoder, COUNTER, "overflowed_packets", help, lost)?;
        let help = "Devices of other emulators on the network";
        let remote = [(vec![], gauge(self.remote_devices))];
        one(encoder, GAUGE, "remote_devices", help, remote)
    }
}

impl Scrape {
    fn devices(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.devices.iter().enumerate()
    }

    /// Admin commands of all devices.
    fn commands(&self) -> impl Iterator<Item = (Labels, &CommandTimes)> {
        self.devices().flat_map(|(index, device)| {
            device.times.commands.iter().map(move |(name, commands)| {
                let labels = vec![device_label(index), ("opcode", (*name).to_owned())];
                (labels, commands)
            })
        })
    }

    /// Encodes a metric of each device.
    fn of_devices<T>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        kind: MetricType,
        (name, help, unit, value): Count<T>,
        part: fn(&Device) -> &T,
    ) -> fmt::Result {
        let samples = self
            .devices()
            .map(|(index, device)| (vec![device_label(index)], value(part(device))));
        several(encoder, kind, (name, help, unit), samples)
    }
}

const COUNTER: MetricType = MetricType::Counter;
const GAUGE: MetricType = MetricType::Gauge;

/// Encodes a metric without a unit.
fn one(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, u64)>,
) -> fmt::Result {
    several(encoder, kind, (name, help, None), samples)
}

/// Encodes a metric with its samples.
fn several(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    (name, help, unit): (&str, &str, Option<Unit>),
    samples: impl IntoIterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
    for (labels, value) in samples {
        if labels.is_empty() {
            encode_value(&mut family, kind, value)?;
        } else {
            encode_value(&mut family.encode_family(&labels)?, kind, value)?;
        }
    }
    Ok(())
}

fn encode_value(sample: &mut MetricEncoder<'_>, kind: MetricType, value: u64) -> fmt::Result {
    match kind {
        MetricType::Counter => sample.encode_counter::<NoLabelSet, _, u64>(&value, None),
        _ => sample.encode_gauge(&value),
    }
}

/// Encodes durations as histograms.
fn durations<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, &'a Histogram)>,
) -> fmt::Result {
    let kind = MetricType::Histogram;
    let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
    for (labels, times) in samples {
        let buckets = times.buckets().map(|(limit, count)| {
            let limit = limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
            (limit, count)
        });
        let (sum, count) = (times.sum().as_secs_f64(), times.count());
        family
            .encode_family(&labels)?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}
