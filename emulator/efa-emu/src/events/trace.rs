// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace: one line for each operation of a device.

use std::{
    fmt::{Display, Write as _},
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use super::{
    outbox::{Encoder, Event, What},
    output::{self, Output},
};

/// Limit in bytes on lines that are combined into one write, which is atomic for pipes (PIPE_BUF).
const CHUNK: usize = 4096;

/// Encoder of lines.
pub(super) struct Trace {
    output: Output,
    line: String,
}

impl Trace {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { output: output::open(path, CHUNK)?, line: String::new() })
    }

    fn put(&mut self, at: Duration, device: usize, what: &dyn Display) -> io::Result<()> {
        self.line.clear();
        // Writes to a string do not fail.
        let _ = writeln!(self.line, "{:12.6} {device} {what}", at.as_secs_f64());
        self.output.write_all(self.line.as_bytes())
    }
}

impl Encoder for Trace {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        match &event.what {
            What::Operation(what) => self.put(event.at, event.device, what),
            What::Packet(..) => Ok(()),
        }
    }

    fn lost(&mut self, device: usize, at: Duration, count: u64) -> io::Result<()> {
        let what = format!("lost {count}, as this trace was not written in time");
        self.put(at, device, &what)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
