// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lines of bounded length.

use std::io::{self, BufRead};

/// A line that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A whole line, without its end.
    Whole(&'a [u8]),
    /// A line that exceeds the limit, and was skipped.
    TooLong,
}

/// Reads lines of at most `limit` bytes. Longer lines are skipped up to their ends.
pub(crate) struct Lines<R> {
    input: R,
    limit: usize,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self {
            input,
            limit,
            line: Vec::new(),
        }
    }

    /// Returns the next line, or `None` at the end of the input. The last line needs no line end.
    ///
    /// # Errors
    ///
    /// The input can't be read.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let mut len = 0_usize;
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() && len == 0 {
                return Ok(None);
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            len = len.saturating_add(part.len());
            if len <= self.limit {
                self.line.extend_from_slice(part);
            }
            let done = end.is_some() || available.is_empty();
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if done {
                return Ok(Some(if len <= self.limit {
                    Line::Whole(&self.line)
                } else {
                    Line::TooLong
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    fn all(input: &[u8], limit: usize, buffer: usize) -> Vec<String> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, input), limit);
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push(match line {
                Line::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                Line::TooLong => "too long".into(),
            });
        }
        found
    }

    #[test]
    fn lines_are_split_whatever_the_buffer() {
        for buffer in [1, 2, 3, 100] {
            assert_eq!(all(b"one\n\nthree", 5, buffer), ["one", "", "three"]);
            assert_eq!(all(b"one\n", 5, buffer), ["one"]);
            assert!(all(b"", 5, buffer).is_empty());
        }
    }

    #[test]
    fn lines_after_a_long_line_are_read() {
        for buffer in [1, 3, 100] {
            assert_eq!(
                all(b"12345\n123456\nlast\n", 5, buffer),
                ["12345", "too long", "last"]
            );
        }
    }

    #[test]
    fn a_long_line_takes_no_memory() {
        let endless = BufReader::new(io::repeat(b'x').take(10 << 20));
        let mut lines = Lines::new(endless, 100);
        assert_eq!(lines.next().unwrap(), Some(Line::TooLong));
        assert!(lines.line.capacity() < 100 << 10);
        assert_eq!(lines.next().unwrap(), None);
    }
}
