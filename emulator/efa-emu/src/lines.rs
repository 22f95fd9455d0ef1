// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lines of bounded length.

use std::io::{self, BufRead, Read as _};

/// A line that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A whole line, without its end.
    Whole(&'a [u8]),
    /// A line that exceeds the limit, and was skipped.
    TooLong,
}

/// Reads the next line into a buffer, or returns `None` at the end of the input. A line of more than `limit` bytes is skipped up
/// to its end. The last line needs no line end.
///
/// # Errors
///
/// The input can't be read.
pub(crate) fn next_line<'a>(
    input: &mut impl BufRead,
    limit: usize,
    line: &'a mut Vec<u8>,
) -> io::Result<Option<Line<'a>>> {
    line.clear();
    let most = limit as u64 + 1;
    input.by_ref().take(most).read_until(b'\n', line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > limit {
        input.skip_until(b'\n')?;
        return Ok(Some(Line::TooLong));
    }
    Ok(Some(Line::Whole(line)))
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn all(input: &[u8], limit: usize, buffer: usize) -> Vec<String> {
        let mut input = BufReader::with_capacity(buffer, input);
        let (mut found, mut line) = (Vec::new(), Vec::new());
        while let Some(line) = next_line(&mut input, limit, &mut line).unwrap() {
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
        let mut endless = BufReader::new(io::repeat(b'x').take(10 << 20));
        let mut line = Vec::new();
        let mut next = || next_line(&mut endless, 100, &mut line).unwrap().is_some();
        assert_eq!([next(), next()], [true, false]);
        assert!(line.capacity() < 100 << 10);
    }
}
