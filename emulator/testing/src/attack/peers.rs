// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Another emulator that sends anything over its link, to devices that communicate with it and with each other.
//!
//! It sends bytes as over TCP. Most of them are packets that match the actions of the devices, with some faults.

use std::sync::Mutex;

use efa_fabric::{Address, LINK_VERSION};
use postcard::take_from_bytes;

use super::{
    Input,
    victims::{Victims, settings},
};
use crate::{
    peer::{Ends, Message, Place},
    prelude::*,
};

/// Decoder of an emulator, for the bytes of another one.
pub trait Protocol {
    /// Decodes a greeting: the program's number, and the addresses of its devices.
    fn greet(bytes: &[u8]) -> Option<(u64, Vec<Address>)>;

    /// Passes the packets in `bytes` to `accept`.
    fn receive(bytes: &[u8], accept: &mut dyn FnMut(Frame));
}

/// Limit on actions of an attack, each of which may be several packets.
const MAX_STEPS: usize = 256;

/// Addresses of the attacker's devices.
const REMOTE: [Address; 3] = [[0xa1; 16], [0xa2; 16], [0xa3; 16]];

/// Packets that devices send to the attacker.
#[derive(Debug, Default)]
struct Sent(Mutex<Vec<Frame>>);

impl Link for Sent {
    fn send(&self, frame: Frame) {
        self.0.lock().unwrap().push(frame);
    }
}

/// Numbers by which the attacker makes plausible packets.
#[derive(Default)]
struct Knowledge {
    /// Connection and number of each packet to it.
    packets: Vec<(u64, u64)>,
    /// Reads of its memory: queue pair, its incarnation, and the work request.
    reads: Vec<(u16, u32, u64)>,
    /// For each of its own connections, the next packet, the message, and the bytes of it that were sent.
    connections: [(u64, u64, u32); 4],
}

/// The beginning of a packet that is a part of a message: its ends and its path, and its kind.
type Head = (Address, Address, u16, u8);
/// What follows: the connection and the packet, the place of the part, its sender, and the kind of its subject.
type Part = ((u64, u64), [u64; 5], (Address, u16, u32), u8);
/// What follows in a read: its queue pair, its memory, and the reader.
type Read = (u16, (u32, u64, u32), (u16, u32, u64));

impl Knowledge {
    fn learn(&mut self, frame: &Frame) {
        let bytes = postcard::to_stdvec(frame).unwrap();
        let ((.., kind), rest) = take_from_bytes::<Head>(&bytes).unwrap();
        if kind != 0 {
            return;
        }
        let ((packet, .., kind), rest) = take_from_bytes::<Part>(rest).unwrap();
        self.packets.push(packet);
        if kind == 2 {
            let ((.., reader), _) = take_from_bytes::<Read>(rest).unwrap();
            self.reads.push(reader);
        }
    }
}

struct Attack {
    victims: Victims,
    sent: Arc<Sent>,
    knowledge: Knowledge,
}

impl Attack {
    fn new(is_faulty: bool) -> Self {
        let mut victims = Victims::new(settings(is_faulty), &[QpType::Srd, QpType::Ud]);
        let Victims { net, qps, .. } = &mut victims;
        for (index, qp) in qps.iter_mut().enumerate() {
            qp.ah = net.handle_of(qp, REMOTE[index % 2]);
        }
        Self { victims, sent: Arc::default(), knowledge: Knowledge::default() }
    }

    fn join(&self, program: u64, addresses: &[Address], offered: u64) -> Option<LinkId> {
        let way: Arc<dyn Link> = Arc::clone(&self.sent) as _;
        let (fabric, now) = (&self.victims.net.fabric, self.victims.net.now);
        let newcomer =
            Newcomer { program, host: None, addresses, session: fabric.session(program, addresses), offered };
        fabric.join(now, &newcomer, &way).ok()
    }

    fn leave(&self, link: LinkId) {
        self.victims.net.fabric.leave(self.victims.net.now, link);
    }

    /// Receives bytes of the attacker as those of a link.
    fn receive<P: Protocol>(&self, link: LinkId, bytes: &[u8]) {
        let (fabric, now) = (&self.victims.net.fabric, self.victims.net.now);
        P::receive(bytes, &mut |frame| fabric.accept(now, link, frame, 1000));
    }

