// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Links between emulators.

use std::{io::ErrorKind, process::Stdio};

use efa_testing::peer::hello;

use super::*;

/// Starts an emulator that joins another one by name, with devices whose numbers begin with `first`.
fn joining(address: &str, devices: usize, first: usize, log: impl Into<Stdio>) -> Emulator {
    let mut command = program();
    command.stderr(log);
    let port = address.rsplit_once(':').unwrap().1;
    let join = ["--join", &format!("localhost:{port}"), "-v"];
    Emulator::run(command, devices, first, &join)
}

#[test]
fn emulators_join_and_leave() {
    let address = free_address().to_string();
    let mut third = joining(&address, 1, 7, Stdio::null());
    // The emulator joins when the other one starts to listen, and again after that has restarted.
    Emulator::start(2, &["--listen", &address]).wait_for_peers(1);
    let first = Emulator::start(2, &["--listen", &address]);
    first.wait_for_peers(1);
    third.wait_for_peers(2);
    // Two of its devices have the numbers of the first emulator's.
    let log = tempfile::NamedTempFile::new().unwrap();
    let _second = joining(&address, 3, 0, log.reopen().unwrap());
    wait_until("refusal", || {
        let log = fs::read_to_string(log.path()).unwrap();
        log.contains("give each device its own number")
    });
    first.wait_for_peers(1);
    assert_eq!(third.end(Signal::TERM), Some(0));
    first.wait_for_peers(0);
}

#[test]
fn connections_without_a_greeting_do_not_block_emulators() {
    let address = free_address().to_string();
    let first = Emulator::start(2, &["--listen", &address]);
    let _joined = joining(&address, 1, 7, Stdio::null());
    first.wait_for_peers(1);
    let mut silent = Vec::new();
    wait_for("greeting while other connections are silent", || {
        // The maximum number of connections, again and again.
        silent.extend((0..64).map(|_| TcpStream::connect(&address).unwrap()));
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(patience()))?;
        stream.read_exact(&mut [0; 4])
    });
    // An emulator that has joined keeps its place.
    first.wait_for_peers(1);
}

/// Whether the other end has closed a connection.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 1000]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn one_host_has_eight_links() {
    let address = free_address().to_string();
    let emulator = Emulator::start(1, &["--listen", &address]);
    let join = |number| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let greeting = hello(u64::from(number), &[[number; 16]]);
        stream.write_all(&greeting).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let mut streams: Vec<_> = (0..9).map(join).collect();
    wait_until("end of one link", || {
        for mut stream in &streams {
            // A keep-alive message.
            let _ = stream.write_all(&[1, 0, 0, 0, 0]);
        }
        streams.retain(|stream| !is_closed(stream));
        streams.len() == 8
    });
    emulator.wait_for_peers(8);
}

#[test]
fn connections_without_a_greeting_are_closed() {
    let address = free_address().to_string();
    let _emulator = Emulator::start(1, &["--listen", &address]);
    let mut stream = TcpStream::connect(&address).unwrap();
    let pause = Duration::from_millis(200);
    stream.set_read_timeout(Some(pause)).unwrap();
    stream.write_all(&10_000_u32.to_le_bytes()).unwrap();
    wait_until("end of the link", || {
        // The client never stops sending.
        stream.write_all(&[0]).is_err() || is_closed(&stream)
    });
}
