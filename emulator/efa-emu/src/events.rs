// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What the devices do: operations of devices, one line each like system calls in strace, and packets.
//!
//! The newest operations are kept for clients. A thread formats and writes them for two files: the trace, and the capture. Under
//! a device's lock, events are only queued, see [`Outbox`].

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
    outbox::{Encoder, File, Outbox, What, Work},
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
    outbox: Option<Arc<Outbox>>,
    /// Filter of the trace, if there is one.
    filter: Option<Arc<[Rule]>>,
    /// Limit on the payload of each packet in the capture, if there is one.
    snap: Option<u32>,
    /// Indexed by device.
    kept: Arc<Mutex<Vec<Arc<Mutex<Kept>>>>>,
}

/// Events of a device that are kept for snapshots and for the control command `trace`.
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
    /// Returns a recorder of devices with these sockets, and the work of its writer thread, if it has a file. Times count from
    /// `start`.
    ///
    /// # Errors
    ///
    /// A file can't be written.
    pub(crate) fn new(
        options: &Options,
        sockets: &[String],
        start: Instant,
    ) -> Result<(Self, Option<Work>), String> {
        let files = [
            encoder("trace", options.trace.as_deref(), Trace::open)?,
            encoder("capture", options.capture.as_deref(), |path| {
                Capture::open(path, sockets, options.capture_snap, start)
            })?,
        ];
        if files.iter().all(Option::is_none) {
            return Ok(Default::default());
        }
        let (outbox, work) = Outbox::new(sockets.len(), start, files);
        let recorder = Self {
            outbox: Some(Arc::new(outbox)),
            filter: options
                .trace
                .as_ref()
                .map(|_| options.trace_filter.clone().into()),
            snap: options.capture.as_ref().map(|_| options.capture_snap),
            ..Self::default()
        };
        Ok((recorder, Some(work)))
    }

    /// Whether packets are recorded.
    pub(crate) fn captures(&self) -> bool {
        self.snap.is_some()
    }

    /// Whether the trace has events of this kind.
    fn traces(&self, device: usize, kind: TraceKind) -> bool {
        let rules = self.filter.as_deref();
        rules.is_some_and(|rules| filter::accepts(rules, device, kind))
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
        Box::new(OneDevice {
            recorder: self.clone(),
            kept: self.kept(device),
            device,
        })
    }

    /// Returns the events of a device since the last call for it. No events are kept for this before the first call.
    pub(crate) fn take_recent(&self, device: usize) -> Recent {
        let kept = self.kept(device);
        let mut kept = kept.lock();
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

    /// Returns the lines of the newest events of a device, with their times.
    pub(crate) fn last(&self, device: usize) -> Vec<String> {
        let last = self.kept(device).lock().last.clone();
        let line =
            |(now, event): &(Duration, TraceEvent)| format!("{:.6} {event}", now.as_secs_f64());
        last.iter().map(line).collect()
    }

    /// Writes all pending events. Waits no longer than `most` for the readers.
    pub(crate) fn finish(&self, most: Duration) {
        if let Some(outbox) = &self.outbox {
            outbox.finish(most);
        }
    }
}

/// Opens a file of events, if its path is given.
fn encoder<E: Encoder + 'static>(
    what: &'static str,
    path: Option<&Path>,
    open: impl FnOnce(&Path) -> io::Result<E>,
) -> Result<Option<File>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    let encoder = open(path).map_err(|error| {
        let path = path.display();
        format!("cannot write the {what} {path}: {error}; name a file that can be written")
    })?;
    Ok(Some((what, Box::new(encoder))))
}

// Numbers of ports are indices of devices, which are attached in this order.
impl Tap for Recorder {
    fn snap(&self) -> u32 {
        self.snap.unwrap_or(0)
    }

    fn show(&self, port: PortId, has_left: bool, record: Record) {
        if let Some(outbox) = &self.outbox {
            outbox.push(port.0, [false, true], What::Packet(has_left, record));
        }
    }
}

/// Observer of one device.
struct OneDevice {
    recorder: Recorder,
    kept: Arc<Mutex<Kept>>,
    device: usize,
}

impl Observer for OneDevice {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        self.kept.lock().note(now, event);
        let Some(outbox) = &self.recorder.outbox else {
            return;
        };
        let traced = self.recorder.traces(self.device, event.kind());
        let wanted = [traced, self.recorder.captures()];
        if wanted != [false; 2] {
            outbox.push(self.device, wanted, What::Operation(event.clone()));
        }
    }

    fn wants_work(&self) -> bool {
        self.recorder.captures() || self.recorder.traces(self.device, TraceKind::Work)
    }
}
