// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Encoder of messages that an emulator sends to another one over TCP, by which an attacker can send anything.

use efa_fabric::LINK_VERSION;

use crate::net::pattern;

/// A message under construction.
#[derive(Debug, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Adds a number, in 7 bits per byte.
    pub fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    /// Adds numbers.
    pub fn numbers(&mut self, numbers: &[u64]) -> &mut Self {
        for number in numbers {
            self.number(*number);
        }
        self
    }

    /// Adds the address of a device.
    pub fn address(&mut self, address: [u8; 16]) -> &mut Self {
        self.0.extend(address);
        self
    }

    /// Adds a number that may be absent.
    pub fn optional(&mut self, number: Option<u64>) -> &mut Self {
        self.0.push(u8::from(number.is_some()));
        number.into_iter().for_each(|number| {
            self.number(number);
        });
        self
    }

    /// Adds `length` bytes of payload, prefixed with their number.
    pub fn payload(&mut self, length: usize) -> &mut Self {
        self.number(length as u64);
        self.0.extend(pattern(length, 9));
        self
    }

    /// Returns the bytes, prefixed with their number in 32 bits.
    pub fn framed(self) -> Vec<u8> {
        let mut bytes = (self.0.len() as u32).to_le_bytes().to_vec();
        bytes.extend(self.0);
        bytes
    }
}

/// Returns the greeting of a program with devices of these addresses, and the number of its session.
pub fn hello(program: u64, devices: &[[u8; 16]]) -> Vec<u8> {
    let mut bytes = Bytes::default();
    bytes.numbers(&[LINK_VERSION.into(), program, devices.len() as u64]);
    for device in devices {
        bytes.address(*device);
    }
    let mut session = Bytes::default();
    session.number(1);
    [bytes.framed(), session.framed()].concat()
}

/// Fields that packets between two devices have in common.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Address of the sender.
    pub from: [u8; 16],
    /// Address of the receiver.
    pub to: [u8; 16],
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
}

impl Ends {
    /// Returns the beginning of a packet of some kind.
    fn packet(self, kind: u64) -> Bytes {
        let mut bytes = Bytes::default();
        // Message kind 1 is a packet. It takes path 0.
        bytes.number(1).address(self.from).address(self.to);
        bytes.numbers(&[0, kind]);
        bytes
    }

    /// Returns an acknowledgement of a packet.
    pub fn ack(self, connection: u64, psn: u64) -> Vec<u8> {
        let mut bytes = self.packet(1);
        bytes.numbers(&[connection, psn, 0]);
        bytes.framed()
    }

    /// Returns a datagram for a queue pair.
    pub fn datagram(self, qp: u64, length: usize) -> Vec<u8> {
        let mut bytes = self.packet(2);
        bytes.address(self.from).numbers(&[1, qp, self.qkey.into()]);
        bytes.optional(None).payload(length);
        bytes.framed()
    }

    /// Returns the beginning of a part of a message with `length` bytes.
    fn part(self, place: Place, length: usize) -> Bytes {
        let mut bytes = self.packet(0);
        let Place {
            connection,
            psn,
            floor,
            message,
        } = place;
        bytes.numbers(&[connection, psn, floor, message, 0, length as u64, 2]);
        bytes.address(self.from).numbers(&[1, self.qkey.into()]);
        bytes
    }

    /// Returns a whole message for a queue pair.
    pub fn send(self, place: Place, qp: u64, length: usize) -> Vec<u8> {
        let mut bytes = self.part(place, length);
        bytes.numbers(&[0, qp]).optional(None).payload(length);
        bytes.framed()
    }

    /// Returns a whole write through a queue pair of the receiver, to memory with this key.
    pub fn write(self, place: Place, qp: u64, rkey: u64, length: usize) -> Vec<u8> {
        let mut bytes = self.part(place, length);
        bytes.numbers(&[1, qp, rkey, 0, length as u64]);
        bytes.optional(None).number(0).payload(length);
        bytes.framed()
    }
}
