// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interface of the data path to the transport and to doorbells. A dead or unplugged device processes no work.

use efa_hw::io::CompStatus;

use super::Device;
use crate::{
    Arrival, Delivery, DmaError, Fetched, Host, Payload, ProtocolError, QpId, Refusal, Request, Segment,
    TransportEvent, data_path::DataPath, ensure, resources::memory::Access, statistics::packets,
};

impl Device {
    /// Writes a doorbell, given by its offset in the doorbell BAR.
    pub fn write_doorbell(&mut self, host: &mut dyn Host, offset: u64, value: u32) {
        if !self.is_alive() {
            return;
        }
        self.data.errors.begin();
        let rung = self.data.ring(host, &self.bars, offset, value);
        self.doorbells += u64::from(!matches!(rung, Err(ProtocolError::NoDoorbell { .. })));
        match rung {
            Ok(()) => {}
            Err(ProtocolError::NoDoorbell { .. } | ProtocolError::ForeignDoorbell { .. }) if self.stale => {
                self.stale_doorbells += 1;
            }
            Err(error) => self.report(host, error),
        }
    }

    /// Fetches a work request of the next scheduled queue pair. A doorbell only schedules its queue pair.
    pub fn fetch(&mut self, host: &mut dyn Host) -> Fetched {
        self.alive(host, Fetched::Idle, DataPath::fetch)
    }

    /// Whether a queue pair was neither reset, put in error nor destroyed since this id was obtained.
    pub fn is_current(&self, qp: QpId) -> bool {
        self.is_alive() && self.data.resources.qps.current(qp).is_some()
    }

    /// Completes a work request. Ignored if its queue pair is not [current](Self::is_current): the request has ended already.
    pub fn complete(&mut self, host: &mut dyn Host, request: &Request, status: CompStatus) {
        self.alive(host, (), |data, host| {
            data.complete(host, request.qp, request.id, status);
        });
    }

    /// Finds the part of a request's payload that starts at `offset`, to send it.
    ///
    /// # Errors
    ///
    /// Status with which the request ends if its payload is not accessible.
    pub fn gather<'a>(
        &self,
        request: &'a Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<Payload<'a>, CompStatus> {
        ensure(self.is_alive(), CompStatus::Flushed)?;
        self.data.gather(request, offset, length, segments)
    }

    /// Finds the part of a request's buffers that starts at `offset`, as the target of an RDMA read.
    ///
    /// # Errors
    ///
    /// Status with which the request ends if its buffers are not accessible.
    pub fn scatter(
        &mut self,
        request: &Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        ensure(self.is_alive(), CompStatus::Flushed)?;
        let mtu = self.mtu();
        self.data.statistics.count_packets(length, mtu);
        let access = Access::LocalWrite;
        self.data.locate(request, offset, length, access, segments)
    }

    /// Finds memory, given by remote key and address, for an RDMA read of a peer. The statistics do not count it.
    ///
    /// # Errors
    ///
    /// Status with which the peer's request ends if the memory is not accessible.
    pub fn gather_for_peer(
        &self,
        qp: QpId,
        memory: (u32, u64),
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        ensure(self.is_alive(), CompStatus::RemoteAbort)?;
        self.data.gather_for_peer(qp, memory, length, segments)
    }

    /// Starts a delivery from a peer: takes the receive work request that it consumes, and adds the memory for its payload to
    /// `segments`.
    ///
    /// Other deliveries, commands and doorbells may be processed before it ends.
    ///
    /// # Errors
    ///
    /// The delivery is refused, and nothing is added to `segments`. Any completion for the program has been posted.
    pub fn deliver(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        segments: &mut Vec<Segment>,
    ) -> Result<Delivery, Refusal> {
        let before = segments.len();
        let dropped = Err(Refusal::Drop);
        let delivery = self.alive(host, dropped, |data, host| data.deliver(host, arrival, segments));
        if delivery.is_err() {
            segments.truncate(before);
        }
        delivery
    }

    /// Ends a delivery after its payload was written, or could not be written.
    ///
    /// If the queue pair is not [current](Self::is_current), its receive work request has ended, and only the statistics change.
    ///
    /// # Errors
    ///
    /// The delivery is refused, because its payload could not be written.
    pub fn delivered(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        delivery: Delivery,
        written: Result<(), DmaError>,
    ) -> Result<(), Refusal> {
        self.alive(host, Err(Refusal::Drop), |data, host| data.delivered(host, arrival, &delivery, written))
    }

    /// Cancels a delivery whose sender can't access the payload. The next delivery takes its receive work request.
    pub fn cancel(&mut self, delivery: Delivery) {
        self.data.cancel(delivery);
    }

    /// Records the end of a peer's RDMA read from a queue pair, for event counters.
    pub fn read_served(&mut self, host: &mut dyn Host, qp: QpId) {
        self.alive(host, (), |data, host| data.read_served(host, qp));
    }

    /// Counts an event of the transport in the statistics.
    pub fn count(&mut self, event: TransportEvent) {
        let mtu = self.mtu();
        self.data.statistics.count_transport(event, mtu);
    }

    /// Address of the device, a GID.
    pub fn address(&self) -> [u8; 16] {
        self.data.attributes.address
    }

    /// Limit on the payload of one packet, in bytes.
    pub fn mtu(&self) -> u32 {
        self.data.attributes.mtu
    }

    /// Number of packets that `length` bytes of payload take, at least one.
    pub fn packets(&self, length: u32) -> u32 {
        packets(length, self.mtu())
    }
}
