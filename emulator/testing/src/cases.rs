// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Data exchange of two queue pairs: each case runs in process and over vfio-user sockets.

use efa_hw::io::{Cdesc, CompStatus, OpType, QueueType};

use crate::{
    bus::PAGE,
    machine::End,
    qp::{self, Qp, Send},
    region::{Region, pattern},
};

/// Two queue pairs, 0 and 1, each with a region.
pub trait Pair {
    /// Returns one of the queue pairs, and its region, of at least 250 pages.
    fn end(&self, at: usize) -> (&Qp, &Region);

    /// Writes to the start of its region.
    fn fill(&mut self, at: usize, bytes: &[u8]);

    /// Reads its region.
    fn content(&mut self, at: usize, offset: u64, length: usize) -> Vec<u8>;

    /// Posts a send work request; returns its id.
    fn post(&mut self, at: usize, send: &Send) -> u16;

    /// Posts a receive work request of buffers: address, length and key; returns its id.
    fn receive(&mut self, at: usize, buffers: &[(u64, u16, u32)]) -> u16;

    /// Takes the next completion, if there is one.
    fn poll(&mut self, at: usize) -> Option<Cdesc>;

    /// Waits for the next completion.
    fn wait(&mut self, at: usize) -> Cdesc;
}

impl Pair for [End; 2] {
    fn end(&self, at: usize) -> (&Qp, &Region) {
        (&self[at].qp, &self[at].region)
    }

    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self[at].fill(bytes);
    }

    fn content(&mut self, at: usize, offset: u64, length: usize) -> Vec<u8> {
        self[at].content(offset, length)
    }

    fn post(&mut self, at: usize, send: &Send) -> u16 {
        self[at].post(send)
    }

    fn receive(&mut self, at: usize, buffers: &[(u64, u16, u32)]) -> u16 {
        self[at].receive_into(buffers)
    }

    fn poll(&mut self, at: usize) -> Option<Cdesc> {
        self[at].poll()
    }

    fn wait(&mut self, at: usize) -> Cdesc {
        self[at].completion()
    }
}

/// Runs all cases, in both directions.
pub fn all(pair: &mut impl Pair) {
    for from in [0, 1] {
        messages_of_all_lengths(pair, from);
        several_buffers_on_both_sides(pair, from);
        inline_data(pair, from);
        writes_and_reads_of_all_lengths(pair, from);
        a_write_with_immediate_data(pair, from);
        assert_eq!((pair.poll(0), pair.poll(1)), (None, None));
    }
}

fn assert_ok(completion: &Cdesc, queue: QueueType, operation: OpType) {
    assert_eq!(completion.status, 0, "{completion:?}");
    assert_eq!(completion.flags.q_type, u8::from(queue));
    assert_eq!(completion.flags.op_type, u8::from(operation));
}

/// Returns a message from the region to the other queue pair.
fn message(pair: &impl Pair, from: usize, length: u32) -> Send {
    Send::message(pair.end(1 - from).0, pair.end(from).1, length)
}

/// Returns a write from the region to the other one.
fn write(pair: &impl Pair, from: usize, length: u32) -> Send {
    let (peer, theirs) = pair.end(1 - from);
    Send::write(peer, pair.end(from).1, theirs, length)
}

/// Returns a part of a region as a receive buffer.
fn buffer(pair: &impl Pair, at: usize, offset: u64, length: u16) -> (u64, u16, u32) {
    let (_, region) = pair.end(at);
    (region.iova + offset, length, region.lkey)
}

fn messages_of_all_lengths(pair: &mut impl Pair, from: usize) {
    let to = 1 - from;
    for length in [0, 1, 7, 8, 9, 64, 4095, 4096, 4097, 8928] {
        let bytes = pattern(length as usize, length.into());
        pair.fill(from, &bytes);
        let place = buffer(pair, to, 0, 9000);
        let received = pair.receive(to, &[place]);
        let mut send = message(pair, from, length);
        send.immediate = (length % 2 == 0).then_some(length);
        let sent = pair.post(from, &send);

        let completion = pair.wait(from);
        assert_ok(&completion, QueueType::Send, OpType::Send);
        assert_eq!((completion.req_id, completion.qp_num), (sent, pair.end(from).0.number));
        assert_eq!((completion.length, completion.ah), (0, 0));

        let completion = pair.wait(to);
        assert_ok(&completion, QueueType::Receive, OpType::Send);
        let (own, peer) = (pair.end(to).0, pair.end(from).0);
        assert_eq!((completion.req_id, completion.qp_num), (received, own.number));
        assert_eq!(u32::from(completion.length), length);
        assert_eq!((completion.ah, completion.src_qp_num), (own.ah, peer.number));
        assert_eq!(completion.flags.has_imm, send.immediate.is_some());
        assert_eq!(completion.imm, send.immediate.unwrap_or(0));
        assert_eq!(pair.content(to, 0, length as usize), bytes);
    }
}

