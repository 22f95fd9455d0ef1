// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace: one line for each thing a device does, as strace prints system calls.
//!
//! Under a device's lock a thing is only noted; a thread makes a line of it and writes that, see [`Outbox`].

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

/// Most lines of a device that are kept for who asks for them.
const MAX_RECENT: usize = 16 << 10;

/// How many of the newest are kept in any case, for snapshots.
const LAST: usize = 256;

/// Most bytes of lines that are written at once. A pipe takes that whole.
const CHUNK: usize = 4096;

/// How the trace is written.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TraceOptions {
    /// Prints each admin command, register read, reset and event to this file, or to the standard output if it is `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Traces only these kinds, of one device or of all: admin, registers, resets, events, data, work, errors, operator, all.
    ///
    /// Several of these options add up. `work` is each work request and completion, and only traced if it is named.
    #[arg(long, value_name = "[DEVICE:]KIND,...", requires = "trace")]
    trace_filter: Vec<Rule>,
}

/// Where the lines of all devices go.
#[derive(Clone, Default)]
pub(crate) struct Trace {
    outbox: Option<Arc<Outbox<Event>>>,
    filter: Arc<[Rule]>,
    /// By device.
    kept: Arc<Mutex<Vec<Arc<Mutex<Kept>>>>>,
}

/// Something that a device did, and when.
type Event = (Duration, TraceEvent);

/// What is kept of a device for who asks.
#[derive(Default)]
struct Kept {
    /// The newest, whoever asks.
    last: VecDeque<Event>,
    /// Whether somebody has ever asked.
    is_wanted: bool,
    events: VecDeque<TraceEvent>,
    /// How many older ones were not kept.
    lost: usize,
}

/// What a device did since somebody last asked.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Recent {
    /// One for each thing, without time and device.
    lines: Vec<String>,
    /// For each of them the bytes of the command, without what differs from run to run; empty if it is no command.
    wire: Vec<String>,
    /// How many older ones were not kept.
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
    /// A trace that goes nowhere.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// A trace of so many devices, and the work of a thread that writes it if it goes anywhere. Times in the file are since
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

    /// What is kept of the device with this index.
    fn kept(&self, device: usize) -> Arc<Mutex<Kept>> {
        let mut all = self.kept.lock();
        if all.len() <= device {
            all.resize_with(device + 1, Arc::default);
        }
        Arc::clone(&all[device])
    }

    /// Who takes note of what the device with this index does.
    pub(crate) fn observer(&self, device: usize) -> Box<dyn Observer> {
        let accepts = |kind| filter::accepts(&self.filter, device, kind);
        Box::new(OneDevice {
            wants_work: self.outbox.is_some() && accepts(TraceKind::Work),
            trace: self.clone(),
            kept: self.kept(device),
            device,
        })
    }

    /// Returns what a device did since the last call for it, and from the first call on.
    pub(crate) fn take_recent(&self, device: usize) -> Recent {
        let kept = self.kept(device);
        let mut kept = kept.lock();
        kept.is_wanted = true;
        let events = std::mem::take(&mut kept.events);
        let lost = std::mem::take(&mut kept.lost);
        // Whoever has the device's lock may wait for this one.
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

    /// The lines about the newest things that a device did, with their times.
    pub(crate) fn last(&self, device: usize) -> Vec<String> {
        let last = self.kept(device).lock().last.clone();
        let line = |(now, event): &Event| format!("{:.6} {event}", now.as_secs_f64());
        last.iter().map(line).collect()
    }

    /// Writes what was not written yet, but waits no longer than `most` for who reads it.
    pub(crate) fn finish(&self, most: Duration) {
        if let Some(outbox) = &self.outbox {
            outbox.finish(most);
        }
    }
}

/// Who takes note of what one device does.
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

/// Writes lines.
fn write(
    batch: &Batch<Event>,
    start: Instant,
    line: &mut String,
    output: &mut Output,
) -> io::Result<()> {
    let mut put = |now: Duration, device, event: &dyn std::fmt::Display| {
        line.clear();
        // To a string.
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
