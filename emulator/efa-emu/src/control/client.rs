// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of the control socket.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
};

/// Sends requests to a control socket and prints the replies. Returns whether none of them is an error.
///
/// # Errors
///
/// The connection fails.
pub(crate) fn send(socket: &Path, requests: &[String]) -> io::Result<bool> {
    let mut stream = UnixStream::connect(socket)?;
    let mut replies = BufReader::new(stream.try_clone()?).lines();
    let mut all_ok = true;
    for request in requests {
        stream.write_all(format!("{}\n", request.replace('\n', " ")).as_bytes())?;
        let reply = replies.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        println!("{reply}");
        all_ok &= reply.starts_with(r#"{"ok""#);
    }
    Ok(all_ok)
}
