// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Two queue pairs that exchange data.

use std::ops::{Deref, DerefMut};

use efa_fabric::Settings;
use efa_hw::{
    admin::qp::{QpState, QpType},
    io::{Cdesc, CompStatus},
};
use efa_model::Profile;

use super::{LONG, Net};
use crate::{
    cases::Pair,
    qp::{self, Qp, Send, Shape},
    region::{Region, pattern},
};

/// Queue pairs of devices 0 and 1 of a network, with address handles of each other, and a region of each, with different contents.
pub struct Peers {
    pub net: Net,
    pub qps: [Qp; 2],
    pub regions: [Region; 2],
}

impl Deref for Peers {
    type Target = Net;

    fn deref(&self) -> &Net {
        &self.net
    }
}

impl DerefMut for Peers {
    fn deref_mut(&mut self) -> &mut Net {
        &mut self.net
    }
}

impl Peers {
    /// Creates SRD queue pairs and regions of four pages.
    pub fn new(settings: Settings) -> Self {
        Self::of(settings, QpType::Srd, 4)
    }

    /// Creates queue pairs of a transport, with work requests of 128 bytes, and regions of `pages` pages.
    pub fn of(settings: Settings, qp_type: QpType, pages: u64) -> Self {
        Self::with(settings, [Shape::new(qp_type, 128); 2], [(pages, 0); 2])
    }

    /// Creates queue pairs of these shapes, and regions of so many pages that start at an offset in the first one.
    pub fn with(settings: Settings, shapes: [Shape; 2], regions: [(u64, u64); 2]) -> Self {
        let net = Net::new(&[Profile::Efa3; 2], settings);
        Self::on(net, shapes, regions)
    }

    /// As [`Self::with`], on an existing network.
    pub fn on(mut net: Net, shapes: [Shape; 2], regions: [(u64, u64); 2]) -> Self {
        let qps = net.pair([0, 1], shapes);
        let regions = [0, 1].map(|at| {
            let (pages, offset) = regions[at];
            let region = net.region(&qps[at], pages, offset);
            net.fill(&region, 0, &Self::initial(&region, at));
            region
        });
        Self { net, qps, regions }
    }

    fn initial(region: &Region, at: usize) -> Vec<u8> {
        pattern(region.length(), 1 + at as u64)
    }

    /// Whether no byte of the regions has changed.
    pub fn are_untouched(&mut self) -> bool {
        [0, 1].into_iter().all(|at| {
            let initial = Self::initial(&self.regions[at], at);
            self.content(at, 0, initial.len()) == initial
        })
    }

    /// Returns a message from the first region to the second queue pair.
    pub fn message(&self, length: u32) -> Send {
        Send::message(&self.qps[1], &self.regions[0], length)
    }

    /// Returns a write from the first region to the second.
    pub fn write(&self, length: u32) -> Send {
        Send::write(&self.qps[1], &self.regions[0], &self.regions[1], length)
    }

    /// Returns a read from the second region to the first.
    pub fn read(&self, length: u32) -> Send {
        Send::read(&self.qps[1], &self.regions[0], &self.regions[1], length)
    }

    /// Returns a write from the second region to the first.
    pub fn write_back(&self, length: u32) -> Send {
        Send::write(&self.qps[0], &self.regions[1], &self.regions[0], length)
    }

    /// Creates address handles of both queue pairs for each other.
    pub fn introduce(&mut self) {
        let [a, b] = &mut self.qps;
        self.net.introduce(a, b);
    }

    /// Posts a work request of the first queue pair; returns its id.
    pub fn post(&mut self, send: &Send) -> u16 {
        self.net.post(&mut self.qps[0], send)
    }

    /// As [`Self::post`], without ringing the doorbell.
    pub fn put(&mut self, send: &Send) -> u16 {
        self.net.put(&mut self.qps[0], send)
    }

    /// Rings the doorbell of the first queue pair.
    pub fn ring(&mut self) {
        self.net.ring_send(&self.qps[0]);
    }

    /// Posts a work request of the first queue pair; returns its status.
    pub fn outcome(&mut self, send: &Send) -> CompStatus {
        self.net.outcome(&mut self.qps[0], send)
    }

    /// Asserts that a work request of the first queue pair ends with a status.
    #[track_caller]
    pub fn ends(&mut self, send: &Send, status: CompStatus) {
        assert_eq!(self.outcome(send), status, "{send:?}");
    }

    /// Lets the second queue pair receive up to `length` bytes, at the start of its region; returns the id.
    pub fn ready(&mut self, length: u16) -> u16 {
        self.receive(&[(0, length)])
    }

    /// Posts a receive work request of the second queue pair, of parts of its region: offset and length.
    pub fn receive(&mut self, parts: &[(u64, u16)]) -> u16 {
        let Region { iova, lkey, .. } = self.regions[1];
        let place = |(offset, length): &(u64, u16)| (iova + offset, *length, lkey);
        let places: Vec<_> = parts.iter().map(place).collect();
        self.net.receive(&mut self.qps[1], &places)
    }

    pub fn status(&mut self, at: usize) -> CompStatus {
        self.net.status(&mut self.qps[at])
    }

    /// Returns the ids and statuses of all completions within [`LONG`].
    pub fn all(&mut self, at: usize) -> Vec<(u16, CompStatus)> {
        self.run_for(LONG);
        self.polled(at)
    }

    /// Returns the ids and statuses of all completions that are there.
    pub fn polled(&mut self, at: usize) -> Vec<(u16, CompStatus)> {
        let completions = std::iter::from_fn(|| self.poll(at));
        completions.map(|one| (one.req_id, qp::status(&one))).collect()
    }

    pub fn modify(&mut self, at: usize, state: QpState) {
        self.net.modify(&mut self.qps[at], state);
    }

    /// Moves a queue pair to RTS.
    pub fn start(&mut self, at: usize) {
        let (net, qp) = (&mut self.net, &mut self.qps[at]);
        net.driver(qp.port, |driver| qp.start(driver));
    }
}

impl Pair for Peers {
    fn end(&self, at: usize) -> (&Qp, &Region) {
        (&self.qps[at], &self.regions[at])
    }

    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.net.fill(&self.regions[at], 0, bytes);
    }

    fn content(&mut self, at: usize, offset: u64, length: usize) -> Vec<u8> {
        self.net.content(&self.regions[at], offset, length)
    }

    fn post(&mut self, at: usize, send: &Send) -> u16 {
        self.net.post(&mut self.qps[at], send)
    }

    fn receive(&mut self, at: usize, buffers: &[(u64, u16, u32)]) -> u16 {
        self.net.receive(&mut self.qps[at], buffers)
    }

    fn poll(&mut self, at: usize) -> Option<Cdesc> {
        self.net.poll(&mut self.qps[at])
    }

    fn wait(&mut self, at: usize) -> Cdesc {
        self.net.wait(&mut self.qps[at])
    }
}
