// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Encoder of messages that an emulator sends to another one over TCP, by which an attacker can send anything.

use efa_fabric::{Address, LINK_VERSION};

use crate::region::pattern;

/// A message, or its end, under construction.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<Item>);

#[derive(Clone, Debug)]
enum Item {
    /// A number, and the largest one that fits.
    Number(u64, u64),
    Bytes(Vec<u8>),
}

impl Message {
    /// Returns a message that begins with its kind, or with that of its contents.
    pub fn new(kind: u8) -> Self {
        Self(vec![Item::Bytes(vec![kind])])
    }

    /// Adds numbers.
    pub fn numbers<T: Into<u64>, const N: usize>(mut self, numbers: [T; N]) -> Self {
        let most = u64::MAX >> (64 - 8 * size_of::<T>());
        let items = numbers.map(|number| Item::Number(number.into(), most));
        self.0.extend(items);
        self
    }

    /// Adds bytes.
    pub fn bytes(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.push(Item::Bytes(bytes.into()));
        self
    }

    /// Adds a number that may be absent.
    pub fn optional(self, number: Option<u32>) -> Self {
        match number {
            None => self.bytes([0]),
            Some(number) => self.bytes([1]).numbers([number]),
        }
    }

    /// Replaces each number, as far as the new one fits.
    pub fn vary(&mut self, mut vary: impl FnMut(u64) -> u64) {
        for item in &mut self.0 {
            if let Item::Number(number, most) = item {
                *number = vary(*number) & *most;
            }
        }
    }

    /// Returns the bytes, prefixed with their number.
    pub fn framed(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        for item in &self.0 {
            match item {
                Item::Number(number, _) => bytes.extend(postcard::to_stdvec(number).unwrap()),
                Item::Bytes(more) => bytes.extend(more),
            }
        }
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }
}

/// Returns the greeting of a program with devices of these addresses, and the number of its session.
pub fn hello(program: u64, devices: &[Address]) -> Vec<u8> {
    let greeting = Message::default().numbers([LINK_VERSION]);
    let greeting = greeting.numbers([program, devices.len() as u64]);
    let session = Message::default().numbers([1_u64]);
    [greeting.bytes(devices.concat()).framed(), session.framed()].concat()
}

/// Fields that packets between two devices have in common.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Address of the sender.
    pub from: Address,
    /// Address of the receiver.
    pub to: Address,
    /// The Q_Key of messages.
    pub qkey: u32,
}

/// Position of a packet in the traffic of its sender.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Number of the connection.
    pub connection: u64,
    /// Number of the packet.
    pub psn: u64,
    /// All packets with lower numbers are concluded.
    pub floor: u64,
    /// Number of the message.
    pub message: u64,
    /// Offset in the message.
    pub offset: u32,
}

impl Ends {
    /// Returns the beginning of a packet of some kind.
    fn packet(self, kind: u8) -> Message {
        // Message kind 1 is a packet. It takes path 0.
        let message = Message(vec![Item::Number(1, 3)]);
        let message = message.bytes(self.from).bytes(self.to);
        message.numbers([0_u16]).bytes([kind])
    }

    /// Returns an acknowledgement of a packet, with the bytes of its verdict.
    pub fn ack(self, connection: u64, psn: u64, verdict: &[u8]) -> Message {
        self.packet(1).numbers([connection, psn]).bytes(verdict)
    }

    /// Returns a datagram for a queue pair.
    pub fn datagram(self, qp: u16, immediate: Option<u32>, length: usize) -> Message {
        let message = self.packet(2).bytes(self.from).numbers([1_u16, qp]);
        let message = message.numbers([self.qkey]).optional(immediate);
        message.bytes(payload(length))
    }

    /// Returns a part of a message with this subject.
    pub fn part(self, place: Place, subject: Message, length: usize) -> Message {
        let Place { connection, psn, floor, message, offset } = place;
        let mut part = self.packet(0).numbers([connection, psn, floor, message]);
        part = part.numbers([offset, length as u32]).numbers([2_u16]);
        part = part.bytes(self.from).numbers([1_u16]).numbers([self.qkey]);
        part.0.extend(subject.0);
        part.bytes(payload(length))
    }

    /// Returns a whole message for a queue pair.
    pub fn send(self, place: Place, qp: u16, length: usize) -> Message {
        self.part(place, Message::new(0).numbers([qp]).optional(None), length)
    }

    /// Returns a whole write through a queue pair of the receiver, to the memory with this key.
    pub fn write(self, place: Place, qp: u16, rkey: u32, length: usize) -> Message {
        let subject = Message::new(1).numbers([qp]).numbers([rkey]).numbers([0_u64]);
        let subject = subject.numbers([length as u32]).optional(None).bytes([0]);
        self.part(place, subject, length)
    }
}

fn payload(length: usize) -> Vec<u8> {
    postcard::to_stdvec(&pattern(length, 9)).unwrap()
}
