// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Arbitrary input from other emulators and from clients of the control socket. It causes no panic and no forbidden copy of data,
//! and the devices continue to work. The fuzz targets `peers` and `control` do the same, guided by coverage.

use std::{io, time::Instant};

use efa_emu::{Emulator, peers};
use efa_testing::{
    attack,
    peer::{Ends, Message, Place, hello},
    prelude::*,
};
use efa_vfio::Runtime;
use proptest::{collection::vec, prelude::*};

struct Tcp;

impl attack::peers::Protocol for Tcp {
    fn greet(mut bytes: &[u8]) -> Option<(u64, Vec<[u8; 16]>)> {
        let greeted = peers::greet(&mut bytes, &mut io::sink(), 1, Vec::new());
        greeted.ok().flatten()
    }

    fn receive(mut bytes: &[u8], accept: &mut dyn FnMut(Frame)) {
        let _ = peers::receive(&mut bytes, accept);
    }
}

fn emulator() -> Emulator {
    let runtime = Runtime::new(Settings::default(), 1, Instant::now());
    let mut emulator = Emulator::new(Arc::new(runtime));
    for (number, profile) in (0..).zip([Profile::Efa0, Profile::Efa4]) {
        let config = Config::new(profile, number);
        emulator.add("socket".into(), config, None).unwrap();
    }
    emulator
}

/// Attackers obey the protocol, or else they are refused without an attack.
#[test]
fn messages_of_attackers_are_valid() {
    let [from, to] = [[1; 16], [2; 16]];
    let greeted = <Tcp as attack::peers::Protocol>::greet(&hello(8, &[from]));
    assert_eq!(greeted, Some((8, vec![from])));
    let (ends, place) = (Ends { from, to, qkey: 3 }, Place::default());
    let sent = [ends.ack(4, 5, &[0]), ends.datagram(6, None, 7), ends.send(place, 6, 7), ends.write(place, 6, 8, 7)];
    let mut received = 0;
    let bytes = sent.each_ref().map(Message::framed).concat();
    peers::receive(&mut &*bytes, |_| received += 1).unwrap();
    assert_eq!(received, sent.len());
}

#[test]
fn requests_with_payload_do_no_harm() {
    attack::peers::send_payload_with_requests::<Tcp>();
}

/// The first change leaves one byte of a request, and the second none.
#[test]
fn a_request_may_lose_all_its_bytes() {
    let emulator = emulator();
    let (truncate, remove) = ([0, 255], [0, 224]);
    let attack = [&[0, 3][..], &truncate, &remove, &remove].concat();
    attack::control::play(&attack, |request| emulator.reply(request));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn peers_do_no_harm(data in vec(any::<u8>(), 0..4000)) {
        attack::peers::play::<Tcp>(&data);
    }

    #[test]
    fn clients_of_the_control_socket_do_no_harm(data in vec(any::<u8>(), 0..1000)) {
        let emulator = emulator();
        attack::control::play(&data, |request| emulator.reply(request));
    }
}
