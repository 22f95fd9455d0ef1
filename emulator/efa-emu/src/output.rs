// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Files of bounded size that programs may read while they grow.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// Bytes that are copied at a time from a file that is full to the one beside it.
const COPY: usize = 64 << 10;

/// A file, pipe or the standard output, to which whole records are written.
pub(crate) struct Output {
    to: Box<dyn Write + Send>,
    /// Records that were not written yet.
    buffer: Vec<u8>,
    /// Most bytes that are written at once.
    chunk: usize,
    limit: Option<Limit>,
}

/// A bound for what is kept of a file.
struct Limit {
    /// Most bytes of each of the two files.
    most: u64,
    /// Bytes of the newer one.
    size: u64,
    newer: File,
    /// The one beside it, which has what was in it before. Both stay open, so that it takes no rights for their folder.
    older: File,
    /// What each begins with.
    header: Vec<u8>,
}

impl Output {
    /// Opens a file that begins with `header`, or the standard output if the path is `-`. Records go together into writes of
    /// at most `chunk` bytes.
    ///
    /// With a limit, a file that has half of it is moved to the one beside it, whose name ends in `.1`, and begins anew: so
    /// the newest are kept.
    ///
    /// # Errors
    ///
    /// It can't be opened, or a limit is asked for and it is no ordinary file.
    pub(crate) fn open(
        path: &Path,
        chunk: usize,
        limit: Option<u64>,
        header: Vec<u8>,
    ) -> io::Result<Self> {
        let is_stdout = path == Path::new("-");
        let kind = fs::metadata(path).map(|metadata| metadata.file_type());
        let is_fifo = !is_stdout && kind.as_ref().is_ok_and(FileTypeExt::is_fifo);
        let is_other = is_stdout || kind.is_ok_and(|kind| !kind.is_file());
        if limit.is_some() && is_other {
            let why = "only an ordinary file can have a limit";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut output = Self {
            to: Box::new(io::stdout()),
            buffer: header.clone(),
            chunk,
            limit: None,
        };
        if !is_stdout {
            let mut options = OpenOptions::new();
            options.write(true);
            if is_fifo {
                // As a reader, too: to open it waits for nobody then.
                options.read(true);
            } else if is_other {
                options.truncate(true);
            } else {
                // It has what guests send, and is where others may have put a link.
                options.read(limit.is_some()).create(true).truncate(true);
                options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
            }
            let file = options.open(path)?;
            if let Some(limit) = limit {
                let mut older = path.as_os_str().to_owned();
                older.push(".1");
                output.limit = Some(Limit {
                    most: limit / 2,
                    size: header.len() as u64,
                    newer: file.try_clone()?,
                    older: options.open(older)?,
                    header,
                });
            }
            output.to = Box::new(file);
        }
        Ok(output)
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// It can't be written.
    pub(crate) fn put(&mut self, record: &[u8]) -> io::Result<()> {
        if self.buffer.len() + record.len() > self.chunk {
            self.flush()?;
        }
        if let Some(limit) = &mut self.limit {
            if limit.is_full(record.len()) {
                let records = std::mem::take(&mut self.buffer);
                self.to.write_all(&records)?;
                limit.rotate()?;
                self.buffer.extend_from_slice(&limit.header);
            }
            limit.size += record.len() as u64;
        }
        self.buffer.extend_from_slice(record);
        Ok(())
    }

    /// Writes what was added.
    ///
    /// # Errors
    ///
    /// It can't be written.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.to.write_all(&self.buffer)?;
        self.buffer.clear();
        self.to.flush()
    }
}

impl Limit {
    /// Whether there is no room for so many bytes more.
    fn is_full(&self, bytes: usize) -> bool {
        self.size > self.header.len() as u64 && self.size + bytes as u64 > self.most
    }

    /// Moves what there is to the older file.
    fn rotate(&mut self) -> io::Result<()> {
        self.older.set_len(0)?;
        self.older.rewind()?;
        self.newer.rewind()?;
        let mut bytes = vec![0; COPY];
        loop {
            let length = self.newer.read(&mut bytes)?;
            if length == 0 {
                break;
            }
            self.older.write_all(&bytes[..length])?;
        }
        self.newer.set_len(0)?;
        // It is where the other descriptor of the file writes, too.
        self.newer.rewind()?;
        self.size = self.header.len() as u64;
        Ok(())
    }
}

/// Bytes, given as a number with `K`, `M` or `G` behind it, or none.
///
/// # Errors
///
/// It is none, or less than makes sense.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes >= 64 << 10)
        .ok_or_else(|| format!("the limit is `{text}`, but it must be a size of 64K or more"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_with_a_limit_keeps_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut output = Output::open(&path, 100, Some(1000), b"head\n".to_vec()).unwrap();
        for number in 0..1000 {
            output.put(format!("line {number:5}\n").as_bytes()).unwrap();
            if number % 7 == 0 {
                output.flush().unwrap();
            }
        }
        output.flush().unwrap();
        let newer = fs::read_to_string(&path).unwrap();
        let older = fs::read_to_string(folder.path().join("file.1")).unwrap();
        assert!(newer.len() <= 500 && older.len() <= 500);
        assert!(older.len() > 480);
        let all: Vec<_> = [older, newer]
            .iter()
            .flat_map(|text| text.strip_prefix("head\n").unwrap().lines())
            .map(|line| line[5..].trim().parse::<usize>().unwrap())
            .collect();
        let expected: Vec<_> = (1000 - all.len()..1000).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn nobody_else_may_read_it_or_choose_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let open = || Output::open(&path, 100, Some(1000), Vec::new());
        drop(open().unwrap());
        for name in ["file", "file.1"] {
            let permissions = fs::metadata(folder.path().join(name))
                .unwrap()
                .permissions();
            assert_eq!(permissions.mode() & 0o777, 0o600, "{name}");
        }
        for name in ["file", "file.1"] {
            let link = folder.path().join(name);
            fs::remove_file(&link).unwrap();
            symlink(folder.path().join("victim"), &link).unwrap();
            assert!(open().is_err(), "{name}");
            fs::remove_file(&link).unwrap();
        }
        assert!(!folder.path().join("victim").exists());
    }

    #[test]
    fn a_pipe_has_no_limit_and_needs_no_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(Output::open(&path, 100, Some(1 << 20), Vec::new()).is_err());
        assert!(Output::open(Path::new("-"), 100, Some(1 << 20), Vec::new()).is_err());
        let mut output = Output::open(&path, 100, None, Vec::new()).unwrap();
        output.put(b"something\n").unwrap();
        output.flush().unwrap();
        let mut bytes = [0; 10];
        File::open(&path).unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"something\n");
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("65536", 65536),
            ("64K", 65536),
            ("3M", 3 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "K", "1K", "-1M", "1T", "99999999999999G"] {
            let error = size(text).unwrap_err();
            assert!(error.contains("a size of 64K or more"), "{text}: {error}");
        }
    }
}
