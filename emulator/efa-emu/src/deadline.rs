// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Times until which clients have to have said, or taken, something. A timeout of each read or write is none: who sends a byte at a
//! time keeps to it for as long as it likes.

use std::{
    io::{self, Read},
    net::TcpStream,
    time::{Duration, Instant},
};

/// What is left until `end`.
///
/// # Errors
///
/// There is nothing.
pub(crate) fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// A connection that can be read until some time.
pub(crate) struct Until<'a> {
    stream: &'a TcpStream,
    end: Option<Instant>,
}

impl<'a> Until<'a> {
    pub(crate) fn new(stream: &'a TcpStream, end: Instant) -> Self {
        let end = Some(end);
        Self { stream, end }
    }

    /// Lets it be read for ever, as long as no read takes longer than `most`.
    pub(crate) fn lift(&mut self, most: Duration) -> io::Result<()> {
        self.end = None;
        self.stream.set_read_timeout(Some(most))
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(end) = self.end {
            self.stream.set_read_timeout(Some(left(end)?))?;
        }
        self.stream.read(buffer)
    }
}
