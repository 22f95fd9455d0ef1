// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Files that programs may read and truncate while they grow.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// A file, pipe or the standard output. Parts that are written at once stay together, in writes of at most its capacity.
pub(super) type Output = BufWriter<Box<dyn Write + Send>>;

/// Opens a file, or the standard output if the path is `-`. Parts are combined into writes of at most `chunk` bytes.
///
/// # Errors
///
/// The file can't be opened.
pub(super) fn open(path: &Path, chunk: usize) -> io::Result<Output> {
    let to: Box<dyn Write + Send> = match path == Path::new("-") {
        true => Box::new(io::stdout()),
        false => Box::new(open_file(path)?),
    };
    Ok(BufWriter::with_capacity(chunk, to))
}

fn open_file(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.write(true);
    match fs::metadata(path).map(|metadata| metadata.file_type()) {
        // Opened for reading, too, so that it does not wait for a reader.
        Ok(kind) if kind.is_fifo() => options.read(true),
        Ok(kind) if !kind.is_file() => &mut options,
        // The file contains data of guests, and another user may have put a link in its place. In append mode, writes after a
        // truncation, as by logrotate, leave no hole.
        _ => options.create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_APPEND),
    };
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    #[test]
    fn a_truncated_file_continues_at_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut output = open(&path, 100).unwrap();
        for _ in 0..2 {
            output.write_all(b"something\n").unwrap();
            output.flush().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"something\n");
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(0).unwrap();
        }
    }

    #[test]
    fn files_are_private_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, victim, nothing] = ["file", "victim", "nothing"].map(|it| folder.path().join(it));
        drop(open(&path, 100).unwrap());
        let permissions = fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600);
        fs::write(&victim, "precious").unwrap();
        for target in [&victim, &nothing] {
            fs::remove_file(&path).unwrap();
            symlink(target, &path).unwrap();
            assert!(open(&path, 100).is_err(), "{target:?}");
        }
        assert_eq!(fs::read(victim).unwrap(), b"precious");
        assert!(!nothing.exists());
    }
}
