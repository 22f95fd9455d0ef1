// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Listening sockets: stale sockets of a program that has crashed are replaced, and failures of `accept` are retried.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};

/// Limit on attempts to lock a file that other programs remove meanwhile. Each of them has listened and ended since.
const TRIES: usize = 100;

/// The path of a listening socket. No other program of this kind listens there while this is kept.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// The locked file beside it.
    lock: PathBuf,
    _locked: File,
}

impl Socket {
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket and its lock file.
    ///
    /// # Errors
    ///
    /// Access to the folder is denied. A file that was removed already is not an error.
    pub fn remove(&self) -> io::Result<()> {
        let removed = remove(&self.path);
        removed.and(remove(&self.lock))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Listens at `path`, and replaces a socket there that has no listener. A file beside it, `.NAME.lock`, is locked while the
/// result is kept.
///
/// # Errors
///
/// The socket has a listener or possibly has one, the path is not that of a socket, or access to the folder is denied.
pub fn listen(path: &Path) -> io::Result<(UnixListener, Socket)> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name");
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or_else(no_name)?);
    name.push(".lock");
    let beside = path.with_file_name(name);
    let socket = Socket { path: path.to_owned(), _locked: lock(&beside)?, lock: beside };
    let listener = replace(path).inspect_err(|_| {
        // If the lock file can't be removed, it remains, unlocked.
        let _ = remove(&socket.lock);
    })?;
    Ok((listener, socket))
}

/// Locks a file, and creates it if necessary.
fn lock(path: &Path) -> io::Result<File> {
    for _ in 0..TRIES {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(in_use()),
            locked => locked?,
        }
        // The last owner may have removed the file since, and another program may have created a new one.
        let own = file.metadata()?;
        let is_own = |there: fs::Metadata| (there.dev(), there.ino()) == (own.dev(), own.ino());
        if fs::symlink_metadata(path).is_ok_and(is_own) {
            return Ok(file);
        }
    }
    Err(in_use())
}

/// Listens at a path, the lock of which the caller holds. Replaces a socket that has no listener.
fn replace(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is not a socket"));
        }
        Ok(_) => match try_connect(path) {
            // A listener exists. Its backlog is full in the latter case.
            Ok(()) | Err(Errno::AGAIN) => return Err(in_use()),
            // The socket has no listener. Other failures do not prove that.
            Err(Errno::CONNREFUSED) => remove(path)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    UnixListener::bind(path)
}

/// Connects, without waiting for the listener.
fn try_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another program listens there already")
}

/// Pause after a failure, usually for lack of descriptors, memory or threads.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes a step that a new `client` needs. After a failure, it is logged, and the caller pauses. The log has to be limited: what
/// is lacking may lack for long.
pub fn attempt<T>(client: &str, step: impl FnOnce() -> io::Result<T>) -> Option<T> {
    let taken = step().inspect_err(|error| {
        tracing::warn!(%error, "cannot serve another {client}");
        thread::sleep(PAUSE);
    });
    taken.ok()
}

/// Accepts a `client`. Retries when that fails, as for lack of descriptors or when the client has disconnected already.
pub fn accept<T>(client: &str, mut accept: impl FnMut() -> io::Result<T>) -> T {
    loop {
        if let Some(stream) = attempt(client, &mut accept) {
            return stream;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::{UnixDatagram, UnixStream},
        sync::mpsc,
    };

    use efa_testing::wait::patience;
    use rustix::net::{bind, listen as listen_with};

    use super::*;

    /// Returns a folder, and a path in it.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        (folder, path)
    }

    /// Asserts that a socket is not listened to, as another program does.
    fn is_in_use(path: &Path) {
        assert_eq!(listen(path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let (_folder, path) = place();
        drop(listen(&path).unwrap());
        assert!(path.exists());
        let _listener = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_socket_in_an_unknown_state_is_left_alone() {
        let (_folder, path) = place();
        // A datagram socket, to which a stream socket can't connect.
        let other = UnixDatagram::bind(&path).unwrap();
        listen(&path).unwrap_err();
        UnixDatagram::unbound().unwrap().send_to(b"x", &path).unwrap();
        assert_eq!(other.recv(&mut [0; 2]).unwrap(), 1);
    }

    #[test]
    fn a_full_backlog_does_not_block() {
        let (_folder, path) = place();
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen_with(&listener, 0).unwrap();
        // This connection fills the backlog.
        let _waits = UnixStream::connect(&path).unwrap();
        let (ends, ended) = mpsc::channel();
        let there = path.clone();
        thread::spawn(move || ends.send(listen(&there).map(drop)));
        let listened = ended.recv_timeout(patience()).expect("an end");
        assert_eq!(listened.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn a_path_belongs_to_one_program_at_a_time() {
        let (folder, path) = place();
        let (listener, socket) = listen(&path).unwrap();
        // Between the steps of another program, the path could have no socket, or a stale one.
        fs::remove_file(&path).unwrap();
        is_in_use(&path);
        drop(UnixListener::bind(&path).unwrap());
        is_in_use(&path);
        socket.remove().unwrap();
        socket.remove().unwrap();
        drop((listener, socket));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let (_listener, socket) = listen(&path).unwrap();
        assert_eq!(socket.path(), path);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn failures_are_retried() {
        let mut errors = [24, 103, 24].into_iter();
        let result = accept("client", || match errors.next() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(7),
        });
        assert_eq!(result, 7);
    }
}
