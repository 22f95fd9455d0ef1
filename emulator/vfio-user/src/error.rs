// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What ends a connection, and how a request that failed is answered.

use std::io;

use rustix::io::Errno;

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error("the socket has failed: {0}")]
    Socket(#[from] io::Error),
    /// The client has connected, but has not begun to use the device.
    #[error("the client has not begun in time")]
    Start,
    /// A part of a message has not come in time, or the replies were not read.
    #[error("the client is too slow")]
    Slow,
    /// The connection ended in a message.
    #[error("the connection has ended within a message")]
    Truncated,
    /// The size in a header can't be.
    #[error("a message of {0} bytes")]
    Size(u32),
    /// A message is no command.
    #[error("a message with flags {0:#x} is no command")]
    Kind(u32),
    /// A message has more descriptors than any may have.
    #[error("a message has too many descriptors")]
    Descriptors,
    /// The first message is no proposal of a version that we know.
    #[error("the client proposes no version of the protocol that is known here")]
    Version,
    /// A reply to our own client is none.
    #[error("the server's reply is none")]
    Reply,
}

/// The errno that tells a client of an error. It is never zero, which some clients take for success.
pub(crate) fn errno(error: &io::Error) -> u32 {
    let errno = match error.raw_os_error() {
        Some(errno) => errno,
        None => match error.kind() {
            io::ErrorKind::InvalidInput => Errno::INVAL,
            io::ErrorKind::AlreadyExists => Errno::EXIST,
            io::ErrorKind::NotFound => Errno::NOENT,
            io::ErrorKind::OutOfMemory => Errno::NOMEM,
            io::ErrorKind::PermissionDenied => Errno::PERM,
            io::ErrorKind::StorageFull => Errno::NOSPC,
            io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
            _ => Errno::IO,
        }
        .raw_os_error(),
    };
    u32::try_from(errno)
        .ok()
        .filter(|errno| *errno != 0)
        .unwrap_or(Errno::IO.raw_os_error().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_success() {
        for error in [
            io::Error::from_raw_os_error(0),
            io::Error::from_raw_os_error(-1),
            io::Error::other("what it is"),
            io::ErrorKind::InvalidData.into(),
        ] {
            assert_eq!(errno(&error), 5, "{error}");
        }
        assert_eq!(errno(&io::Error::from_raw_os_error(12)), 12);
        assert_eq!(errno(&io::ErrorKind::InvalidInput.into()), 22);
    }
}
