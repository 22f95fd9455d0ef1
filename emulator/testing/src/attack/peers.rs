// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Another emulator that sends anything over its link, to devices that communicate with it and with each other.
//!
//! It sends bytes as over TCP. Most of them are packets that match the actions of the devices, with some faults.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use efa_fabric::{Frame, LINK_VERSION, Link, LinkId, Newcomer, PathSettings, Settings};
use efa_hw::{
    admin::qp::QpType,
    io::{OpType, RxDesc, RxLkeyCtrl},
};
use efa_model::Profile;

use crate::{
    attack::precious::{self, Precious},
    input::Input,
    net::{Net, QKEY, Qp, Region, Send},
    peer::Bytes,
};

/// Decoder of an emulator, for the bytes of another one.
pub trait Protocol {
    /// Decodes a greeting: the program's number, and the addresses of its devices.
    fn greet(bytes: &[u8]) -> Option<(u64, Vec<[u8; 16]>)>;

    /// Passes the packets in `bytes` to `accept`.
    fn receive(bytes: &[u8], accept: &mut dyn FnMut(Frame));
}

/// Limit on actions of an attack, each of which may be several packets.
const MAX_STEPS: usize = 256;

/// Addresses of the attacker's devices.
const REMOTE: [[u8; 16]; 3] = [[0xa1; 16], [0xa2; 16], [0xa3; 16]];

/// Packets that devices send to the attacker.
#[derive(Debug, Default)]
struct Sent(Mutex<Vec<Frame>>);

impl Link for Sent {
    fn send(&self, frame: Frame) {
        self.0.lock().unwrap().push(frame);
    }
}

/// Decoder of packets that the attacker receives.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn skip(&mut self, length: usize) {
        self.0 = &self.0[length..];
    }

    fn number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = self.0[0];
            self.skip(1);
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }
}

/// Numbers by which the attacker makes plausible packets.
#[derive(Default)]
struct Knowledge {
    /// Connection and number of each packet to it.
    packets: Vec<(u64, u64)>,
    /// Reads of its memory: queue pair, its incarnation, and the work request.
    reads: Vec<[u64; 3]>,
    /// For each of its own connections, the next packet, the message, and the bytes of it that were sent.
    connections: [[u64; 3]; 4],
}

impl Knowledge {
    fn learn(&mut self, frame: &Frame) {
        let bytes = postcard::to_stdvec(frame).unwrap();
        let mut reader = Reader(&bytes);
        reader.skip(2 * 16);
        let _path = reader.number();
        if reader.number() != 0 {
            return;
        }
        self.packets.push((reader.number(), reader.number()));
        for _floor_message_offset_length_silence in 0..5 {
            reader.number();
        }
        reader.skip(16);
        let _peer_qp_and_qkey = (reader.number(), reader.number());
        if reader.number() == 2 {
            for _qp_memory_length in 0..4 {
                reader.number();
            }
            self.reads.push([(); 3].map(|()| reader.number()));
        }
    }
}

struct Attack {
    net: Net,
    qps: Vec<Qp>,
    /// Regions that peers may read and write, one for each queue pair.
    regions: Vec<Region>,
    /// Memory that peers may not write.
    precious: Precious,
    sent: Arc<Sent>,
    knowledge: Knowledge,
}

impl Attack {
    fn new(settings: Settings) -> Self {
        let mut net = Net::new(&[Profile::Efa3; 2], settings);
        let mut qps: Vec<_> = [QpType::Srd, QpType::Ud]
            .iter()
            .flat_map(|kind| [(0, *kind), (1, *kind)])
            .map(|(port, kind)| net.qp(port, kind))
            .collect();
        for (index, qp) in qps.iter_mut().enumerate() {
            qp.ah = net.handle_of(qp, REMOTE[index % 2]);
        }
        let regions = qps.iter().map(|qp| net.region(qp, 5, 100)).collect();
        let precious = Precious::new(&mut net, &qps);
        Self {
            net,
            qps,
            regions,
            precious,
            sent: Arc::default(),
            knowledge: Knowledge::default(),
        }
    }

    fn join(&self, program: u64, addresses: &[[u8; 16]], offered: u64) -> Option<LinkId> {
        let way: Arc<dyn Link> = Arc::clone(&self.sent) as _;
        let (fabric, now) = (&self.net.fabric, self.net.now);
        let newcomer = Newcomer {
            program,
            host: None,
            addresses,
            session: fabric.session(program, addresses),
            offered,
        };
        fabric.join(now, &newcomer, &way).ok()
    }

