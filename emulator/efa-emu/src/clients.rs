// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Clients of a socket, with a limit on their number.

use std::{
    collections::BTreeMap,
    io,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use efa_vfio::attempt;
use parking_lot::{Condvar, Mutex};
use rustix::net::{Shutdown, shutdown};

/// Time for a disconnected client to free its place. Its thread only has to notice the shutdown.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends a connection.
pub(crate) fn end(stream: &impl AsFd) {
    // This fails if the connection has ended already.
    let _ = shutdown(stream, Shutdown::Both);
}

/// Places of clients, up to a limit.
#[derive(Debug)]
struct Places<S> {
    name: &'static str,
    most: usize,
    state: Mutex<State<S>>,
    /// Signalled when a client has left.
    left: Condvar,
}

#[derive(Debug)]
struct State<S> {
    next: u64,
    clients: BTreeMap<u64, Client<S>>,
}

#[derive(Debug)]
struct Client<S> {
    stream: Arc<S>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Idle since this time.
    Idle(Instant),
    /// A request of the client is in progress.
    Busy,
    /// Disconnected, as a new client gets its place.
    Disconnected,
}

/// A client's place, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place<S> {
    places: Arc<Places<S>>,
    number: u64,
}

impl<S: AsFd> Places<S> {
    /// Returns a place for a client. If necessary, the one that has been idle longest is disconnected; those with a request in
    /// progress stay.
    fn take(self: &Arc<Self>, stream: &Arc<S>) -> Option<Place<S>> {
        let mut state = self.state.lock();
        if state.clients.len() >= self.most {
            let idle = state.clients.iter_mut().filter(|(_, client)| matches!(client.phase, Phase::Idle(_)));
            let (_, longest) = idle.min_by_key(|(_, client)| client.phase)?;
            longest.phase = Phase::Disconnected;
            tracing::info!(name = self.name, "a connection is closed to make room for a new client");
            end(&longest.stream);
            let is_full = |state: &mut State<S>| state.clients.len() >= self.most;
            let waited = self.left.wait_while_for(&mut state, is_full, DISCONNECT_TIMEOUT);
            if waited.timed_out() {
                return None;
            }
        }
        let number = state.next;
        state.next += 1;
        let client = Client { stream: Arc::clone(stream), phase: Phase::Idle(Instant::now()) };
        state.clients.insert(number, client);
        Some(Place { places: Arc::clone(self), number })
    }
}

impl<S> Place<S> {
    /// Runs `work` for the client, which stays connected meanwhile. Returns `None` if it was disconnected before.
    pub(crate) fn work<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        if !self.enter(Phase::Busy) {
            return None;
        }
        let result = work();
        self.enter(Phase::Idle(Instant::now()));
        Some(result)
    }

    /// Enters a phase, unless the client was disconnected. Returns whether it did.
    fn enter(&self, phase: Phase) -> bool {
        let mut state = self.places.state.lock();
        let client = state.clients.get_mut(&self.number);
        let client = client.filter(|client| client.phase != Phase::Disconnected);
        client.map(|client| client.phase = phase).is_some()
    }
}

impl<S> Drop for Place<S> {
    fn drop(&mut self) {
        self.places.state.lock().clients.remove(&self.number);
        self.places.left.notify_one();
    }
}

/// Serves at most `most` clients of the service `name`, each in a thread of its own. Never returns: errors are only logged.
pub(crate) fn serve_all<S: AsFd + Send + Sync + 'static>(
    name: &'static str,
    most: usize,
    mut accept: impl FnMut() -> io::Result<S>,
    serve: impl Fn(&S, &Place<S>) + Clone + Send + 'static,
) -> ! {
    let places = Arc::new(Places {
        name,
        most,
        state: Mutex::new(State { next: 0, clients: BTreeMap::new() }),
        left: Condvar::new(),
    });
    loop {
        let stream = Arc::new(efa_vfio::accept(name, &mut accept));
        let Some(place) = places.take(&stream) else {
            tracing::warn!(name, most, "connection refused: too many clients; close one");
            continue;
        };
        let serve = serve.clone();
        let thread = thread::Builder::new().name(name.to_owned());
        let work = move || {
            serve(&stream, &place);
            // Dropped first: the client that gets the place needs the descriptor, too.
            drop(stream);
            drop(place);
        };
        // If no thread can be started, the client is disconnected.
        let _ = attempt(name, || thread.spawn(work));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
        sync::mpsc::{self, Sender},
    };

    use efa_testing::wait::{patience, wait_for};

    use super::*;

    /// Requests of a client.
    const ECHO: u8 = 1;
    /// The reply exceeds the buffers of a socket.
    const LONG: u8 = 2;
    const BLOCK: u8 = 3;

    /// A server with a limit of two clients.
    struct Server {
        clients: Sender<io::Result<UnixStream>>,
        /// Requests `BLOCK` wait while this is locked.
        gate: Arc<Mutex<()>>,
    }

    impl Server {
        fn start() -> Self {
            let gate = Arc::new(Mutex::new(()));
            let (clients, new) = mpsc::channel();
            let server = Self { clients, gate: Arc::clone(&gate) };
            let accept = move || new.recv().map_err(io::Error::other)?;
            let serve = move |mut stream: &UnixStream, place: &Place<UnixStream>| {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() {
                    let work = || {
                        if byte[0] == BLOCK {
                            // Shows the client that its request is in progress.
                            (&mut &*stream).write_all(&byte).unwrap();
                            drop(gate.lock());
                        }
                        vec![byte[0]; if byte[0] == LONG { 8 << 20 } else { 1 }]
                    };
                    match place.work(work) {
                        Some(reply) if stream.write_all(&reply).is_ok() => {}
                        _ => return,
                    }
                }
            };
            thread::spawn(move || serve_all("test", 2, accept, serve));
            // An error of accept() without free descriptors (EMFILE) does not end the server.
            let error = Err(io::Error::from_raw_os_error(24));
            server.clients.send(error).unwrap();
            server
        }

        fn connect(&self) -> UnixStream {
            let (own, other) = UnixStream::pair().unwrap();
            own.set_read_timeout(Some(patience())).unwrap();
            self.clients.send(Ok(other)).unwrap();
            own
        }
    }

    fn ask(stream: &mut UnixStream, what: u8) -> bool {
        stream.write_all(&[what]).is_ok() && replies(stream)
    }

    fn replies(stream: &mut UnixStream) -> bool {
        stream.read(&mut [0]).unwrap_or(0) == 1
    }

    /// Connects a client that has a place. It retries, as a disconnected client may free its place too late.
    fn served(server: &Server) -> UnixStream {
        wait_for("place", || {
            let mut stream = server.connect();
            ask(&mut stream, ECHO).then_some(stream).ok_or(())
        })
    }

    #[test]
    fn clients_with_a_request_in_progress_stay_connected() {
        let server = Server::start();
        let closed = server.gate.lock();
        let (mut a, mut b) = (server.connect(), server.connect());
        assert!(ask(&mut a, BLOCK) && ask(&mut b, BLOCK));
        let mut c = server.connect();
        assert!(!ask(&mut c, ECHO));
        drop(closed);
        assert!(replies(&mut a) && replies(&mut b));
        served(&server);
    }

    #[test]
    fn clients_that_do_not_read_replies_are_disconnected() {
        let server = Server::start();
        let (mut a, mut b) = (server.connect(), server.connect());
        assert!(ask(&mut a, LONG) && ask(&mut b, LONG));
        let (_c, _d) = (served(&server), served(&server));
    }
}
