// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! As much of HTTP as who collects metrics needs: one answer for each connection.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    clients::{Limit, Place, serve_all},
    control::Emulator,
    deadline::left,
};

/// The longest head of a request in bytes. Prometheus has some hundred.
const MAX_HEAD: usize = 8 << 10;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// Most connections at a time. One more has the place of the one that was made, or was answered, first.
pub(crate) const MAX_CONNECTIONS: usize = 16;

/// How long a client may take for its request, and for the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The format of the metrics.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Answers all who connect. Never returns; it needs a thread of its own.
pub(crate) fn serve(listener: &TcpListener, emulator: &Arc<Emulator>) -> ! {
    let emulator = Arc::clone(emulator);
    let accept = || Ok(listener.accept()?.0);
    let limit = Limit {
        name: "metrics",
        most: MAX_CONNECTIONS,
        disconnect: Some(disconnect),
    };
    serve_all(limit, accept, move |stream, place| {
        if let Err(error) = answer(stream, place, &emulator) {
            tracing::info!(%error, "a connection for metrics has ended");
        }
    })
}

fn disconnect(stream: &TcpStream) {
    // One that has ended already needs no more.
    let _ = stream.shutdown(Shutdown::Both);
}

/// The head of a request, as far as it matters.
struct Head {
    method: String,
    path: String,
}

/// An answer.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    /// An error, which is said in the body, too.
    fn error(status: &'static str) -> Self {
        Self {
            status,
            content_type: TEXT,
            body: format!("{status}\n"),
        }
    }

    /// What the emulator says.
    fn of(emulator: &Emulator, head: &Head) -> Self {
        match (head.method.as_str(), head.path.as_str()) {
            ("GET" | "HEAD", "/metrics") => match emulator.metrics() {
                Ok(body) => Self {
                    status: "200 OK",
                    content_type: METRICS,
                    body,
                },
                Err(_) => Self::error("500 Internal Server Error"),
            },
            ("GET" | "HEAD", _) => Self::error("404 Not Found"),
            _ => Self::error("405 Method Not Allowed"),
        }
    }
}

fn answer(stream: &TcpStream, place: &Place<TcpStream>, emulator: &Emulator) -> io::Result<()> {
    let (answer, with_body) = match read_head(stream)? {
        Ok(head) => match place.work(|| Answer::of(emulator, &head)) {
            Some(answer) => (answer, head.method != "HEAD"),
            None => return Ok(()),
        },
        Err(status) => (Answer::error(status), true),
    };
    let Answer {
        status,
        content_type,
        body,
    } = answer;
    let length = body.len();
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if with_body {
        text.push_str(&body);
    }
    write(stream, text.as_bytes())
}

/// Reads the head of a request. What is wrong with it is a status.
fn read_head(mut stream: &TcpStream) -> io::Result<Result<Head, &'static str>> {
    let end = Instant::now() + TIMEOUT;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while head.len() < MAX_HEAD {
        stream.set_read_timeout(Some(left(end)?))?;
        let count = match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&part[..count]);
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Partial) => {}
            Ok(httparse::Status::Complete(_)) => {
                let target = request.path.unwrap_or_default();
                let path = target.split_once('?').map_or(target, |(path, _)| path);
                return Ok(Ok(Head {
                    method: request.method.unwrap_or_default().to_owned(),
                    path: path.to_owned(),
                }));
            }
            Err(httparse::Error::TooManyHeaders) => break,
            Err(_) => return Ok(Err("400 Bad Request")),
        }
    }
    Ok(Err("431 Request Header Fields Too Large"))
}

/// Writes all of an answer, which the client may not read as slowly as it likes.
fn write(mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let end = Instant::now() + TIMEOUT;
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