    /// Returns a packet for one of the devices, prefixed with its length.
    fn packet(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let choice = input.byte();
        let index = usize::from(choice & 3) % self.qps.len();
        let qp = self.qps[index].clone();
        let from = REMOTE[usize::from((choice >> 2) & 1)];
        let mut bytes = Bytes::default();
        // Message kind 1 is a packet.
        bytes.number(input.nearly(1) & 3).address(from);
        bytes.address(self.net.address(qp.port));
        bytes.number(input.nearly(0) & 0xffff);
        match choice >> 4 {
            // A datagram.
            0..=2 => {
                bytes.number(2).address(from);
                let peer_qp = input.nearly(1) & 0xffff;
                let number = input.nearly(qp.number.into()) & 0xffff;
                bytes.numbers(&[peer_qp, number, input.nearly(QKEY.into()) & 0xffff_ffff]);
                bytes.optional((choice & 8 != 0).then_some(7));
                bytes.payload(usize::from(input.byte()) * 8);
            }
            // An acknowledgement of a packet from the devices.
            3..=6 => {
                let packets = &self.knowledge.packets;
                let known = packets.len().checked_sub(1 + usize::from(input.byte()));
                let (connection, psn) = known.map_or((1, 1), |known| packets[known]);
                bytes.numbers(&[1, input.nearly(connection), input.nearly(psn)]);
                match input.byte() {
                    0..=127 => bytes.number(0),
                    128..=191 => bytes.number(1),
                    status => bytes.number(2).number((status % 32).into()),
                };
            }
            _ => self.part(input, &mut bytes, index, from),
        }
        let mut framed = bytes.framed();
        match input.byte() {
            0 => framed.truncate(usize::from(input.byte())),
            1 => {
                let at = usize::from(input.byte()) % framed.len();
                framed[at] ^= 1 << (input.byte() % 8);
            }
            _ => {}
        }
        framed
    }

    /// Appends a part of a message.
    fn part(&mut self, input: &mut Input<'_>, bytes: &mut Bytes, index: usize, from: [u8; 16]) {
        let choice = input.byte();
        let (qp, region) = (&self.qps[index], &self.regions[index]);
        let victim = self.precious.region(index);
        let connection = usize::from(choice & 3);
        let length = u64::from(input.byte()) * 16;
        let state = &mut self.knowledge.connections[connection];
        let [psn, message, offset] = *state;
        let is_last = choice & 4 != 0;
        *state = match is_last {
            true => [psn + 1, message + 1, 0],
            false => [psn + 1, message, offset + length],
        };
        bytes.number(0);
        bytes.numbers(&[input.nearly(connection as u64), input.nearly(psn)]);
        bytes.numbers(&[input.nearly(psn.saturating_sub(2)), input.nearly(message)]);
        let claimed_length = input.nearly(length) & 0xffff_ffff;
        bytes.numbers(&[input.nearly(offset) & 0xffff_ffff, claimed_length]);
        bytes.number(input.nearly(2) & 0xffff);
        bytes
            .address(from)
            .number(input.nearly(1 + connection as u64) & 0xffff);
        bytes.number(input.nearly(QKEY.into()) & 0xffff_ffff);
        let number = input.nearly(qp.number.into()) & 0xffff;
        let target = if choice & 8 == 0 { region } else { victim };
        let key = input.nearly(target.rkey.into()) & 0xffff_ffff;
        let memory = [key, input.nearly(target.iova)];
        let whole = input.nearly(offset + length) & 0xffff_ffff;
        let reads = &self.knowledge.reads;
        let known = reads.len().checked_sub(1 + usize::from(choice >> 6));
        let [qp, incarnation, request] = known.map_or([1, 0, 1], |known| reads[known]);
        let reader = [
            input.nearly(qp) & 0xffff,
            input.nearly(incarnation) & 0xffff_ffff,
            input.nearly(request),
        ];
        let immediate = (choice & 16 != 0).then_some(5);
        match input.byte() % 8 {
            0..=2 => bytes.numbers(&[0, number]).optional(immediate),
            3 | 4 => bytes
                .numbers(&[1, number])
                .numbers(&memory)
                .number(whole)
                .optional(immediate)
                .number(((choice >> 5) & 1).into()),
            5 => bytes
                .numbers(&[2, number])
                .numbers(&memory)
                .number(whole)
                .numbers(&reader)
                .number(0),
            6 => bytes.number(3).numbers(&reader),
            // Below 128, so it is encoded as one byte.
            _ => bytes
                .number(4)
                .numbers(&reader)
                .number((input.byte() % 128).into()),
        };
        bytes.payload(length as usize);
    }

    /// Posts a work request of a device: to the attacker, or a receive.
    fn work(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let index = usize::from(choice & 3) % self.qps.len();
        let (qp, region) = (&mut self.qps[index], &self.regions[index]);
        if choice & 4 == 0 {
            let desc = RxDesc {
                buf_addr: region.iova,
                req_id: 1,
                length: 8928,
                lkey_ctrl: RxLkeyCtrl {
                    lkey: region.lkey,
                    first: true,
                    last: true,
                },
            };
            self.net.put_receive(qp, &desc);
            return;
        }
        let operations = [OpType::Send, OpType::RdmaRead, OpType::RdmaWrite];
        let operation = operations[usize::from(choice >> 4) % 3];
        let length = u32::from(input.byte()) * 64;
        let send = Send {
            operation: operation.into(),
            buffers: vec![(region.iova, length, region.lkey)],
            remote: (operation != OpType::Send).then_some((0x1000, length, 7)),
            ah: Some(qp.ah),
            peer_qp: 1,
            ..Send::default()
        };
        self.net.post(qp, &send);
    }

