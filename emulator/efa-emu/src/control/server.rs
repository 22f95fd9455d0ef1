// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control socket.

use std::{
    io::{self, BufReader, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
    time::Duration,
};

use efa_fabric::{Permit, Quota};
use parking_lot::Mutex;

use crate::{
    clients::{Limit, Place, serve_all},
    control::{emulator::Emulator, protocol::Reply, scope::Scope},
    lines::{Line, Lines},
};

/// The longest request in bytes. Rules are much shorter.
const MAX_REQUEST: usize = 64 << 10;

/// Most connections at a time. One more has the place of the client that has not asked for anything for longest.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Bytes of replies that all clients together may leave. A reply for which there is no room is an error in its place. One client that
/// reads what it asks for can have any reply.
const MAX_UNREAD: usize = 64 << 20;

/// How long a client may leave a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the clients share.
struct Replies {
    emulator: Arc<Emulator>,
    scope: Scope,
    /// One reply is made at a time: what it is made of is several times as large.
    turn: Mutex<()>,
    unread: Unread,
}

/// What clients have not read of their replies.
struct Unread {
    /// Bytes that there may be.
    most: usize,
    left: Quota,
}

impl Unread {
    fn new(most: usize) -> Self {
        let left = Quota::new(most);
        Self { most, left }
    }

    /// A reply with its part of what may be unread, or an error in its place if there is no room for it.
    fn admit(&self, reply: Vec<u8>) -> (Vec<u8>, Option<Permit>) {
        match self.left.take(reply.len().min(self.most)) {
            None => (error(NO_ROOM), None),
            permit => (reply, permit),
        }
    }
}

impl Replies {
    /// The reply to a request, and its part of what may be unread, unless the client has lost its place.
    fn reply(
        &self,
        place: &Place<UnixStream>,
        request: &[u8],
    ) -> Option<(Vec<u8>, Option<Permit>)> {
        // Who waits for the turn is not served yet, and may lose its place.
        let _turn = self.turn.lock();
        let reply = place.work(|| self.emulator.reply_to(&self.scope, request))?;
        Some(self.unread.admit(reply))
    }
}

/// What a client is told whose reply finds no room.
const NO_ROOM: &str = "there is no room for the reply, as others have not read theirs: ask again";

fn error(sentence: &str) -> Vec<u8> {
    Reply::Error(sentence.to_owned()).to_line()
}

/// Answers all who connect. Never returns; it needs a thread of its own.
pub(crate) fn serve(listener: &UnixListener, scope: Scope, emulator: &Arc<Emulator>) -> ! {
    let replies = Arc::new(Replies {
        emulator: Arc::clone(emulator),
        scope,
        turn: Mutex::default(),
        unread: Unread::new(MAX_UNREAD),
    });
    let accept = || Ok(listener.accept()?.0);
    let limit = Limit {
        name: "control",
        most: MAX_CONNECTIONS,
        disconnect: Some(disconnect),
    };
    serve_all(limit, accept, move |stream, place| {
        if let Err(error) = answer(stream, place, &replies) {
            tracing::info!(%error, "a control connection has ended");
        }
    })
}

fn disconnect(stream: &UnixStream) {
    tracing::info!("a control connection is ended, as another one needs its place");
    // One that has ended already needs no more.
    let _ = stream.shutdown(Shutdown::Both);
}

fn answer(mut stream: &UnixStream, place: &Place<UnixStream>, replies: &Replies) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut lines = Lines::new(BufReader::new(stream), MAX_REQUEST);
    while let Some(line) = lines.next()? {
        let (reply, _unread) = match line {
            Line::Whole(request) => match replies.reply(place, request) {
                Some(reply) => reply,
                None => return Ok(()),
            },
            Line::TooLong => {
                let sentence = format!("a request is at most {MAX_REQUEST} bytes");
                (error(&sentence), None)
            }
        };
        stream.write_all(&reply)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_nobody_reads_are_bounded() {
        let unread = Unread::new(100);
        let first = unread.admit(vec![b'a'; 60]);
        let second = unread.admit(vec![b'b'; 60]);
        assert!(second.0 == error(NO_ROOM) && second.1.is_none());
        assert_eq!(unread.admit(vec![b'c'; 40]).0, [b'c'; 40]);
        drop(first);
        // One that is longer than all that may be unread is so alone.
        let long = unread.admit(vec![b'd'; 200]);
        assert_eq!(long.0.len(), 200);
        assert_eq!(unread.admit(vec![b'e']).0, error(NO_ROOM));
        drop(long);
        assert_eq!(unread.admit(vec![b'f']).0, b"f");
    }
}