fn several_buffers_on_both_sides(pair: &mut impl Pair, from: usize) {
    let to = 1 - from;
    let bytes = pattern(6000, 1);
    pair.fill(from, &bytes);
    pair.fill(to, &[0; 8000]);
    let parts = [(5000, 100), (0, 4990), (6000, 2000)];
    let buffers = parts.map(|(offset, length)| buffer(pair, to, offset, length));
    pair.receive(to, &buffers);
    // The second half of the memory is sent first.
    let mut send = message(pair, from, 3000);
    let (address, length, key) = send.buffers[0];
    send.buffers.insert(0, (address + 3000, length, key));
    pair.post(from, &send);
    assert_eq!(pair.wait(from).status, 0);
    assert_eq!(pair.wait(to).length, 6000);
    let expected = [&bytes[3000..], &bytes[..3000]].concat();
    assert_eq!(pair.content(to, 5000, 100), expected[..100]);
    assert_eq!(pair.content(to, 0, 4990), expected[100..5090]);
    assert_eq!(pair.content(to, 6000, 910), expected[5090..]);
    // Memory beyond the message is unchanged.
    assert_eq!(pair.content(to, 6910, 100), [0; 100]);
}

/// Messages and writes with inline data, up to the maximum.
fn inline_data(pair: &mut impl Pair, from: usize) {
    let to = 1 - from;
    let room = pair.end(from).0.wqe_size as usize;
    for length in [1, (room - 32).min(80)] {
        let bytes = pattern(length, 5);
        let place = buffer(pair, to, 0, 100);
        pair.receive(to, &[place]);
        let send = Send { inline: Some(bytes.clone()), peer_qp: pair.end(to).0.number, ..Send::default() };
        pair.post(from, &send);
        assert_eq!(pair.wait(from).status, 0);
        assert_eq!(usize::from(pair.wait(to).length), length);
        assert_eq!(pair.content(to, 0, length), bytes);
    }
    pair.fill(to, &[0; 100]);
    let bytes = pattern(room - 48, 6);
    let mut send = write(pair, from, bytes.len() as u32);
    send.buffers.clear();
    send.inline = Some(bytes.clone());
    pair.post(from, &send);
    let completion = pair.wait(from);
    if room == 64 {
        // A work request of 64 bytes has no room for data beside the remote memory.
        assert_eq!(qp::status(&completion), CompStatus::LocalBadLength);
        return;
    }
    assert_ok(&completion, QueueType::Send, OpType::RdmaWrite);
    assert_eq!(pair.content(to, 0, bytes.len()), bytes);
    assert_eq!(pair.content(to, bytes.len() as u64, 1), [0]);
}

fn writes_and_reads_of_all_lengths(pair: &mut impl Pair, from: usize) {
    let to = 1 - from;
    // As many whole pages as fit into both regions.
    let most = (pair.end(0).1.pages.len() as u32 - 1) * PAGE as u32;
    for length in [0, 1, 4096, 8928, 8929, most] {
        let bytes = pattern(length as usize, length.into());
        pair.fill(from, &bytes);
        pair.fill(to, &vec![0; bytes.len()]);
        let mut send = write(pair, from, length);
        pair.post(from, &send);
        assert_ok(&pair.wait(from), QueueType::Send, OpType::RdmaWrite);
        assert_eq!(pair.content(to, 0, bytes.len()), bytes);
        pair.fill(from, &vec![0; bytes.len()]);
        send.operation = OpType::RdmaRead.into();
        pair.post(from, &send);
        assert_ok(&pair.wait(from), QueueType::Send, OpType::RdmaRead);
        assert_eq!(pair.content(from, 0, bytes.len()), bytes);
    }
    // The peer has no completion.
    assert_eq!(pair.poll(to), None);
}

fn a_write_with_immediate_data(pair: &mut impl Pair, from: usize) {
    const LENGTH: u32 = 100_000;
    let to = 1 - from;
    let bytes = pattern(LENGTH as usize, 3);
    pair.fill(from, &bytes);
    let place = buffer(pair, to, 0, 1);
    let received = pair.receive(to, &[place]);
    let mut send = write(pair, from, LENGTH);
    send.immediate = Some(0xdead_beef);
    pair.post(from, &send);
    assert_ok(&pair.wait(from), QueueType::Send, OpType::RdmaWrite);
    let completion = pair.wait(to);
    assert_ok(&completion, QueueType::Receive, OpType::RdmaWrite);
    assert_eq!((completion.req_id, completion.imm), (received, 0xdead_beef));
    assert!(completion.flags.has_imm && !completion.flags.unsolicited);
    let high = u16::from_le_bytes([completion.extension[0], completion.extension[1]]);
    let length = u32::from(completion.length) | (u32::from(high) << 16);
    assert_eq!(length, LENGTH);
    assert_eq!(pair.content(to, 0, bytes.len()), bytes);
}
