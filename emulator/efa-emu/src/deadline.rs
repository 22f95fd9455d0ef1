// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Deadlines for whole messages of clients and whole responses. A timeout of each read or write would not bound the total time:
//! a client that sends single bytes never exceeds it.

use std::{
    io::{self, Read},
    net::TcpStream,
    time::{Duration, Instant},
};

/// Returns the time left until `end`.
///
/// # Errors
///
/// The deadline has passed.
pub(crate) fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// Reader of a connection with a deadline.
pub(crate) struct Until<'a> {
    stream: &'a TcpStream,
    end: Option<Instant>,
}

impl<'a> Until<'a> {
    pub(crate) fn new(stream: &'a TcpStream, end: Instant) -> Self {
        let end = Some(end);
        Self { stream, end }
    }

    /// Removes the deadline. From now on, each read has a timeout of `most` instead.
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
