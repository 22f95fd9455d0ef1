// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Clients of the control socket.

use std::{
    io::{self, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    control::protocol::{Ask, Reply},
    lines::{Line, Lines},
};

/// A connection to the control socket of an emulator.
pub(crate) struct Client {
    stream: UnixStream,
    replies: Lines<BufReader<UnixStream>>,
}

/// A request on its way.
#[derive(Serialize)]
struct Tagged<'a, R> {
    command: &'static str,
    #[serde(flatten)]
    request: &'a R,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let replies = Lines::new(BufReader::new(stream.try_clone()?), usize::MAX);
        Ok(Self { stream, replies })
    }

    /// Sends a request, and waits for its reply.
    ///
    /// # Errors
    ///
    /// Those of the connection, and what the emulator says.
    pub(crate) fn ask<R>(&mut self, request: &R) -> io::Result<R::Reply>
    where
        R: Ask + Serialize,
        R::Reply: DeserializeOwned,
    {
        let command = R::COMMAND;
        let line = serde_json::to_vec(&Tagged { command, request })?;
        let reply = self.exchange(line)?;
        match serde_json::from_slice(reply).map_err(io::Error::other)? {
            Reply::Ok(reply) => Ok(reply),
            Reply::Error(error) => Err(io::Error::other(error)),
        }
    }

    /// Sends a line, and waits for the one that answers it.
    fn exchange(&mut self, mut line: Vec<u8>) -> io::Result<&[u8]> {
        line.push(b'\n');
        self.stream.write_all(&line)?;
        match self.replies.next()? {
            Some(Line::Whole(reply)) => Ok(reply),
            Some(Line::TooLong) | None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Sends requests to a control socket and prints the replies. True if none is an error.
///
/// # Errors
///
/// Those of the connection.
pub(crate) fn send(socket: &Path, requests: &[String]) -> io::Result<bool> {
    let mut client = Client::connect(socket)?;
    let mut all_ok = true;
    for request in requests {
        let reply = client.exchange(request.replace('\n', " ").into_bytes())?;
        println!("{}", String::from_utf8_lossy(reply));
        all_ok &= reply.starts_with(br#"{"ok""#);
    }
    Ok(all_ok)
}
