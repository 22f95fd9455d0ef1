// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control socket.

use std::{
    io::{self, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
    time::Duration,
};

use crate::{
    clients::serve_all,
    control::{emulator::Emulator, protocol::Reply},
    lines::{Line, Lines},
};

/// The longest request in bytes. Rules are much shorter.
const MAX_REQUEST: usize = 64 << 10;

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 64;

/// How long a client may leave a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers all who connect. Never returns; it needs a thread of its own.
pub(crate) fn serve(listener: &UnixListener, emulator: &Arc<Emulator>) -> ! {
    let emulator = Arc::clone(emulator);
    let accept = || Ok(listener.accept()?.0);
    serve_all(
        "control",
        MAX_CONNECTIONS,
        accept,
        move |stream: UnixStream| {
            if let Err(error) = answer(&stream, &emulator) {
                tracing::info!(%error, "a control connection has ended");
            }
        },
    )
}

fn answer(mut stream: &UnixStream, emulator: &Emulator) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut lines = Lines::new(BufReader::new(stream), MAX_REQUEST);
    while let Some(line) = lines.next()? {
        let reply = match line {
            Line::Whole(request) => emulator.reply(request),
            Line::TooLong => {
                Reply::Error(format!("a request is at most {MAX_REQUEST} bytes")).to_line()
            }
        };
        stream.write_all(&reply)?;
    }
    Ok(())
}
