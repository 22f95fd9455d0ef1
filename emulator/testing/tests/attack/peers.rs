// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attackers that join as other emulators do, and obey the protocol in all messages.

use efa_testing::peer::{Ends, Message, Place, hello};

use super::{devices::flood, *};

/// Number of emulators that attack.
const PEERS: usize = 2;

/// Number of packets that are sent at once.
const BATCH: usize = 256;

/// A queue pair of bystanders, and one that does not exist.
const THEIRS: u16 = 1;
const NONE: u16 = 200;

/// Bytes of a message.
const LENGTH: usize = 64;

/// Whether an attacker reads the packets that it receives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    Reads,
    NeverReads,
}

/// Returns the address of the only device of an attacker.
fn own_address(index: usize) -> [u8; 16] {
    [0xa0 + index as u8; 16]
}

/// Returns the addresses of an attacker's device and of each bystander's.
fn to_bystanders(emulator: &Emulator, index: usize) -> [Ends; 2] {
    let mut machine = Machine::start(&emulator.device(DEVICES - 1 - index), 1 << 20);
    [0, 1].map(|device| Ends { from: own_address(index), to: address_like(machine.address(), device), qkey: QKEY })
}

/// Joins, rejoins after each disconnection, and sends the packet of each number from 0 on.
fn join(emulator: &Emulator, index: usize, read_mode: ReadMode, stop: &AtomicBool, packet: impl Fn(u64) -> Message) {
    let mut numbers = 0_u64..;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
        let Ok(mut stream) = TcpStream::connect(emulator.address()) else {
            continue;
        };
        let words = hello(index as u64, &[own_address(index)]);
        let mut joined = stream.write_all(&words).is_ok();
        thread::scope(|scope| {
            if read_mode == ReadMode::Reads {
                let mut reading = stream.try_clone().unwrap();
                scope.spawn(move || while reading.read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0) {});
            }
            while joined && !stop.load(Ordering::Relaxed) {
                let packets = numbers.by_ref().take(BATCH);
                let packets: Vec<_> = packets.map(|number| packet(number).framed()).collect();
                joined = stream.write_all(&packets.concat()).is_ok();
            }
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
    }
}

/// Returns the bound on memory with all attacking emulators, and with `devices` devices of attackers.
fn bound(devices: u64) -> Bound {
    Bound { peers: PEERS as u64, ..Bound::of_devices(devices) }
}

/// Runs an attack in which all attackers join, and send packets that may depend on the addresses of [both bystanders](to_bystanders).
fn attack_bystanders(read_mode: ReadMode, packet: impl Fn(u64, [Ends; 2]) -> Message + Sync) {
    run(bound(0), PEERS, |emulator, index, stop| {
        let both = to_bystanders(emulator, index);
        join(emulator, index, read_mode, stop, |number| packet(number, both));
    });
}

#[test]
#[ignore = "an attack"]
fn acknowledgements_of_packets_that_were_never_sent() {
    attack_bystanders(ReadMode::Reads, |number, both| {
        // Connections and packets of others, and ones that do not exist.
        let psn = [number / 8, u64::MAX][number as usize % 2];
        both[number as usize % 2].ack(number % 7, psn, &[0])
    });
}

/// Returns a message, a write with a wrong key, or a datagram, for queue pairs that do and do not exist.
fn mixed(number: u64, both: [Ends; 2]) -> Message {
    let ends = both[number as usize % 2];
    let psn = number / 2;
    let place = Place { connection: 1, psn, floor: psn, message: psn, offset: 0 };
    match psn % 3 {
        0 => ends.send(place, NONE, LENGTH),
        1 => ends.write(place, THEIRS, 77, LENGTH),
        _ => ends.datagram(NONE, None, LENGTH),
    }
}

#[test]
#[ignore = "an attack"]
fn packets_for_bystanders() {
    attack_bystanders(ReadMode::Reads, mixed);
}

#[test]
#[ignore = "an attack"]
fn packets_with_unread_responses() {
    attack_bystanders(ReadMode::NeverReads, mixed);
}

/// Local devices, which are accomplices, send packets to the attackers as fast as they can.
#[test]
#[ignore = "an attack"]
fn unread_packets() {
    run(bound(2), 2 * PEERS, |emulator, index, stop| {
        if index < PEERS {
            let both = to_bystanders(emulator, index);
            return join(emulator, index, ReadMode::NeverReads, stop, |number| mixed(number, both));
        }
        let index = index - PEERS;
        let kind = [QpType::Srd, QpType::Ud][index];
        let mut end = End::new(&emulator.device(2 + index), kind);
        end.connect(own_address(index));
        let send = Send::message(&end.qp, &end.region, 8000);
        flood(&mut end, &[send], stop);
    });
}

/// All messages are for a queue pair that has no receive work request.
#[test]
#[ignore = "an attack"]
fn one_victim() {
    let emulator = listening();
    let mut victim = End::new(&emulator.device(2), QpType::Srd);
    victim.fill(&[1; LENGTH]);
    let attack = |index, stop: &AtomicBool| {
        let ends = Ends { from: own_address(index), to: victim.address, qkey: QKEY };
        let number = victim.qp.number;
        join(&emulator, index, ReadMode::Reads, stop, |psn| {
            let place = Place { connection: 1, psn, floor: psn.saturating_sub(4000), message: psn, offset: 0 };
            ends.send(place, number, LENGTH)
        });
    };
    under(&emulator, &bound(1), attack, PEERS);
    // It has no completion, and still works.
    assert_eq!(victim.poll().map(|end| end.status), None);
    check(&mut victim);
}

/// Connections without end, of which each takes a record.
#[test]
#[ignore = "an attack"]
fn as_much_state_as_possible() {
    attack_bystanders(ReadMode::Reads, |number, both| {
        // The first packet of each connection is missing.
        let place = Place { connection: number / 16, psn: 1 + number % 16, message: number, ..Place::default() };
        both[number as usize / 16 % 2].send(place, NONE, 0)
    });
}
