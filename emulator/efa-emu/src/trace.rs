// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace: one line for each thing a device does, as strace prints system calls.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
};

use efa_vfio::Tracer;

/// Where the lines of all devices go.
#[derive(Clone)]
pub(crate) struct Trace(Arc<Mutex<Option<Box<dyn Write + Send>>>>);

impl Trace {
    /// A trace that goes nowhere.
    pub(crate) fn none() -> Self {
        Self(Arc::new(Mutex::new(None)))
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
        Ok(Self(Arc::new(Mutex::new(Some(output)))))
    }

    /// What prints the lines of the device with this index.
    pub(crate) fn tracer(&self, device: usize) -> Tracer {
        let Self(output) = self.clone();
        Box::new(move |now, event| {
            let mut output = output.lock().unwrap();
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
}
