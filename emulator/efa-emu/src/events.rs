// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What the devices do: operations of devices, one line each like system calls in strace, and packets.
//!
//! The newest operations are kept for clients. There are two files, the trace and the capture, for each of which a thread formats
//! and writes events. Under a device's lock, events are only queued, see [`Outbox`].

mod capture;
mod filter;
mod outbox;
mod output;
mod trace;

use std::{
    collections::VecDeque,
    io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use efa_fabric::{PortId, Record, Tap};
use efa_model::{TraceEvent, TraceKind};
use efa_vfio::Observer;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use self::{
    capture::Capture,
    filter::Rule,
    outbox::{Encoder, Outbox, What, Work},
    trace::Trace,
};

/// Limit on the lines of a device that are kept for the control command `trace`.
const MAX_RECENT: usize = 16 << 10;

/// Number of the newest events that are always kept, for snapshots.
const LAST: usize = 256;

/// Options of the trace and of the capture.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Options {
    /// Prints each admin command, register read, reset and event to this file, or to the standard output if it is `-`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Traces only these kinds, of one device or of all: admin, registers, resets, events, data, work, errors, operator, all.
    ///
    /// Several of these options add up. `work` stands for each work request and completion, which are only traced if it is named.
    #[arg(long, value_name = "[DEVICE:]KIND,...", requires = "trace")]
    trace_filter: Vec<Rule>,

    /// Writes all packets, work requests, completions, commands and events to this file, which Wireshark opens (pcapng).
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// Number of captured payload bytes of each packet and work request, up to 9216.
    #[arg(long, value_name = "BYTES", requires = "capture", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=9216))]
    capture_snap: u32,
}

/// Recorder of all devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    trace: Option<Arc<Outbox>>,
    filter: Arc<[Rule]>,
    capture: Option<Arc<Outbox>>,
    /// Limit on the payload of each packet in the capture.
    snap: u32,
}

/// Events of a device that are kept for snapshots and for the control command `trace`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// The newest events, which are always kept.
    last: VecDeque<(Duration, TraceEvent)>,
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

impl Recorder {
    /// Returns a recorder of devices with these sockets, and the work of a writer thread for each of its files. Times count
    /// from `start`.
    ///
    /// # Errors
    ///
    /// A file can't be written.
    pub(crate) fn new(options: &Options, sockets: &[String], start: Instant) -> Result<(Self, Vec<Work>), String> {
        let (devices, snap) = (sockets.len(), options.capture_snap);
        let trace = open(&options.trace, "trace", devices, start, Trace::open)?;
        let capture =
            open(&options.capture, "capture", devices, start, |path| Capture::open(path, sockets, snap, start))?;
        let mut works = Vec::new();
        let mut split = |(outbox, work)| {
            works.push(work);
            Arc::new(outbox)
        };
        let recorder = Self {
            trace: trace.map(&mut split),
            filter: options.trace_filter.clone().into(),
            capture: capture.map(&mut split),
            snap,
        };
        Ok((recorder, works))
    }

    /// Whether packets are recorded.
    pub(crate) fn captures(&self) -> bool {
        self.capture.is_some()
    }

    /// Returns the trace, if it has events of this kind.
    fn trace_of(&self, device: usize, kind: TraceKind) -> Option<&Arc<Outbox>> {
        let trace = self.trace.as_ref();
        trace.filter(|_| filter::accepts(&self.filter, device, kind))
    }

    /// Returns an observer of the device with this index, which also keeps events.
    pub(crate) fn observer(&self, device: usize, recorded: &Recorded) -> Box<dyn Observer> {
        Box::new(OneDevice { recorder: self.clone(), recorded: recorded.clone(), device })
    }

    /// Writes all pending events. Waits no longer than `most` for the readers.
    pub(crate) fn finish(&self, most: Duration) {
        let end = Instant::now() + most;
        for outbox in self.trace.iter().chain(&self.capture) {
            outbox.finish(end);
        }
    }
}

impl Recorded {
    /// Returns the events of the device since the last call. No events are kept for this before the first call.
    pub(crate) fn take_recent(&self) -> Recent {
        let mut kept = self.0.lock();
        kept.is_wanted = true;
        let events = mem::take(&mut kept.events);
        let lost = mem::take(&mut kept.lost);
        // A thread that holds the device's lock may wait for this one.
        drop(kept);
        let wire = |event: &TraceEvent| event.wire().unwrap_or_default();
        Recent {
            lines: events.iter().map(ToString::to_string).collect(),
            wire: events.iter().map(wire).collect(),
            lost,
        }
    }

    /// Returns the lines of the newest events of the device, with their times.
    pub(crate) fn last(&self) -> Vec<String> {
        let last = self.0.lock().last.clone();
        let line = |(now, event): &(Duration, TraceEvent)| format!("{:.6} {event}", now.as_secs_f64());
        last.iter().map(line).collect()
    }
}

/// Opens a file of events, if its path is given.
fn open<E: Encoder>(
    path: &Option<PathBuf>,
    name: &'static str,
    devices: usize,
    start: Instant,
    open: impl FnOnce(&Path) -> io::Result<E>,
) -> Result<Option<(Outbox, Work)>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    let encoder = open(path).map_err(|error| {
        let path = path.display();
        format!("cannot write the {name} {path}: {error}; name a file that can be written")
    })?;
    Ok(Some(Outbox::new(name, devices, start, encoder)))
}

// Numbers of ports are indices of devices, which are attached in this order.
impl Tap for Recorder {
    fn snap(&self) -> u32 {
        self.snap
    }

    fn show(&self, port: PortId, has_left: bool, record: Record) {
        if let Some(capture) = &self.capture {
            capture.push(port.0, What::Packet(has_left, record));
        }
    }
}

/// Observer of one device.
struct OneDevice {
    recorder: Recorder,
    recorded: Recorded,
    device: usize,
}

impl Observer for OneDevice {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        self.recorded.0.lock().note(now, event);
        let trace = self.recorder.trace_of(self.device, event.kind());
        for outbox in trace.into_iter().chain(&self.recorder.capture) {
            outbox.push(self.device, What::Operation(event.clone()));
        }
    }

    fn wants_work(&self) -> bool {
        let trace = self.recorder.trace_of(self.device, TraceKind::Work);
        self.recorder.captures() || trace.is_some()
    }
}
