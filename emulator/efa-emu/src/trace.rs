// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace: one line for each thing a device does, as strace prints system calls.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
};

use efa_vfio::Tracer;
use serde::Serialize;

/// Most lines of a device that are kept for who asks for them.
const MAX_RECENT: usize = 16 << 10;

/// Where the lines of all devices go.
#[derive(Clone)]
pub(crate) struct Trace(Arc<Mutex<Sinks>>);

#[derive(Default)]
struct Sinks {
    output: Option<Box<dyn Write + Send>>,
    /// By device, for those of which somebody has asked.
    recent: HashMap<usize, Recent>,
}

/// What a device did since somebody last asked.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Recent {
    /// One for each thing, without time and device.
    lines: VecDeque<String>,
    /// How many older ones were not kept.
    lost: usize,
}

impl Recent {
    fn push(&mut self, line: String) {
        if self.lines.len() == MAX_RECENT {
            self.lines.pop_front();
            self.lost += 1;
        }
        self.lines.push_back(line);
    }
}

impl Trace {
    /// A trace that goes nowhere.
    pub(crate) fn none() -> Self {
        Self(Arc::default())
    }

    /// A trace to a new file, or to the standard output if `path` is `-`.
    ///
    /// # Errors
    ///
    /// The file can't be created.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let output: Box<dyn Write + Send> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            Box::new(File::create(path)?)
        };
        Ok(Self(Arc::new(Mutex::new(Sinks {
            output: Some(output),
            ..Sinks::default()
        }))))
    }

    /// What prints the lines of the device with this index.
    pub(crate) fn tracer(&self, device: usize) -> Tracer {
        let Self(sinks) = self.clone();
        Box::new(move |now, event| {
            let mut sinks = sinks.lock().unwrap();
            let Sinks { output, recent } = &mut *sinks;
            if let Some(recent) = recent.get_mut(&device) {
                recent.push(event.to_string());
            }
            let Some(writer) = output.as_mut() else {
                return;
            };
            // One write a line, so that a reader who follows the file sees whole lines.
            let line = format!("{:12.6} {device} {event}\n", now.as_secs_f64());
            if let Err(error) = writer
                .write_all(line.as_bytes())
                .and_then(|()| writer.flush())
            {
                tracing::error!(%error, "the trace ends here: it can't be written");
                *output = None;
            }
        })
    }

    /// Returns what a device did since the last call for it, and from the first call on.
    pub(crate) fn take_recent(&self, device: usize) -> Recent {
        let mut sinks = self.0.lock().unwrap();
        std::mem::take(sinks.recent.entry(device).or_default())
    }
}
