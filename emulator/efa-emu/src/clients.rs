// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Clients of a socket, of whom there may be only so many at a time.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// How long to wait when nobody can be accepted, as when there are no descriptors left: somebody has to leave first.
const PAUSE: Duration = Duration::from_millis(100);

/// A client's place, which is free again when this is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Serves all clients, each in a thread of its own, but no more than `most` at a time: one more is disconnected at once. Never
/// returns, whatever goes wrong.
pub(crate) fn serve_all<S: Send + 'static>(
    name: &str,
    most: usize,
    accept: impl Fn() -> io::Result<S>,
    serve: impl Fn(S) + Clone + Send + 'static,
) -> ! {
    let clients = Arc::new(AtomicUsize::new(0));
    let mut failing = false;
    loop {
        let client = match accept() {
            Ok(client) => client,
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, name, "nobody can connect for now");
                }
                failing = true;
                thread::sleep(PAUSE);
                continue;
            }
        };
        failing = false;
        let place = Place(Arc::clone(&clients));
        if clients.fetch_add(1, Ordering::SeqCst) >= most {
            tracing::warn!(name, most, "too many connections: one is refused");
            continue;
        }
        let serve = serve.clone();
        let thread = thread::Builder::new().name(name.to_owned());
        let started = thread.spawn(move || {
            let _place = place;
            serve(client);
        });
        if let Err(error) = started {
            tracing::warn!(%error, name, "a connection is refused");
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::{UnixListener, UnixStream},
    };

    use super::*;

    #[test]
    fn one_too_many_is_disconnected_until_somebody_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let refusals = AtomicUsize::new(3);
            // What accept() says without descriptors ends nothing.
            let accept =
                move || match refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                }) {
                    Ok(_) => Err(io::Error::from_raw_os_error(24)),
                    Err(_) => Ok(listener.accept()?.0),
                };
            serve_all("test", 2, accept, |mut stream: UnixStream| {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() {
                    stream.write_all(&byte).unwrap();
                }
            })
        });
        let is_served = |stream: &mut UnixStream| {
            let mut byte = [0];
            stream.write_all(&[7]).is_ok() && stream.read(&mut byte).unwrap_or(0) == 1
        };
        let connect = || UnixStream::connect(&path).unwrap();
        let (mut a, mut b, mut c) = (connect(), connect(), connect());
        assert!(is_served(&mut a) && is_served(&mut b));
        assert!(!is_served(&mut c));
        drop(a);
        let again = || is_served(&mut connect());
        assert!((0..100).any(|_| {
            thread::sleep(Duration::from_millis(10));
            again()
        }));
        assert!(is_served(&mut b));
    }
}
