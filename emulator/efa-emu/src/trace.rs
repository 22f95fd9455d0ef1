// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace: one line for each operation of a device, like system calls in strace.
//!
//! Under a device's lock, events are only queued. A thread formats and writes their lines, see [`Outbox`].

mod filter;

use std::{
    collections::VecDeque,
    fmt::Write,
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use efa_model::{TraceEvent, TraceKind};
use efa_vfio::Observer;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use self::filter::Rule;
use crate::{
    outbox::{Batch, Outbox, Work},
    output::Output,
};

/// Limit on the lines of a device that are kept for the control command `trace`.
const MAX_RECENT: usize = 16 << 10;

/// Number of the newest events that are always kept, for snapshots.
const LAST: usize = 256;

/// Limit in bytes on lines that are combined into one write, which is atomic for pipes (PIPE_BUF).
const CHUNK: usize = 4096;

/// Options of the trace.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TraceOptions {
    /// Prints each admin command, register read, reset and event to this file, or to the standard output if it is `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Traces only these kinds, of one device or of all: admin, registers, resets, events, data, work, errors, operator, all.
    ///
    /// Several of these options add up. `work` stands for each work request and completion, which are only traced if it is named.
    #[arg(long, value_name = "[DEVICE:]KIND,...", requires = "trace")]
    trace_filter: Vec<Rule>,
}

/// The trace of all devices.
#[derive(Clone, Default)]
pub(crate) struct Trace {
    outbox: Option<Arc<Outbox<Event>>>,
    filter: Arc<[Rule]>,
    /// Indexed by device.
    kept: Arc<Mutex<Vec<Arc<Mutex<Kept>>>>>,
}

/// An event of a device, and its time.
type Event = (Duration, TraceEvent);

/// Events of a device that are kept for snapshots and for the control command `trace`.
#[derive(Default)]
struct Kept {
    /// The newest events, which are always kept.
    last: VecDeque<Event>,
    /// Whether a client has ever asked for events.
    is_wanted: bool,
    events: VecDeque<TraceEvent>,
    /// Number of older events that were dropped.
    lost: usize,
}

/// Events of a device since the last request for them.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Recent {
    /// One line for each event, without time and device.
    lines: Vec<String>,
    /// For each line, the hexadecimal bytes of its command, with zeros for what differs between runs. Empty if it is no command.
    wire: Vec<String>,
    /// Number of older lines that were dropped.
    lost: usize,
}

impl Kept {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        if event.kind() == TraceKind::Work {
            return;
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back((now, event.clone()));
        if !self.is_wanted {
            return;
        }
        if self.events.len() == MAX_RECENT {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event.clone());
    }
}

impl Trace {
    /// Returns a trace without output.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Returns a trace of so many devices, and the work of its writer thread, if it has a file. Times in the file count from
    /// `start`.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    pub(crate) fn new(
        options: &TraceOptions,
        devices: usize,
        start: Instant,
    ) -> io::Result<(Self, Option<Work>)> {
        let mut trace = Self {
            filter: options.trace_filter.clone().into(),
            ..Self::none()
        };
        let mut writing: Option<Work> = None;
        if let Some(path) = &options.trace {
            let mut output = Output::open(path, CHUNK)?;
            let outbox = Arc::new(Outbox::new(devices));
            trace.outbox = Some(Arc::clone(&outbox));
            let mut line = String::new();
            writing = Some(Box::new(move || {
                outbox.work("trace", |batch| write(batch, start, &mut line, &mut output));
            }));
        }
        Ok((trace, writing))
    }

    /// Returns the kept events of the device with this index.
    fn kept(&self, device: usize) -> Arc<Mutex<Kept>> {
        let mut all = self.kept.lock();
        if all.len() <= device {
            all.resize_with(device + 1, Arc::default);
        }
        Arc::clone(&all[device])
    }

    /// Returns an observer of the device with this index.
    pub(crate) fn observer(&self, device: usize) -> Box<dyn Observer> {
        let accepts = |kind| filter::accepts(&self.filter, device, kind);
        Box::new(OneDevice {
            wants_work: self.outbox.is_some() && accepts(TraceKind::Work),
            trace: self.clone(),
            kept: self.kept(device),
            device,
        })
    }

    /// Returns the events of a device since the last call for it. No events are kept for this before the first call.
    pub(crate) fn take_recent(&self, device: usize) -> Recent {
        let kept = self.kept(device);
        let mut kept = kept.lock();
        kept.is_wanted = true;
        let events = std::mem::take(&mut kept.events);
        let lost = std::mem::take(&mut kept.lost);
        // A thread that holds the device's lock may wait for this one.
        drop(kept);
        Recent {
            lines: events.iter().map(ToString::to_string).collect(),
            wire: events
                .iter()
                .map(|event| event.wire().unwrap_or_default())
                .collect(),
            lost,
        }
    }

    /// Returns the lines of the newest events of a device, with their times.
    pub(crate) fn last(&self, device: usize) -> Vec<String> {
        let last = self.kept(device).lock().last.clone();
        let line = |(now, event): &Event| format!("{:.6} {event}", now.as_secs_f64());
        last.iter().map(line).collect()
    }

    /// Writes all pending lines. Waits no longer than `most` for the reader.
    pub(crate) fn finish(&self, most: Duration) {
        if let Some(outbox) = &self.outbox {
            outbox.finish(most);
        }
    }
}

/// Observer of one device.
struct OneDevice {
    trace: Trace,
    kept: Arc<Mutex<Kept>>,
    device: usize,
    wants_work: bool,
}

impl Observer for OneDevice {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        self.kept.lock().note(now, event);
        let Some(outbox) = &self.trace.outbox else {
            return;
        };
        if filter::accepts(&self.trace.filter, self.device, event.kind()) {
            outbox.push(self.device, event.heap_size(), || (now, event.clone()));
        }
    }

    fn wants_work(&self) -> bool {
        self.wants_work
    }
}

/// Writes the lines of a batch.
fn write(
    batch: &Batch<Event>,
    start: Instant,
    line: &mut String,
    output: &mut Output,
) -> io::Result<()> {
    let mut put = |now: Duration, device, event: &dyn std::fmt::Display| {
        line.clear();
        // Writes to a string do not fail.
        let _ = writeln!(line, "{:12.6} {device} {event}", now.as_secs_f64());
        output.put(line.as_bytes())
    };
    for (device, (now, event)) in &batch.items {
        put(*now, device, event)?;
    }
    for (device, lost) in &batch.lost {
        let what = format!("lost {lost}, as this trace was not written in time");
        put(start.elapsed(), device, &what)?;
    }
    output.flush()
}
