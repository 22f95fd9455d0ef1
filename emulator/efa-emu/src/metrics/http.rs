// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The part of HTTP that collectors of metrics need: one response per connection.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    clients::{Limit, Place, serve_all},
    control::Emulator,
    deadline::Until,
};

/// Limit on the head of a request in bytes. Prometheus sends a few hundred.
const MAX_HEAD: usize = 8 << 10;

/// Limit on the number of headers of a request.
const MAX_HEADERS: usize = 64;

/// Limit on connections. One more replaces the connection that has been idle longest.
pub(crate) const MAX_CONNECTIONS: usize = 16;

/// Time that a client may take to send its request, and the same to read the response.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Content type of the metrics.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Serves all clients. Never returns, so it needs a thread of its own.
pub(crate) fn serve(listener: &TcpListener, emulator: &Arc<Emulator>) -> ! {
    let emulator = Arc::clone(emulator);
    let accept = || Ok(listener.accept()?.0);
    let limit = Limit {
        name: "metrics",
        most: MAX_CONNECTIONS,
        disconnect,
    };
    serve_all(limit, accept, move |stream, place| {
        if let Err(error) = answer(stream, place, &emulator) {
            tracing::info!(%error, "a connection for metrics has ended");
        }
    })
}

fn disconnect(stream: &TcpStream) {
    // This fails if the connection has ended already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// The relevant part of a request's head.
struct Head {
    method: String,
    path: String,
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    /// Returns an error response, with the status as its body.
    fn error(status: &'static str) -> Self {
        Self {
            status,
            content_type: TEXT,
            body: format!("{status}\n"),
        }
    }

    /// Returns the emulator's response to a request.
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
    Until::new(stream, Instant::now() + TIMEOUT).write_all(text.as_bytes())
}

/// Reads the head of a request. The inner error is the status of the response to an invalid head.
fn read_head(stream: &TcpStream) -> io::Result<Result<Head, &'static str>> {
    let mut stream = Until::new(stream, Instant::now() + TIMEOUT);
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while head.len() < MAX_HEAD {
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
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
