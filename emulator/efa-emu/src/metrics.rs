// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Metrics for Prometheus: counters, gauges and latencies of devices and paths, in the OpenMetrics text format.

mod http;

use std::fmt::{self, Display, Write};

use efa_model::Histogram;
use serde_json::{Value, json};

use crate::control::Emulator;
pub(crate) use http::{MAX_CONNECTIONS, serve};

/// The metrics that are numbers in the state of each device, each path, or the network. Each has its place there, kind, name and
/// help text. The name ends in the unit, if there is one.
const NUMBERS: &str = "\
device /counters/tx_bytes counter tx_bytes Payload sent
device /counters/tx_pkts counter tx_packets Packets sent
device /counters/rx_bytes counter rx_bytes Payload received
device /counters/rx_pkts counter rx_packets Packets received
device /counters/rx_drops counter rx_dropped_packets Packets received and dropped
device /counters/qkey_viol counter qkey_violations Packets received with the wrong Q_Key
device /counters/send_wrs counter send_work_requests Messages sent
device /counters/send_bytes counter send_bytes Messages sent
device /counters/recv_wrs counter receive_work_requests Messages received
device /counters/recv_bytes counter receive_bytes Messages received
device /counters/read_wrs counter rdma_read_work_requests RDMA reads
device /counters/read_bytes counter rdma_read_bytes RDMA reads
device /counters/read_wr_err counter rdma_read_work_request_errors RDMA reads that failed
device /counters/read_resp_bytes counter rdma_read_response_bytes Payload that peers have read by RDMA
device /counters/write_wrs counter rdma_write_work_requests RDMA writes
device /counters/write_bytes counter rdma_write_bytes RDMA writes
device /counters/write_wr_err counter rdma_write_work_request_errors RDMA writes that failed
device /counters/write_recv_bytes counter rdma_write_receive_bytes Payload that peers have written by RDMA
device /counters/retrans_pkts counter retransmitted_packets Retransmitted packets
device /counters/retrans_bytes counter retransmitted_bytes Payload of retransmitted packets
device /counters/retrans_timeout_events counter retransmission_timeouts Packets that were not acknowledged in time
device /counters/unresponsive_remote_events counter unresponsive_remotes Peers that did not respond
device /counters/impaired_remote_conn_events counter impaired_remote_connections Paths that became avoided after repeated losses
device /state/protocol_errors counter protocol_errors Protocol violations by the driver
device /state/program_errors/cq_overflows counter cq_overflows Completion queues that overflowed
device /state/program_errors/regions_in_use counter regions_in_use Memory regions that were deregistered while work requests used them
device /state/program_errors/duplicate_ids counter duplicate_ids Duplicate work request ids
device /state/program_errors/malformed_requests counter malformed_work_requests Malformed work requests
device /state/function_resets counter function_resets Resets of the PCI function
device /state/register_reads counter register_reads Reads of registers
device /state/stale_doorbells counter stale_doorbells Doorbells of queues that a reset had destroyed
device /state/faults_hit counter fault_hits Hits of fault rules
device /state/fast_regs counter fast_registrations Fast registrations
device /state/fast_invs counter fast_invalidations Fast invalidations
device /state/ready gauge device_ready Whether the device reports that it is ready
device /state/plugged gauge device_plugged Whether the device is plugged into its slot
device /state/dead gauge device_dead Whether the device is dead
device /state/admin/in_flight gauge admin_commands_in_flight Admin commands in flight
device /state/faults gauge fault_rules Number of fault rules
path /packets counter path_packets Packets sent on the path
path /bytes counter path_bytes Payload of the packets sent on the path
path /lost counter path_lost_packets Packets lost on the path
network /overflows counter overflowed_packets Packets dropped for lack of room at the receiver
network /remote_devices gauge remote_devices Devices of other emulators on the network
";

/// The counts of objects that do not include each other, in `resources` of the state.
const OBJECTS: [&str; 9] = ["pd", "uar", "eq", "ah", "mr", "mr_pages", "cq", "qp", "event_counter"];

