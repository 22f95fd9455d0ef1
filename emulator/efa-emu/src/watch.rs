// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What moves: rates of each device and each path, as a table or as JSON lines.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, BufReader, IsTerminal, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::lines::{Line, Lines};

/// Counters by name.
type Counters = BTreeMap<String, u64>;

/// What the control command `counters` tells.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Sample {
    devices: Vec<Counters>,
    paths: Vec<Counters>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Ok(Sample),
    Error(String),
}

/// One line of the stream.
#[derive(Serialize)]
struct Record<'a> {
    /// Seconds since the first one.
    time: f64,
    #[serde(flatten)]
    sample: &'a Sample,
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
    let mut stream = UnixStream::connect(socket)?;
    let mut replies = Lines::new(BufReader::new(stream.try_clone()?), usize::MAX);
    let start = Instant::now();
    let mut last: Option<(Instant, Sample)> = None;
    let mut shown = 0;
    while times.is_none_or(|times| shown < times) {
        stream.write_all(b"{\"command\":\"counters\"}\n")?;
        let Some(Line::Whole(reply)) = replies.next()? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let sample = match serde_json::from_slice(reply).map_err(io::Error::other)? {
            Reply::Ok(sample) => sample,
            Reply::Error(error) => return Err(io::Error::other(error)),
        };
        let now = Instant::now();
        if json {
            let record = Record {
                time: (now - start).as_secs_f64(),
                sample: &sample,
            };
            let mut line = serde_json::to_vec(&record)?;
            line.push(b'\n');
            io::stdout().write_all(&line)?;
            shown += 1;
        } else if let Some((then, before)) = &last {
            let table = table(before, &sample, (now - *then).as_secs_f64());
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

/// The columns for devices: their heads, and what is counted.
const DEVICE: [(&str, &str); 8] = [
    ("tx pkt/s", "tx_pkts"),
    ("tx MB/s", "tx_bytes"),
    ("rx pkt/s", "rx_pkts"),
    ("rx MB/s", "rx_bytes"),
    ("drops/s", "rx_drops"),
    ("again/s", "retrans_pkts"),
    ("late/s", "retrans_timeout_events"),
    ("lost peers/s", "unresponsive_remote_events"),
];

/// The columns for paths.
const PATH: [(&str, &str); 3] = [("pkt/s", "packets"), ("MB/s", "bytes"), ("lost/s", "lost")];

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

fn rows(
    text: &mut String,
    what: &str,
    columns: &[(&str, &str)],
    before: &[Counters],
    after: &[Counters],
    seconds: f64,
) {
    let width = |head: &str| head.len().max(9) + 2;
    let mut line = format!("{what:<8}");
    for (head, _) in columns {
        let _ = write!(line, "{head:>width$}", width = width(head));
    }
    text.push_str(&line);
    text.push('\n');
    let nothing = Counters::new();
    for (index, now) in after.iter().enumerate() {
        let then = before.get(index).unwrap_or(&nothing);
        let _ = write!(text, "{index:<8}");
        for (head, name) in columns {
            let count = |counters: &Counters| counters.get(*name).copied().unwrap_or(0);
            // CAST: precise enough to be looked at.
            let rate = count(now).saturating_sub(count(then)) as f64 / seconds;
            let width = width(head);
            let _ = if name.ends_with("bytes") {
                write!(text, "{:>width$.1}", rate / 1e6)
            } else {
                write!(text, "{rate:>width$.0}")
            };
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_rates() {
        let counters = |packets, bytes| {
            Counters::from([
                ("tx_pkts".to_owned(), packets),
                ("tx_bytes".to_owned(), bytes),
            ])
        };
        let before = Sample {
            devices: vec![counters(10, 1_000_000)],
            paths: vec![Counters::new()],
        };
        let after = Sample {
            devices: vec![counters(30, 5_000_000), counters(7, 0)],
            paths: vec![Counters::from([("lost".to_owned(), 4)])],
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
