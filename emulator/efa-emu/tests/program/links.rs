// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Links between emulators.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use efa_testing::{
    machine::free_address,
    peer::hello,
    wait::{patience, wait_for, wait_until},
};
use rustix::process::Signal;
use serde_json::json;

use super::{Emulator, failure, program, seventh, socket_in};

#[test]
fn an_emulator_is_joined_by_name() {
    let address = free_address().to_string();
    let port = address.rsplit_once(':').unwrap().1;
    let folder = tempfile::tempdir().unwrap();
    let joining = Emulator::joining(folder, &format!("localhost:{port}"));
    // The emulator joins when the other one starts to listen, and again after that has restarted.
    for _ in 0..2 {
        let first = Emulator::start(&["--listen", &address]);
        wait_for_devices(&first, 1);
    }
    let socket = socket_in(&joining.folder, "8");
    let options = ["--device", &socket, "--join", "localhost"];
    let error = failure(1, program().args(options));
    assert!(error.contains("cannot join localhost: "));
}

/// Waits until there are so many devices of other emulators.
fn wait_for_devices(emulator: &Emulator, expected: u64) {
    wait_for("other emulator", || {
        let reply = emulator.control().ok(&json!({ "command": "fabric" }));
        match reply["remote_devices"] == json!(expected) {
            true => Ok(()),
            false => Err(reply),
        }
    });
}

#[test]
fn emulators_join_and_leave() {
    let address = free_address().to_string();
    let first = Emulator::start(&["--listen", &address]);
    let folder = tempfile::tempdir().unwrap();
    let third = seventh(&folder);
    // Its first two devices have the numbers of the first emulator's.
    let mut second = Emulator::start(&["--join", &address, "--device", &third, "-v"]);
    let log = second.child.as_mut().unwrap().stderr.take().unwrap();
    let refused = BufReader::new(log)
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("give each device its own number"));
    assert!(refused.is_some());
    wait_for_devices(&first, 0);
    second.signal(Signal::TERM);
    second.end();

    let mut other = Emulator::joining(folder, &address);
    wait_for_devices(&first, 1);
    wait_for_devices(&other, 2);
    other.signal(Signal::TERM);
    other.end();
    wait_for_devices(&first, 0);
}

#[test]
fn connections_without_a_greeting_do_not_block_emulators() {
    let address = free_address().to_string();
    let first = Emulator::start(&["--listen", &address]);
    let folder = tempfile::tempdir().unwrap();
    let _joined = Emulator::joining(folder, &address);
    wait_for_devices(&first, 1);
    let mut silent = Vec::new();
    wait_for("greeting while other connections are silent", || {
        // The maximum number of connections, again and again.
        silent.extend((0..64).map(|_| TcpStream::connect(&address).unwrap()));
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(patience()))?;
        stream.read_exact(&mut [0; 4])
    });
    // An emulator that has joined keeps its place.
    let reply = first.control().ok(&json!({ "command": "fabric" }));
    assert_eq!(reply["remote_devices"], json!(1));
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
    let emulator = Emulator::start(&["--listen", &address]);
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
    wait_for_devices(&emulator, 8);
}

#[test]
fn connections_without_a_greeting_are_closed() {
    let address = free_address().to_string();
    let _emulator = Emulator::start(&["--listen", &address]);
    let mut stream = TcpStream::connect(&address).unwrap();
    let pause = Duration::from_millis(200);
    stream.set_read_timeout(Some(pause)).unwrap();
    stream.write_all(&10_000_u32.to_le_bytes()).unwrap();
    wait_until("end of the link", || {
        // The client never stops sending.
        stream.write_all(&[0]).is_err() || is_closed(&stream)
    });
}
