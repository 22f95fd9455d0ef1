// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lines of bounded length.

use std::io::{self, BufRead, Read};

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
        let most = self.limit as u64 + 1;
        (&mut self.input)
            .take(most)
            .read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() > self.limit {
            self.input.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Whole(&self.line)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

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
            for (input, lines) in [
                ("one\n\nthree", &["one", "", "three"][..]),
                ("one\n", &["one"]),
                ("", &[]),
                ("12345\n123456\nlast\n", &["12345", "too long", "last"]),
                ("12345\n12345", &["12345", "12345"]),
                ("123456", &["too long"]),
            ] {
                assert_eq!(all(input.as_bytes(), 5, buffer), lines, "{input}");
            }
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