impl Emulator {
    /// Returns all metrics in the OpenMetrics text format.
    ///
    /// # Errors
    ///
    /// A number is missing, which the tests rule out.
    pub fn metrics(&self) -> Result<String, fmt::Error> {
        let mut text = Text::default();
        text.family("gauge", "build_info", "Version of the program")?;
        text.sample("", &[("version", env!("CARGO_PKG_VERSION"))], 1)?;
        text.family("gauge", "device_info", "Profile and socket of the device")?;
        let (mut trees, mut times) = (Vec::new(), Vec::new());
        for (index, device) in self.devices().iter().enumerate() {
            let (counters, state, taken) =
                device.function.with(|device, _, _| (device.counters(), device.state(), device.times().clone()));
            trees.push(json!({ "counters": counters, "state": state }));
            times.push((index.to_string(), taken));
            let profile = format!("{:x}", device.profile.pci_device());
            let socket = device.socket.display().to_string();
            let labels = [("device", &*index.to_string()), ("profile", &profile), ("socket", &socket)];
            text.sample("", &labels, 1)?;
        }
        let network = json!(self.network());
        let paths = network["paths"].as_array().map_or(&[][..], Vec::as_slice);
        for row in NUMBERS.lines() {
            let mut words = row.splitn(5, ' ');
            let [of, place, kind, name, help] = [(); 5].map(|()| words.next().unwrap_or_default());
            text.family(kind, name, help)?;
            let suffix = if kind == "counter" { "_total" } else { "" };
            let trees = match of {
                "device" => &trees,
                "path" => paths,
                _ => {
                    text.sample(suffix, &[], number(network.pointer(place))?)?;
                    continue;
                }
            };
            for (index, tree) in trees.iter().enumerate() {
                let value = number(tree.pointer(place))?;
                text.sample(suffix, &[(of, &index.to_string())], value)?;
            }
        }
        text.family("gauge", "objects", "Number of objects")?;
        for (tree, (device, _)) in trees.iter().zip(&times) {
            for kind in OBJECTS {
                let value = number(tree["state"]["resources"].get(kind))?;
                // The label is a singular.
                let labels = [("device", &**device), ("kind", kind.trim_end_matches('s'))];
                text.sample("", &labels, value)?;
            }
        }
        let commands = times.iter().flat_map(|(device, times)| {
            let labels = move |opcode| [("device", &**device), ("opcode", opcode)];
            times.commands.iter().map(move |(opcode, it)| (labels(opcode), it))
        });
        text.family("counter", "admin_commands", "Completed admin commands")?;
        for (labels, commands) in commands.clone() {
            text.sample("_total", &labels, commands.times.count())?;
        }
        let help = "Admin commands that completed with an error status";
        text.family("counter", "admin_command_failures", help)?;
        for (labels, commands) in commands.clone() {
            text.sample("_total", &labels, commands.failed)?;
        }
        let help = "Duration of admin commands, from the doorbell to the completion";
        text.family("histogram", "admin_command_duration_seconds", help)?;
        for (labels, commands) in commands {
            text.histogram(labels, &commands.times)?;
        }
        let help = "Duration of successful work requests, from the doorbell to the completion";
        text.family("histogram", "work_request_duration_seconds", help)?;
        for (device, times) in &times {
            for (operation, times) in times.requests() {
                text.histogram([("device", &**device), ("operation", operation)], times)?;
            }
        }
        Ok(text.text + "# EOF\n")
    }
}

fn number(value: Option<&Value>) -> Result<u64, fmt::Error> {
    match value {
        Some(Value::Bool(is_set)) => Ok((*is_set).into()),
        value => value.and_then(Value::as_u64).ok_or(fmt::Error),
    }
}

/// Metrics in the OpenMetrics text format.
#[derive(Default)]
struct Text {
    text: String,
    /// Name of the current family.
    name: String,
}

impl Text {
    fn family(&mut self, kind: &str, name: &str, help: &str) -> fmt::Result {
        self.name = format!("efa_emu_{name}");
        let name = &self.name;
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
        match name.rsplit('_').next() {
            Some(unit @ ("bytes" | "seconds")) => writeln!(self.text, "# UNIT {name} {unit}"),
            _ => Ok(()),
        }
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> fmt::Result {
        write!(self.text, "{}{suffix}", self.name)?;
        for (index, (name, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(self.text, "{before}{name}=\"{value}\"")?;
        }
        let after = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{after} {value}")
    }

    fn histogram(&mut self, labels: [(&str, &str); 2], times: &Histogram) -> fmt::Result {
        let [first, second] = labels;
        let mut count = 0;
        for (limit, in_bucket) in times.buckets() {
            count += in_bucket;
            let limit = limit.map_or("+Inf".into(), |limit| limit.as_secs_f64().to_string());
            self.sample("_bucket", &[first, second, ("le", &limit)], count)?;
        }
        self.sample("_sum", &labels, times.sum().as_secs_f64())?;
        self.sample("_count", &labels, count)
    }
}
