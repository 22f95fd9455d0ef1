// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A machine with a queue pair and a region.

use std::path::Path;

use efa_hw::{admin::qp::QpType, io::CompStatus};

use crate::{Machine, QueuePair, Region, Send};

/// Bytes of the region.
const REGION: u64 = 4 << 20;

/// Memory of the machine: that, its page list, and the queues.
const RAM: u64 = REGION + (4 << 20);

/// A machine with a queue pair and a region.
#[derive(Debug)]
pub struct End {
    /// The machine.
    pub machine: Machine,
    /// Its queue pair.
    pub qp: QueuePair,
    /// Its region.
    pub region: Region,
}

impl End {
    /// Plugs a device in.
    pub fn new(socket: &Path, qp_type: QpType) -> Self {
        let mut machine = Machine::start(socket, RAM);
        let qp = QueuePair::new(&mut machine, qp_type);
        let region = qp.region(&mut machine, REGION);
        Self {
            machine,
            qp,
            region,
        }
    }

    /// Makes two know each other.
    pub fn introduce(a: &mut Self, b: &mut Self) {
        let (to_a, to_b) = (a.machine.address(), b.machine.address());
        a.qp.connect(&mut a.machine, to_b);
        b.qp.connect(&mut b.machine, to_a);
    }

    /// Posts a work request and waits until it has ended.
    pub fn run(&mut self, send: &Send) -> CompStatus {
        self.qp.post(&mut self.machine, send);
        self.qp.wait(&self.machine)
    }

    /// Writes bytes to the start of another one's region, and compares what is there then.
    pub fn write_to(&mut self, other: &Self, bytes: &[u8]) {
        self.region.fill(&self.machine, bytes);
        // CAST: of a test.
        let send = Send::write(&other.qp, &self.region, &other.region, bytes.len() as u32);
        assert_eq!(self.run(&send), CompStatus::Ok);
        assert!(other.region.content(&other.machine, 0, bytes.len()) == bytes);
    }
}

/// Bytes that tell where they are.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(byte).collect()
}