    fn step<P: Protocol>(&mut self, input: &mut Input<'_>, link: &mut LinkId) {
        let choice = input.byte();
        match choice % 8 {
            0..=3 => {
                let mut bytes = Vec::new();
                for _ in 0..=choice >> 6 {
                    bytes.extend(self.packet(input));
                }
                let (fabric, now) = (&self.net.fabric, self.net.now);
                P::receive(&bytes, &mut |frame| fabric.accept(now, *link, frame, 1000));
            }
            4 => {
                let bytes: Vec<_> = (0..choice >> 3).map(|_| input.byte()).collect();
                let (fabric, now) = (&self.net.fabric, self.net.now);
                P::receive(&bytes, &mut |frame| fabric.accept(now, *link, frame, 1000));
            }
            5 | 6 => self.work(input),
            _ if choice >= 240 => {
                self.net.fabric.leave(self.net.now, *link);
                // The same program, with or without its state, or a restarted one.
                let (program, offered) = (u64::from(choice & 8), u64::from(choice & 1));
                if let Some(again) = self.join(program, &REMOTE[..2], offered) {
                    *link = again;
                }
            }
            _ => {
                let time = Duration::from_micros(u64::from(input.u32()) % 20_000);
                self.net.run_for(time);
            }
        }
        self.net.run();
        for frame in self.sent.0.lock().unwrap().drain(..) {
            self.knowledge.learn(&frame);
        }
    }

    /// Checks that protected memory has not changed, and that the devices still exchange data.
    fn check(&mut self) {
        self.precious.check(&mut self.net);
        precious::check_exchange(&mut self.net);
    }
}

/// Sends payload in messages that have none, for which there is no memory.
pub fn send_payload_with_requests<P: Protocol>() {
    let mut attack = Attack::new(Settings::default());
    let link = attack.join(8, &REMOTE[..2], 0).unwrap();
    let (qp, region) = (attack.qps[0].clone(), attack.regions[0].clone());
    let to = attack.net.address(qp.port);
    let reader = [1, 0, 1];
    let mut read = Bytes::default();
    read.numbers(&[2, qp.number.into(), region.rkey.into(), region.iova, 64]);
    read.numbers(&reader).number(0);
    let mut failure = Bytes::default();
    failure.number(4).numbers(&reader).number(1);
    for (psn, subject) in (0..).zip([read, failure]) {
        let mut bytes = Bytes::default();
        bytes.number(1).address(REMOTE[0]).address(to).number(0);
        // Packet kind 0 (a part), connection, packet number, floor, message number, offset, length and silence.
        bytes.numbers(&[0, 1, psn, 0, psn, 0, 64, 2]);
        bytes.address(REMOTE[0]).numbers(&[1, QKEY.into()]);
        bytes.0.extend(subject.0);
        bytes.payload(64);
        let (fabric, now) = (&attack.net.fabric, attack.net.now);
        P::receive(&bytes.framed(), &mut |frame| {
            fabric.accept(now, link, frame, 1000)
        });
    }
    attack.check();
}

/// Plays an attack, according to the bytes.
pub fn play<P: Protocol>(data: &[u8]) {
    let mut input = Input(data);
    let mut settings = Settings::default();
    let first = input.byte();
    if first & 1 != 0 {
        settings.loss = 0.2;
        settings.jitter_us = 30.0;
        settings.path = vec![PathSettings {
            down: true,
            ..PathSettings::default()
        }];
    }
    let version = input.nearly(LINK_VERSION.into());
    let devices = if first & 2 == 0 { 2 } else { input.nearly(2) };
    let mut hello = Bytes::default();
    hello.numbers(&[version, 8, devices]);
    for index in 0..devices.min(300) {
        hello.address(REMOTE[index as usize % REMOTE.len()]);
    }
    let mut hello = hello.framed();
    if first & 4 != 0 {
        hello.extend_from_slice(input.0);
        hello.truncate(usize::from(first) * 4);
    }
    let greeted = P::greet(&hello);
    let mut attack = Attack::new(settings);
    if let Some(mut link) = greeted.and_then(|(program, devices)| attack.join(program, &devices, 0))
    {
        for _ in 0..MAX_STEPS {
            if input.is_empty() {
                break;
            }
            attack.step::<P>(&mut input, &mut link);
        }
        attack.net.fabric.leave(attack.net.now, link);
    }
    attack.net.run_for(Duration::from_secs(30));
    attack.check();
}
