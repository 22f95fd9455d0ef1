// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What moves: rates of each device and each path, as a table or as JSON lines.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use efa_fabric::PathCounters;
use efa_model::{Counters, Latencies, Latency};
use serde::Serialize;

use crate::control::{
    Client,
    protocol::{Counters as GetCounters, Latencies as GetLatencies, Sample, Times},
};

/// One line of the stream.
#[derive(Serialize)]
struct Record<'a> {
    /// Seconds since the first one.
    time: f64,
    #[serde(flatten)]
    sample: &'a Sample,
    /// Those of each device, of what was done since the last one.
    latencies: &'a [Latencies],
}

/// Shows every so often what the devices of the emulator at a control socket did since the last time.
///
/// # Errors
///
/// Those of the connection, and of the output.
pub(crate) fn watch(
    socket: &Path,
    interval: Duration,
    times: Option<u64>,
    json: bool,
) -> io::Result<()> {
    let mut client = Client::connect(socket)?;
    let start = Instant::now();
    let mut last: Option<(Instant, Sample)> = None;
    let mut told = Vec::new();
    let mut shown = 0;
    while times.is_none_or(|times| shown < times) {
        let sample = client.ask(&GetCounters {})?;
        let Times { devices } = client.ask(&GetLatencies {})?;
        let latencies = since(&devices, &told);
        told = devices;
        let now = Instant::now();
        if json {
            let record = Record {
                time: (now - start).as_secs_f64(),
                sample: &sample,
                latencies: &latencies,
            };
            let mut line = serde_json::to_vec(&record)?;
            line.push(b'\n');
            io::stdout().write_all(&line)?;
            shown += 1;
        } else if let Some((then, before)) = &last {
            let seconds = (now - *then).as_secs_f64();
            let mut table = table(before, &sample, seconds);
            table.push_str(&latency_table(&latencies, seconds));
            let mut output = io::stdout();
            if output.is_terminal() {
                // Home, and what was there is gone.
                output.write_all(b"\x1b[H\x1b[J")?;
            }
            output.write_all(table.as_bytes())?;
            output.flush()?;
            shown += 1;
        }
        last = Some((now, sample));
        if times.is_none_or(|times| shown < times) {
            thread::sleep(interval);
        }
    }
    Ok(())
}

/// A column: its head, what is counted, and by how much that is divided.
type Column<T> = (&'static str, fn(&T) -> u64, Unit);

/// What a rate is given in.
#[derive(Clone, Copy)]
enum Unit {
    One,
    Million,
}

/// The columns for devices.
const DEVICE: [Column<Counters>; 8] = [
    ("tx pkt/s", |device| device.tx_pkts, Unit::One),
    ("tx MB/s", |device| device.tx_bytes, Unit::Million),
    ("rx pkt/s", |device| device.rx_pkts, Unit::One),
    ("rx MB/s", |device| device.rx_bytes, Unit::Million),
    ("drops/s", |device| device.rx_drops, Unit::One),
    ("again/s", |device| device.retrans_pkts, Unit::One),
    ("late/s", |device| device.retrans_timeout_events, Unit::One),
    (
        "lost peers/s",
        |device| device.unresponsive_remote_events,
        Unit::One,
    ),
];

/// The columns for paths.
const PATH: [Column<PathCounters>; 3] = [
    ("pkt/s", |path| path.packets, Unit::One),
    ("MB/s", |path| path.bytes, Unit::Million),
    ("lost/s", |path| path.lost, Unit::One),
];

fn table(before: &Sample, after: &Sample, seconds: f64) -> String {
    let mut text = String::new();
    rows(
        &mut text,
        "device",
        &DEVICE,
        &before.devices,
        &after.devices,
        seconds,
    );
    text.push('\n');
    rows(
        &mut text,
        "path",
        &PATH,
        &before.paths,
        &after.paths,
        seconds,
    );
    text
}

fn rows<T: Default>(
    text: &mut String,
    what: &str,
    columns: &[Column<T>],
    before: &[T],
    after: &[T],
    seconds: f64,
) {
    let width = |head: &str| head.len().max(9) + 2;
    let _ = write!(text, "{what:<8}");
    for (head, _, _) in columns {
        let _ = write!(text, "{head:>width$}", width = width(head));
    }
    text.push('\n');
    let nothing = T::default();
    for (index, now) in after.iter().enumerate() {
        let then = before.get(index).unwrap_or(&nothing);
        let _ = write!(text, "{index:<8}");
        for (head, count, unit) in columns {
            // CAST: precise enough to be looked at.
            let rate = count(now).saturating_sub(count(then)) as f64 / seconds;
            let width = width(head);
            let _ = match unit {
                Unit::Million => write!(text, "{:>width$.1}", rate / 1e6),
                Unit::One => write!(text, "{rate:>width$.0}"),
            };
        }
        text.push('\n');
    }
}

/// The latencies of what was done between two times.
fn since(now: &[Latencies], then: &[Latencies]) -> Vec<Latencies> {
    let nothing = Latencies::default();
    let pairs = now.iter().enumerate();
    let pairs = pairs.map(|(index, now)| now.since(then.get(index).unwrap_or(&nothing)));
    pairs.collect()
}

/// A line for each kind of command and work request that there was, none if nothing was done.
fn latency_table(devices: &[Latencies], seconds: f64) -> String {
    let mut text = String::new();
    for (index, device) in devices.iter().enumerate() {
        let commands = device.commands.iter();
        let commands = commands.map(|(name, command)| (name, &command.latency));
        for (name, latency) in device.requests.iter().chain(commands) {
            latency_line(&mut text, index, name, latency, seconds);
        }
    }
    if text.is_empty() {
        return text;
    }
    let mut head = format!("\n{:<8}{:<24}", "device", "latency of");
    for column in ["1/s", "p50 us", "p99 us", "max us"] {
        let _ = write!(head, "{column:>11}");
    }
    format!("{head}\n{text}")
}

fn latency_line(text: &mut String, device: usize, name: &str, latency: &Latency, seconds: f64) {
    // CAST: precise enough to be looked at.
    let rate = latency.count as f64 / seconds;
    let _ = write!(text, "{device:<8}{name:<24}{rate:>11.0}");
    for ns in [latency.p50_ns, latency.p99_ns, latency.max_ns] {
        // CAST: likewise.
        let _ = write!(text, "{:>11.1}", ns as f64 / 1e3);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_rates() {
        let counters = |tx_pkts, tx_bytes| Counters {
            tx_pkts,
            tx_bytes,
            ..Counters::default()
        };
        let path = |lost| PathCounters {
            lost,
            ..PathCounters::default()
        };
        let before = Sample {
            devices: vec![counters(10, 1_000_000)],
            paths: vec![path(0)],
        };
        let after = Sample {
            devices: vec![counters(30, 5_000_000), counters(7, 0)],
            paths: vec![path(4)],
        };
        let table = table(&before, &after, 2.0);
        let lines: Vec<Vec<_>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1][..4], ["0", "10", "2.0", "0"]);
        assert_eq!(lines[2][..3], ["1", "4", "0.0"]);
        assert_eq!(lines[5], ["0", "0", "0.0", "2"]);
    }
}
