// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A machine with a queue pair and a region.

use std::path::{Path, PathBuf};

use efa_hw::{
    admin::{mr::RegMr, qp::QpType},
    io::{Cdesc, CompStatus},
};

use super::Machine;
use crate::{
    bus::{Memory, PAGE},
    commands::reg_mr,
    qp::{self, Qp, Send, Shape},
    region::{ALL_PERMISSIONS, Region},
    wait::wait_for,
};

/// Bytes of the region.
const REGION: u64 = 4 << 20;

/// Bytes of the machine's memory, for the region, its page list, and the queues.
const RAM: u64 = REGION + (4 << 20);

/// Work requests in each queue.
const DEPTHS: [u16; 2] = [512; 2];

/// A machine with a queue pair and a region.
pub struct End {
    /// The machine.
    pub machine: Machine,
    /// The address of its device.
    pub address: [u8; 16],
    /// Its queue pair.
    pub qp: Qp,
    /// Its region, whose addresses are bus addresses.
    pub region: Region,
}

impl End {
    /// Connects to the device at a socket, and creates a queue pair and a region.
    pub fn new(socket: &Path, qp_type: QpType) -> Self {
        let mut machine = Machine::start(socket, RAM);
        let shape = Shape { depths: DEPTHS, ..Shape::new(qp_type, 64) };
        let qp = Qp::new(&mut machine, shape);
        let iova = machine.world.allocate(REGION / PAGE);
        let pages = (0..REGION / PAGE).map(|page| iova + page * PAGE).collect();
        let command = RegMr { permissions: ALL_PERMISSIONS, ..reg_mr(qp.pd, iova, REGION) };
        Self { region: Region::new(&mut machine, pages, command), address: machine.address(), machine, qp }
    }

    /// As [`Self::new`], for two machines, with address handles of each other.
    pub fn pair(sockets: [PathBuf; 2], qp_type: QpType) -> [Self; 2] {
        let mut pair = sockets.map(|socket| Self::new(&socket, qp_type));
        let [a, b] = &mut pair;
        Self::introduce(a, b);
        pair
    }

    /// Creates address handles of both machines for each other.
    pub fn introduce(a: &mut Self, b: &mut Self) {
        a.connect(b.address);
        b.connect(a.address);
    }

    /// Creates an address handle of a device, which later work requests use.
    pub fn connect(&mut self, address: [u8; 16]) {
        self.qp.ah = self.qp.handle_of(&mut self.machine, address);
    }

    /// Writes a send work request without ringing the doorbell; returns its id.
    pub fn put(&mut self, send: &Send) -> u16 {
        self.qp.put(&mut self.machine.world, send)
    }

    /// Rings the doorbell of the send queue.
    pub fn ring(&mut self) {
        self.qp.ring_send(&mut self.machine);
    }

    /// Posts a send work request; returns its id.
    pub fn post(&mut self, send: &Send) -> u16 {
        let req_id = self.put(send);
        self.ring();
        req_id
    }

    /// Posts a receive work request for memory of its region.
    pub fn receive(&mut self, offset: u64, length: u16) {
        self.receive_into(&[(self.region.iova + offset, length, self.region.lkey)]);
    }

    /// Posts a receive work request of these buffers: address, length and key; returns its id.
    pub fn receive_into(&mut self, buffers: &[(u64, u16, u32)]) -> u16 {
        let req_id = self.qp.put_receives(&self.machine.world, buffers);
        self.qp.ring_receive(&mut self.machine);
        req_id
    }

    /// Takes the next completion, if there is one.
    pub fn poll(&mut self) -> Option<Cdesc> {
        self.qp.cq.poll(&self.machine.world)
    }

    /// Waits for the next completion.
    pub fn completion(&mut self) -> Cdesc {
        wait_for("completion of a work request", || self.poll().ok_or(()))
    }

    /// Waits for the next completion; returns its status.
    pub fn wait(&mut self) -> CompStatus {
        qp::status(&self.completion())
    }

    /// Posts a work request and waits for the next completion; returns its status.
    pub fn run(&mut self, send: &Send) -> CompStatus {
        self.post(send);
        self.wait()
    }

    /// Writes to the start of its region, as the program does.
    pub fn fill(&self, bytes: &[u8]) {
        self.region.fill(&self.machine.world, 0, bytes);
    }

    /// Reads its region, as the program does.
    pub fn content(&self, offset: u64, length: usize) -> Vec<u8> {
        self.region.content(&self.machine.world, offset, length)
    }

    /// Writes bytes to the start of another machine's region by RDMA; checks that region.
    pub fn write_to(&mut self, other: &Self, bytes: &[u8]) {
        self.fill(bytes);
        // CAST: tests write little.
        let send = Send::write(&other.qp, &self.region, &other.region, bytes.len() as u32);
        assert_eq!(self.run(&send), CompStatus::Ok);
        assert!(other.content(0, bytes.len()) == bytes);
    }
}
