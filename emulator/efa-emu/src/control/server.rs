// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control socket.

use std::{
    io::{self, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
    time::Duration,
};

use efa_fabric::{Permit, Quota};
use parking_lot::Mutex;

use crate::{
    clients::{Place, serve_all},
    control::{emulator::Emulator, protocol::Reply, scope::Scope},
    lines::{Line, next_line},
};

/// Limit on a request in bytes. Rules are much shorter.
const MAX_REQUEST: usize = 64 << 10;

/// Limit on connections. One more replaces the client that has been idle longest.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Limit on unread replies in bytes, over all clients of a socket. A reply beyond it is replaced by an error. A single reply
/// may be longer, if no other one is unread.
const MAX_UNREAD: usize = 64 << 20;

/// Time that a write of a reply may block before the connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// State that the clients of a socket share.
struct Replies {
    emulator: Arc<Emulator>,
    scope: Scope,
    /// Serializes the creation of replies, as its temporary data are several times as large as the reply.
    turn: Mutex<()>,
    unread: Quota,
}

/// Returns a reply with its part of the quota of unread ones, or an error in its place if too little is left.
fn admit(unread: &Quota, reply: Vec<u8>) -> (Vec<u8>, Option<Permit>) {
    match unread.take(reply.len().min(MAX_UNREAD)) {
        None => (error(NO_ROOM), None),
        permit => (reply, permit),
    }
}

impl Replies {
    /// Returns the reply to a request with its part of the quota, or `None` if the client was disconnected.
    fn reply(&self, place: &Place<UnixStream>, request: &[u8]) -> Option<(Vec<u8>, Option<Permit>)> {
        // A client that waits for its turn still counts as idle, and may lose its place.
        let _turn = self.turn.lock();
        let reply = place.work(|| self.emulator.reply_to(&self.scope, request))?;
        Some(admit(&self.unread, reply))
    }
}

/// Error in place of a reply that exceeds the quota.
const NO_ROOM: &str = "too many unread replies: retry later";

fn error(sentence: &str) -> Vec<u8> {
    Reply::Error(sentence.to_owned()).to_line()
}

/// Serves all clients of a control socket. Never returns, so it needs a thread of its own.
pub(crate) fn serve(listener: &UnixListener, scope: Scope, emulator: &Arc<Emulator>) -> ! {
    let replies = Arc::new(Replies {
        emulator: Arc::clone(emulator),
        scope,
        turn: Mutex::default(),
        unread: Quota::new(MAX_UNREAD),
    });
    let accept = || Ok(listener.accept()?.0);
    serve_all("control", MAX_CONNECTIONS, accept, move |stream, place| {
        if let Err(error) = answer(stream, place, &replies) {
            tracing::info!(%error, "a control connection has failed");
        }
    })
}

fn answer(mut stream: &UnixStream, place: &Place<UnixStream>, replies: &Replies) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let (mut input, mut line) = (BufReader::new(stream), Vec::new());
    while let Some(line) = next_line(&mut input, MAX_REQUEST, &mut line)? {
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
    fn unread_replies_are_bounded() {
        const HALF: usize = MAX_UNREAD / 2;
        let unread = Quota::new(MAX_UNREAD);
        let reply = |length| admit(&unread, vec![b'a'; length]);
        let first = reply(HALF + 10);
        assert_eq!(reply(HALF).0, error(NO_ROOM));
        let second = reply(HALF - 10);
        assert_eq!(second.0.len(), HALF - 10);
        drop((first, second));
        // A reply that is longer than the whole quota takes all of it.
        let long = reply(2 * MAX_UNREAD);
        assert_eq!(long.0.len(), 2 * MAX_UNREAD);
        assert_eq!(reply(1).0, error(NO_ROOM));
        drop(long);
        assert_eq!(reply(1).0, b"a");
    }
}
