// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sockets that survive the program's untimely end, and programs that survive their sockets'.

use std::{
    fs, io,
    os::unix::{
        fs::FileTypeExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Listens at `path`. A socket there that nobody listens at any more is replaced.
///
/// # Errors
///
/// Something listens there already, something else than a socket is there, or the folder does not let us.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something else than a socket is there",
            ));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "something listens there already",
            ));
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    UnixListener::bind(path)
}

/// How long to wait before what has failed for lack of descriptors, memory or threads is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// What happens again with less between is told of once.
const BURST: Duration = Duration::from_secs(10);

/// What is told of once, however often somebody makes it happen.
#[derive(Debug, Default)]
pub(crate) struct Bursts(Option<Instant>);

impl Bursts {
    /// Takes note that it happens; returns whether to tell of it.
    pub(crate) fn begins(&mut self, now: Instant) -> bool {
        let last = self.0.replace(now);
        last.is_none_or(|last| now.duration_since(last) >= BURST)
    }
}

/// Goes on with what fails now and then, as `accept` does when there are too many descriptors or when a client is gone already.
#[derive(Debug)]
pub(crate) struct Persistence {
    what: &'static str,
    failures: Bursts,
}

impl Persistence {
    /// `what` says what one can't do when it fails.
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            failures: Bursts::default(),
        }
    }

    /// Tries until it succeeds, with a pause after each failure.
    pub(crate) fn persist<T>(&mut self, mut attempt: impl FnMut() -> io::Result<T>) -> T {
        loop {
            if let Some(result) = self.attempt(&mut attempt) {
                return result;
            }
        }
    }

    /// Tries once, with a pause after a failure.
    pub(crate) fn attempt<T>(&mut self, attempt: impl FnOnce() -> io::Result<T>) -> Option<T> {
        match attempt() {
            Ok(result) => Some(result),
            Err(error) => {
                if self.failures.begins(Instant::now()) {
                    tracing::warn!(%error, "{}", self.what);
                }
                thread::sleep(PAUSE);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(listen(&path).unwrap());
        assert!(path.exists());
        let _listener = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_socket_in_use_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(
            listen(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn failures_do_not_end_it() {
        let mut persistence = Persistence::new("cannot");
        let mut errors = [24, 103, 24].into_iter();
        let result = persistence.persist(|| match errors.next() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(7),
        });
        assert_eq!(result, 7);
    }

    #[test]
    fn what_happens_again_soon_is_told_of_once() {
        let now = Instant::now();
        let mut failures = Bursts::default();
        assert!(failures.begins(now));
        assert!(!failures.begins(now + BURST / 2));
        assert!(!failures.begins(now + BURST));
        assert!(failures.begins(now + 2 * BURST));
    }
}
