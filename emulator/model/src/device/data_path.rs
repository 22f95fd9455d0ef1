// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The data path as the transport and the doorbells see it: only a device that is alive has one.

use efa_hw::io::CompStatus;

use super::Device;
use crate::{
    Arrival, Delivery, DmaError, Fetched, Host, Payload, ProtocolError, QpId, Refusal, Request,
    Segment, TransportEvent, statistics::packets,
};

impl Device {
    /// Writes a doorbell, given by its offset in the doorbell BAR.
    pub fn write_doorbell(&mut self, host: &mut dyn Host, offset: u64, value: u32) {
        if !self.is_alive() {
            return;
        }
        let rung = self.data.ring(host, &self.bars, offset, value);
        self.doorbells += u64::from(!matches!(rung, Err(ProtocolError::NoDoorbell { .. })));
        match rung {
            Ok(()) => {}
            Err(ProtocolError::NoDoorbell { .. } | ProtocolError::ForeignDoorbell { .. })
                if self.stale =>
            {
                self.stale_doorbells += 1;
            }
            Err(error) => self.errors.report(host, error),
        }
        self.report_errors(host);
    }

    /// Fetches a work request of the queue pair whose turn it is. A doorbell only gives its queue pair turns.
    pub fn fetch(&mut self, host: &mut dyn Host) -> Fetched {
        if !self.is_alive() {
            return Fetched::Idle;
        }
        let fetched = self.data.fetch(host);
        self.report_errors(host);
        fetched
    }

    /// Whether a queue pair still is what it was when it was looked at.
    pub fn is_current(&self, qp: QpId) -> bool {
        self.is_alive() && self.data.resources.qps.current(qp).is_some()
    }

    /// Whether there is a queue pair with this number.
    pub fn has_qp(&self, number: u16) -> bool {
        self.data.resources.qps.get(number).is_some()
    }

    /// Completes a work request. If its queue pair is not what it was, it has been completed before.
    pub fn complete(&mut self, host: &mut dyn Host, request: &Request, status: CompStatus) {
        if !self.is_alive() {
            return;
        }
        self.data.complete(host, request.qp, request.id, status);
        self.report_errors(host);
    }

    /// Finds the part of a request's data that starts at `offset`, to send it.
    ///
    /// # Errors
    ///
    /// How the request ends if the data can't be had.
    pub fn gather<'a>(
        &self,
        request: &'a Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<Payload<'a>, CompStatus> {
        self.check_alive(CompStatus::Flushed)?;
        self.data.gather(request, offset, length, segments)
    }

    /// Finds the part of a request's buffers that starts at `offset`, to read the peer's memory into it.
    ///
    /// # Errors
    ///
    /// How the request ends if they can't be had.
    pub fn scatter(
        &mut self,
        request: &Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        self.check_alive(CompStatus::Flushed)?;
        let mtu = self.mtu();
        self.data.statistics.count_packets(length, mtu);
        self.data.scatter(request, offset, length, segments)
    }

    /// Finds memory, given by remote key and address, that a peer wants to read.
    ///
    /// # Errors
    ///
    /// How the peer's request ends if it can't be had.
    pub fn gather_for_peer(
        &mut self,
        qp: QpId,
        memory: (u32, u64),
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        self.check_alive(CompStatus::RemoteAbort)?;
        self.data.statistics.count_read_response(length);
        self.data.gather_for_peer(qp, memory, length, segments)
    }

    /// The same for somebody who only looks on: nothing is counted.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn peek_for_peer(
        &self,
        qp: QpId,
        memory: (u32, u64),
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        self.check_alive(CompStatus::RemoteAbort)?;
        self.data.gather_for_peer(qp, memory, length, segments)
    }

    /// Begins to deliver something from a peer: takes the receive work request that it uses, and adds to `segments` where its
    /// payload goes.
    ///
    /// Other deliveries, commands and doorbells may come before it ends.
    ///
    /// # Errors
    ///
    /// It is refused, and nothing is added. What there is to tell the program has been told.
    pub fn deliver(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        segments: &mut Vec<Segment>,
    ) -> Result<Delivery, Refusal> {
        self.check_alive(Refusal::Drop)?;
        let before = segments.len();
        let delivery = self.data.deliver(host, arrival, segments);
        if delivery.is_err() {
            segments.truncate(before);
        }
        self.report_errors(host);
        delivery
    }

    /// Ends a delivery, whose payload is where it belongs, or could not be written there.
    ///
    /// If its queue pair is not what it was, its receive work request was ended with that, and this only counts.
    ///
    /// # Errors
    ///
    /// It is refused, because of the latter.
    pub fn delivered(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        delivery: Delivery,
        written: Result<(), DmaError>,
    ) -> Result<(), Refusal> {
        self.check_alive(Refusal::Drop)?;
        let delivered = self.data.delivered(host, arrival, &delivery, written);
        self.report_errors(host);
        delivered
    }

    /// Gives up a delivery, as its sender has no such payload: its receive work request is the next that is taken.
    pub fn cancel(&mut self, delivery: Delivery) {
        self.data.cancel(delivery);
    }

    /// Takes note that a peer has all that it wanted to read by a queue pair.
    pub fn read_served(&mut self, host: &mut dyn Host, qp: QpId) {
        if !self.is_alive() {
            return;
        }
        self.data.read_served(host, qp);
        self.report_errors(host);
    }

    /// Counts what the transport did for the device.
    pub fn count(&mut self, event: TransportEvent) {
        let mtu = self.mtu();
        self.data.statistics.count_transport(event, mtu);
    }

    /// Address of the device.
    pub fn address(&self) -> [u8; 16] {
        self.data.attributes.address
    }

    /// Most bytes of payload in one packet.
    pub fn mtu(&self) -> u32 {
        self.data.attributes.mtu
    }

    /// How many packets so many bytes of payload take.
    pub fn packets(&self, length: u32) -> u32 {
        packets(length, self.mtu())
    }
}
