// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attackers that join as other emulators do, and obey the protocol in all messages.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use efa_hw::admin::qp::QpType;
use efa_testing::{
    machine::{Bound, Emulator, End, Machine},
    peer::{Ends, Place, hello},
    qp::{QKEY, Send},
};

use super::{DEVICES, address_like, devices::flood, under};

/// Number of emulators that attack.
const PEERS: usize = 2;

/// Number of packets that are sent at once.
const BATCH: usize = 256;

/// A queue pair of bystanders, and one that does not exist.
const THEIRS: u64 = 1;
const NONE: u64 = 200;

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
    [0, 1].map(|device| Ends {
        from: own_address(index),
        to: address_like(machine.address(), device),
        qkey: QKEY,
    })
}

/// Joins, rejoins after each disconnection, and sends packets from `packets`.
fn join(
    emulator: &Emulator,
    index: usize,
    read_mode: ReadMode,
    stop: &AtomicBool,
    mut packets: impl FnMut(&mut Vec<u8>),
) {
    let mut bytes = Vec::new();
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
                bytes.clear();
                for _ in 0..BATCH {
                    packets(&mut bytes);
                }
                joined = stream.write_all(&bytes).is_ok();
            }
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
    }
}

/// Returns the bound on memory with all attacking emulators, and with `devices` devices of attackers.
fn bound(devices: u64) -> Bound {
    Bound {
        devices,
        peers: PEERS as u64,
        ..Bound::default()
    }
}

#[test]
#[ignore = "an attack"]
fn acknowledgements_of_packets_that_were_never_sent() {
    let emulator = Emulator::listening(DEVICES, 0);
    let attack = |index, stop: &AtomicBool| {
        let both = to_bystanders(&emulator, index);
        let mut number = 0;
        join(&emulator, index, ReadMode::Reads, stop, |bytes| {
            number += 1;
            // Connections and packets of others, and ones that do not exist.
            let psn = if number % 2 == 0 {
                number / 8
            } else {
                u64::MAX
            };
            bytes.extend(both[number as usize % 2].ack(number % 7, psn));
        });
    };
    under(&emulator, &bound(0), attack, PEERS);
}

/// A flood of messages, writes with a wrong key and datagrams, for queue pairs that do and do not exist.
fn flood_bystanders(emulator: &Emulator, index: usize, read_mode: ReadMode, stop: &AtomicBool) {
    let both = to_bystanders(emulator, index);
    let mut number = 0;
    join(emulator, index, read_mode, stop, |bytes| {
        let ends = both[number as usize % 2];
        let psn = number / 2;
        let place = Place {
            connection: 1,
            psn,
            floor: psn,
            message: psn,
        };
        number += 1;
        bytes.extend(match psn % 3 {
            0 => ends.send(place, NONE, LENGTH),
            1 => ends.write(place, THEIRS, 77, LENGTH),
            _ => ends.datagram(NONE, LENGTH),
        });
    });
}

#[test]
#[ignore = "an attack"]
fn packets_for_bystanders() {
    let emulator = Emulator::listening(DEVICES, 0);
    let attack = |index, stop: &AtomicBool| {
        flood_bystanders(&emulator, index, ReadMode::Reads, stop);
    };
    under(&emulator, &bound(0), attack, PEERS);
}

#[test]
#[ignore = "an attack"]
fn packets_with_unread_responses() {
    let emulator = Emulator::listening(DEVICES, 0);
    let attack = |index, stop: &AtomicBool| {
        flood_bystanders(&emulator, index, ReadMode::NeverReads, stop);
    };
    under(&emulator, &bound(0), attack, PEERS);
}

/// Local devices, which are accomplices, send packets to the attackers as fast as they can.
#[test]
#[ignore = "an attack"]
fn unread_packets() {
    let emulator = Emulator::listening(DEVICES, 0);
    let attack = |index: usize, stop: &AtomicBool| {
        if index < PEERS {
            return flood_bystanders(&emulator, index, ReadMode::NeverReads, stop);
        }
        let index = index - PEERS;
        let kind = [QpType::Srd, QpType::Ud][index];
        let mut end = End::new(&emulator.device(2 + index), kind);
        end.connect(own_address(index));
        let peer = end.qp.clone();
        let send = Send::message(&peer, &end.region, 8000);
        flood(&mut end, &[send], stop);
    };
    under(&emulator, &bound(2), attack, 2 * PEERS);
}

/// All messages are for a queue pair that has no receive work request.
#[test]
#[ignore = "an attack"]
fn one_victim() {
    let emulator = Emulator::listening(DEVICES, 0);
    let mut victim = End::new(&emulator.device(2), QpType::Srd);
    victim.fill(&[1; LENGTH]);
    let attack = |index, stop: &AtomicBool| {
        let ends = Ends {
            from: own_address(index),
            to: victim.address,
            qkey: QKEY,
        };
        let number = victim.qp.number.into();
        let mut psn = 0;
        join(&emulator, index, ReadMode::Reads, stop, |bytes| {
            let place = Place {
                connection: 1,
                psn,
                floor: psn.saturating_sub(4000),
                message: psn,
            };
            psn += 1;
            bytes.extend(ends.send(place, number, LENGTH));
        });
    };
    under(&emulator, &bound(1), attack, PEERS);
    // It has no completion, and still works.
    assert_eq!(victim.poll().map(|end| end.status), None);
    let own = victim.address;
    victim.connect(own);
    let write = Send::write(&victim.qp, &victim.region, &victim.region, 8);
    assert_eq!(victim.run(&write), efa_hw::io::CompStatus::Ok);
}

/// Connections without end, of which each takes a record.
#[test]
#[ignore = "an attack"]
fn as_much_state_as_possible() {
    let emulator = Emulator::listening(DEVICES, 0);
    let attack = |index, stop: &AtomicBool| {
        let both = to_bystanders(&emulator, index);
        let mut number = 0;
        join(&emulator, index, ReadMode::Reads, stop, |bytes| {
            // The first packet of each connection is missing.
            let place = Place {
                connection: number / 16,
                psn: 1 + number % 16,
                floor: 0,
                message: number,
            };
            bytes.extend(both[number as usize / 16 % 2].send(place, NONE, 0));
            number += 1;
        });
    };
    under(&emulator, &bound(0), attack, PEERS);
}
