// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Files that programs may read and truncate while they grow.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// A file, pipe or the standard output, to which whole records are written.
pub(crate) struct Output {
    to: Box<dyn Write + Send>,
    /// Records that were not written yet.
    buffer: Vec<u8>,
    /// Limit in bytes on records that are combined into one write.
    chunk: usize,
}

impl Output {
    /// Opens a file, or the standard output if the path is `-`. Records are combined into writes of at most `chunk` bytes.
    ///
    /// # Errors
    ///
    /// The file can't be opened.
    pub(crate) fn open(path: &Path, chunk: usize) -> io::Result<Self> {
        let to: Box<dyn Write + Send> = match path == Path::new("-") {
            true => Box::new(io::stdout()),
            false => Box::new(open(path)?),
        };
        Ok(Self {
            to,
            buffer: Vec::new(),
            chunk,
        })
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    pub(crate) fn put(&mut self, record: &[u8]) -> io::Result<()> {
        if self.buffer.len() + record.len() > self.chunk {
            self.flush()?;
        }
        self.buffer.extend_from_slice(record);
        Ok(())
    }

    /// Writes the buffered records.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.to.write_all(&self.buffer)?;
        self.buffer.clear();
        self.to.flush()
    }
}

fn open(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.write(true);
    match fs::metadata(path).map(|metadata| metadata.file_type()) {
        // Opened for reading, too, so that it does not wait for a reader.
        Ok(kind) if kind.is_fifo() => options.read(true),
        Ok(kind) if !kind.is_file() => &mut options,
        // The file contains data of guests, and another user may have put a link in its place. In append mode, writes after a
        // truncation, as by logrotate, leave no hole.
        _ => options
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_APPEND),
    };
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Read,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    #[test]
    fn records_are_written_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut output = Output::open(&path, 10).unwrap();
        let mut put = |record: &[u8]| {
            output.put(record).unwrap();
            fs::read(&path).unwrap()
        };
        assert_eq!(put(b"12345"), b"");
        assert_eq!(put(b"67890"), b"");
        assert_eq!(put(b"abc"), b"1234567890");
        assert_eq!(put(&[b'x'; 20]), b"1234567890abc");
        output.flush().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 33);
    }

    #[test]
    fn a_truncated_file_continues_at_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut output = Output::open(&path, 100).unwrap();
        for _ in 0..2 {
            output.put(b"something\n").unwrap();
            output.flush().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"something\n");
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(0).unwrap();
        }
    }

    #[test]
    fn files_are_private_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        drop(Output::open(&path, 100).unwrap());
        let permissions = fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        let [victim, nothing] = ["victim", "nothing"].map(|name| folder.path().join(name));
        fs::write(&victim, "precious").unwrap();
        for target in [&victim, &nothing] {
            symlink(target, &path).unwrap();
            assert!(Output::open(&path, 100).is_err(), "{target:?}");
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read(victim).unwrap(), b"precious");
        assert!(!nothing.exists());
    }

    #[test]
    fn a_pipe_needs_no_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let mut output = Output::open(&path, 100).unwrap();
        output.put(b"something\n").unwrap();
        output.flush().unwrap();
        let mut bytes = [0; 10];
        File::open(&path).unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"something\n");
    }
}
