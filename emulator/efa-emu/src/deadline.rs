// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Deadlines for whole messages of clients and whole responses. A timeout of each read or write would not bound the total time:
//! a client that sends single bytes never exceeds it.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// A connection with a deadline.
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

    /// Returns the time left, if there is a deadline.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_write_timeout(Some(left))?;
        }
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
