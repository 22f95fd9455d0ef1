// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of the control socket.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use serde_json::{Value, json};

use crate::wait::patience;

/// A connection to a control socket.
#[derive(Debug)]
pub struct Control(pub BufReader<UnixStream>);

impl Control {
    /// Connects to a socket.
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(patience())).unwrap();
        Self(BufReader::new(stream))
    }

    /// Whether the emulator has closed the connection. No reply may be outstanding.
    pub fn has_ended(&mut self) -> bool {
        self.0.get_ref().set_nonblocking(true).unwrap();
        self.0.read(&mut [0]).is_ok()
    }

    /// Sends a line.
    pub fn send(&mut self, line: impl AsRef<[u8]>) {
        let line = [line.as_ref(), b"\n"].concat();
        self.0.get_mut().write_all(&line).unwrap();
    }

    /// Returns the next reply.
    pub fn reply(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Sends a request; returns the reply.
    pub fn ask(&mut self, request: &Value) -> Value {
        self.send(request.to_string());
        self.reply()
    }

    /// Sends a request that succeeds; returns the result.
    pub fn ok(&mut self, request: &Value) -> Value {
        let mut reply = self.ask(request);
        assert!(reply.get("ok").is_some(), "{request}: {reply}");
        reply["ok"].take()
    }

    /// Returns the state of a device.
    pub fn state(&mut self, device: usize) -> Value {
        self.ok(&json!({"command": "state", "device": device}))
    }

    /// Sends a line, and checks that the reply is an error with this part.
    pub fn refuses(&mut self, line: impl AsRef<[u8]>, part: &str) {
        self.send(&line);
        let reply = self.reply();
        let line = String::from_utf8_lossy(line.as_ref());
        let error = reply["error"].as_str();
        assert!(error.is_some_and(|error| error.contains(part)), "{line}: {reply}");
    }
}
