// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attackers that connect to the sockets, and send nothing or meaningless bytes.

use super::*;

/// Bound on memory with the maximum number of clients.
const STRANGERS: Bound = Bound { devices: 1, all_pages: 0, peers: 0, clients: 64 };

#[test]
#[ignore = "an attack"]
fn silent_connections() {
    let emulator = run(STRANGERS, 1, |emulator, _, stop| {
        let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            kept.extend(UnixStream::connect(emulator.control()).map(|s| Box::new(s) as _));
            kept.extend(UnixStream::connect(emulator.device(5)).map(|s| Box::new(s) as _));
            kept.extend(TcpStream::connect(emulator.address()).map(|s| Box::new(s) as _));
            if kept.len() > 600 {
                kept.clear();
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    // A client with a request is served as soon as the attackers are disconnected.
    check(&mut End::new(&emulator.device(5), QpType::Srd));
    emulator.ask(&serde_json::json!({"command": "devices"}));
}

#[test]
#[ignore = "an attack"]
fn arbitrary_bytes() {
    run(STRANGERS, 2, |emulator, index, stop| {
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            let bytes = pattern(5000, round * 10 + index as u64);
            let mut answer = [0; 100];
            if let Ok(mut stream) = UnixStream::connect(emulator.control()) {
                let _ = stream.write_all(&bytes);
                let _ = stream.write_all(b"\n{\"command\":\"state\",\"device\":99999999999}\n");
                let _ = stream.read(&mut answer);
            }
            if let Ok(mut stream) = UnixStream::connect(emulator.device(5)) {
                let _ = stream.write_all(&bytes);
            }
            if let Ok(mut stream) = TcpStream::connect(emulator.address()) {
                let _ = stream.write_all(&bytes);
            }
        }
    });
}
