// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Clients of the control socket that send requests of all kinds, except changes to the devices of bystanders.

use super::*;

/// Number of clients at a time, which is the limit.
const CLIENTS: usize = 64;

/// Index of the attackers' device.
const OWN: usize = 2;

/// Runs an attack by clients, of which the first uses the attackers' device, so that its replies are long.
fn attack(threads: usize, attack: impl Fn(&Emulator, &AtomicBool) + Sync) -> Emulator {
    let bound = Bound { clients: CLIENTS as u64, ..Bound::of_devices(1) };
    run(bound, threads, |emulator, index, stop| match index {
        0 => use_device(emulator, stop),
        _ => attack(emulator, stop),
    })
}

fn lines(requests: &[Value]) -> Vec<u8> {
    requests.iter().flat_map(|request| format!("{request}\n").into_bytes()).collect()
}

/// Returns the requests with the longest replies.
fn longest_requests() -> Vec<Value> {
    vec![
        json!({"command": "snapshot"}),
        json!({"command": "trace", "device": OWN}),
        json!({"command": "state", "device": OWN}),
        json!({"command": "counters"}),
        json!({"command": "devices"}),
        json!({"command": "hello", "protocol": 1}),
    ]
}

/// Returns the requests with the longest lists.
fn long_lists() -> Vec<Value> {
    let bytes = |size| -> Vec<_> { (0..size).map(|offset| json!({"offset": offset, "value": 255})).collect() };
    let paths: Vec<_> = (0..256).map(|_| json!({"delay_us": 0.0})).collect();
    let rule =
        |when: Value, then: Value| json!({"command": "inject", "device": OWN, "rule": {"when": when, "then": then}});
    vec![
        rule(json!({"opcode": "QUERY_QP"}), json!({"corrupt": bytes(64), "after_reset": true})),
        rule(json!({"opcode": "ALLOC_PD"}), json!({"corrupt": bytes(64)})),
        rule(json!({"work": "ANY"}), json!({"corrupt": bytes(32), "delay_ms": 60_000})),
        json!({"command": "fabric", "set": {"paths": 256, "path": paths}}),
        json!({"command": "event", "device": OWN, "group": "WARNING", "after_reset": true}),
        json!({"command": "event", "device": OWN, "group": 9, "count": u64::MAX}),
    ]
}

fn use_device(emulator: &Emulator, stop: &AtomicBool) {
    let mut machine = Machine::start(&emulator.device(OWN), 1 << 20);
    while !stop.load(Ordering::Relaxed) {
        let _ = machine.read(Register::DevSts);
        let _ = machine.feature::<NetworkAttr>().unwrap();
    }
}

/// Sends requests as fast as possible, and reads the replies.
fn ask(emulator: &Emulator, requests: &[Value], stop: &AtomicBool) {
    let bytes = lines(requests);
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = UnixStream::connect(emulator.control()) else {
            continue;
        };
        let mut reading = stream.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || while reading.read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0) {});
            while !stop.load(Ordering::Relaxed) && stream.write_all(&bytes).is_ok() {}
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
    }
}

#[test]
#[ignore = "an attack"]
fn requests_as_fast_as_possible() {
    attack(5, |emulator, stop| ask(emulator, &longest_requests(), stop));
}

#[test]
#[ignore = "an attack"]
fn the_longest_lists() {
    attack(3, |emulator, stop| ask(emulator, &long_lists(), stop));
}

/// The maximum number of clients, which reconnect when they are disconnected.
#[test]
#[ignore = "an attack"]
fn unread_replies() {
    let emulator = attack(2, |emulator, stop| {
        let bytes = lines(&longest_requests());
        let mut clients: Vec<UnixStream> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            if clients.len() < CLIENTS {
                let client = UnixStream::connect(emulator.control());
                clients.extend(client.inspect(|client| client.set_nonblocking(true).unwrap()));
            }
            clients.retain_mut(|client| match client.write(&bytes) {
                Ok(_) => true,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            });
            thread::sleep(Duration::from_millis(1));
        }
    });
    // A client that reads is served as soon as the attackers are disconnected.
    emulator.ask(&json!({"command": "snapshot"}));
}
