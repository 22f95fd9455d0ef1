// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The errors that end a connection, and the errno of a failed request.

use std::io;

use rustix::io::Errno;

/// An error that ends a connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket has failed.
    #[error("the socket has failed: {0}")]
    Socket(#[from] io::Error),
    /// The client has not begun to use the device in time after it connected.
    #[error("the client did not use the device in time")]
    Start,
    /// The rest of a message has not arrived in time, or the client has not read its replies in time.
    #[error("the client is too slow")]
    Slow,
    /// The connection has ended within a message.
    #[error("the connection has ended within a message")]
    Truncated,
    /// The size in a header is invalid.
    #[error("invalid message size {0}")]
    Size(u32),
    /// The flags of a message to the server are not those of a command.
    #[error("invalid message flags {0:#x}: not a command")]
    Kind(u32),
    /// A message has more than [`MAX_FDS`](crate::MAX_FDS) descriptors.
    #[error("a message has too many descriptors")]
    Descriptors,
    /// The first message does not propose a supported version.
    #[error("unsupported protocol version")]
    Version,
    /// A reply to [`Client`](crate::Client) is invalid.
    #[error("invalid reply")]
    Reply,
}

/// Returns the errno that reports an error to a client. It is never zero, as some clients take zero for success.
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
    u32::try_from(errno).ok().filter(|errno| *errno != 0).unwrap_or(Errno::IO.raw_os_error().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_success() {
        for error in [
            io::Error::from_raw_os_error(0),
            io::Error::from_raw_os_error(-1),
            io::Error::other("an error without an errno"),
            io::ErrorKind::InvalidData.into(),
        ] {
            assert_eq!(errno(&error), 5, "{error}");
        }
        assert_eq!(errno(&io::Error::from_raw_os_error(12)), 12);
        assert_eq!(errno(&io::ErrorKind::InvalidInput.into()), 22);
    }
}