    /// Returns a packet for one of the devices, prefixed with its length.
    fn packet(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let choice = input.byte();
        let Victims { net, qps, .. } = &mut self.victims;
        let index = usize::from(choice & 3) % qps.len();
        let ends = Ends { from: REMOTE[usize::from((choice >> 2) & 1)], to: net.address(qps[index].port), qkey: QKEY };
        let mut message = match choice >> 4 {
            0..=2 => {
                let immediate = (choice & 8 != 0).then_some(7);
                ends.datagram(qps[index].number, immediate, usize::from(input.byte()) * 8)
            }
            // Of a packet from the devices.
            3..=6 => {
                let packets = &self.knowledge.packets;
                let known = packets.len().checked_sub(1 + usize::from(input.byte()));
                let (connection, psn) = known.map_or((1, 1), |known| packets[known]);
                let verdict = match input.byte() {
                    0..=127 => [0].as_slice(),
                    128..=191 => &[1],
                    status => &[2, status % 32],
                };
                ends.ack(connection, psn, verdict)
            }
            _ => self.part(input, index, ends),
        };
        message.vary(|number| input.nearly(number));
        let mut framed = message.framed();
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

    /// Returns a part of a message.
    fn part(&mut self, input: &mut Input<'_>, index: usize, ends: Ends) -> Message {
        let choice = input.byte();
        let length = u32::from(input.byte()) * 16;
        let connection = usize::from(choice & 3);
        let state = &mut self.knowledge.connections[connection];
        let (psn, message, offset) = *state;
        *state = match choice & 4 {
            0 => (psn + 1, message, offset + length),
            _ => (psn + 1, message + 1, 0),
        };
        let place = Place { connection: connection as u64, psn, floor: psn.saturating_sub(2), message, offset };
        let Victims { qps, regions, precious, .. } = &self.victims;
        let targets = if choice & 8 == 0 { regions } else { precious };
        let (qp, target) = (qps[index].number, &targets[index]);
        let memory = |kind| {
            let subject = Message::new(kind).numbers([qp]).numbers([target.rkey]);
            subject.numbers([target.iova]).numbers([offset + length])
        };
        let reads = &self.knowledge.reads;
        let known = reads.len().checked_sub(1 + usize::from(choice >> 6));
        let (reader, incarnation, request) = known.map_or((1, 0, 1), |known| reads[known]);
        let of_reader = |subject: Message| subject.numbers([reader]).numbers([incarnation]).numbers([request]);
        let immediate = (choice & 16 != 0).then_some(5);
        let subject = match input.byte() % 8 {
            0..=2 => Message::new(0).numbers([qp]).optional(immediate),
            3 | 4 => memory(1).optional(immediate).bytes([(choice >> 5) & 1]),
            5 => of_reader(memory(2)).bytes([0]),
            6 => of_reader(Message::new(3)),
            _ => of_reader(Message::new(4)).bytes([input.byte() % 128]),
        };
        ends.part(place, subject, length as usize)
    }

    /// Posts a work request of a device: to the attacker, or a receive.
    fn work(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let Victims { net, qps, regions, .. } = &mut self.victims;
        let index = usize::from(choice & 3) % qps.len();
        let (qp, region) = (&mut qps[index], &regions[index]);
        if choice & 4 == 0 {
            net.receive(qp, &[(region.iova, 8928, region.lkey)]);
            return;
        }
        let operations = [OpType::Send, OpType::RdmaRead, OpType::RdmaWrite];
        let operation = operations[usize::from(choice >> 4) % 3];
        let length = u32::from(input.byte()) * 64;
        let send = Send {
            operation: operation.into(),
            buffers: vec![(region.iova, length, region.lkey)],
            remote: (operation != OpType::Send).then_some((0x1000, length, 7)),
            peer_qp: 1,
            ..Send::default()
        };
        net.post(qp, &send);
    }

    fn step<P: Protocol>(&mut self, input: &mut Input<'_>, link: &mut LinkId) {
        let choice = input.byte();
        match choice % 8 {
            0..=3 => {
                let mut bytes = Vec::new();
                for _ in 0..=choice >> 6 {
                    bytes.extend(self.packet(input));
                }
                self.receive::<P>(*link, &bytes);
            }
            4 => {
                let bytes: Vec<_> = (0..choice >> 3).map(|_| input.byte()).collect();
                self.receive::<P>(*link, &bytes);
            }
            5 | 6 => self.work(input),
            _ if choice >= 240 => {
                self.leave(*link);
                // The same program, with or without its state, or a restarted one.
                let (program, offered) = (u64::from(choice & 8), u64::from(choice & 1));
                if let Some(again) = self.join(program, &REMOTE[..2], offered) {
                    *link = again;
                }
            }
            _ => {
                let time = Duration::from_micros(u64::from(input.u32()) % 20_000);
                self.victims.net.run_for(time);
            }
        }
        self.victims.net.run();
        for frame in self.sent.0.lock().unwrap().drain(..) {
            self.knowledge.learn(&frame);
        }
    }
}

/// Sends payload in messages that have none, for which there is no memory.
pub fn send_payload_with_requests<P: Protocol>() {
    let mut attack = Attack::new(false);
    let link = attack.join(8, &REMOTE[..2], 0).unwrap();
    let Victims { net, qps, regions, .. } = &mut attack.victims;
    let (qp, region) = (&qps[0], &regions[0]);
    let ends = Ends { from: REMOTE[0], to: net.address(qp.port), qkey: QKEY };
    let read = Message::new(2).numbers([qp.number]).numbers([region.rkey]);
    let read = read.numbers([region.iova]).numbers([64_u32]);
    let reader = |subject: Message, end| subject.numbers([1_u16]).numbers([0_u32]).numbers([1_u64]).bytes([end]);
    for (psn, subject) in (0..).zip([reader(read, 0), reader(Message::new(4), 1)]) {
        let place = Place { connection: 1, psn, message: psn, ..Place::default() };
        attack.receive::<P>(link, &ends.part(place, subject, 64).framed());
    }
    attack.victims.check();
}

/// Plays an attack, according to the bytes.
pub fn play<P: Protocol>(data: &[u8]) {
    let mut input = Input(data);
    let first = input.byte();
    let version = input.nearly(LINK_VERSION.into());
    let devices = if first & 2 == 0 { 2 } else { input.nearly(2) };
    let addresses = REMOTE.iter().cycle().take(devices.min(300) as usize);
    let addresses: Vec<u8> = addresses.flatten().copied().collect();
    let hello = Message::default().numbers([version, 8, devices]);
    let mut hello = hello.bytes(addresses).framed();
    if first & 4 != 0 {
        hello.extend_from_slice(input.0);
        hello.truncate(usize::from(first) * 4);
    }
    let greeted = P::greet(&hello);
    let mut attack = Attack::new(first & 1 != 0);
    if let Some(mut link) = greeted.and_then(|(program, devices)| attack.join(program, &devices, 0)) {
        for _ in 0..MAX_STEPS {
            if input.is_empty() {
                break;
            }
            attack.step::<P>(&mut input, &mut link);
        }
        attack.leave(link);
    }
    attack.victims.net.run_for(Duration::from_secs(30));
    attack.victims.check();
}
