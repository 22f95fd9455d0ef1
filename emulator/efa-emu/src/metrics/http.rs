// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The part of HTTP that collectors of metrics need: one response per connection.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    clients::{Place, serve_all},
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
    serve_all("metrics", MAX_CONNECTIONS, accept, move |stream, place| {
        if let Err(error) = answer(stream, place, &emulator) {
            tracing::info!(%error, "a connection for metrics has ended");
        }
    })
}

fn answer(stream: &TcpStream, place: &Place<TcpStream>, emulator: &Emulator) -> io::Result<()> {
    let mut with_body = true;
    let found = match read_head(stream)? {
        Ok((method, path)) => {
            with_body = method != "HEAD";
            match (&*method, &*path) {
                ("GET" | "HEAD", "/metrics") => match place.work(|| emulator.metrics()) {
                    Some(metrics) => metrics.map_err(|_| "500 Internal Server Error"),
                    None => return Ok(()),
                },
                ("GET" | "HEAD", _) => Err("404 Not Found"),
                _ => Err("405 Method Not Allowed"),
            }
        }
        Err(status) => Err(status),
    };
    let (status, content_type, body) = match found {
        Ok(metrics) => ("200 OK", METRICS, metrics),
        // The status is the body, too.
        Err(status) => (status, TEXT, format!("{status}\n")),
    };
    let length = body.len();
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if with_body {
        text.push_str(&body);
    }
    Until::new(stream, Instant::now() + TIMEOUT).write_all(text.as_bytes())
}

/// Reads the head of a request: method and path. The inner error is the status of the response to an invalid head.
fn read_head(stream: &TcpStream) -> io::Result<Result<(String, String), &'static str>> {
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
                let method = request.method.unwrap_or_default();
                return Ok(Ok((method.to_owned(), path.to_owned())));
            }
            Err(httparse::Error::TooManyHeaders) => break,
            Err(_) => return Ok(Err("400 Bad Request")),
        }
    }
    Ok(Err("431 Request Header Fields Too Large"))
}
