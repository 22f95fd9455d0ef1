// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Moving payload from the memory of a sender to that of a receiver.

use efa_hw::io::CompStatus;
use efa_model::{DmaError, Host, Operation, Payload, Segment};

use super::{Cluster, CopyError, Guest, PortId};
use crate::{Network, packet::Data, sender::Content};

/// Where the payload of a packet is.
pub(super) enum Source<'a> {
    /// Where the sender's program has it.
    Sender(PortId),
    /// In the packet.
    Packet(&'a [u8]),
}

/// What became of a payload.
pub(super) enum Moved {
    Done,
    /// The receiver's memory is not mapped.
    Lost(DmaError),
    /// The sender has no such data.
    Missing(CompStatus),
}

impl<G: Guest> Cluster<G> {
    /// Finds the payload of a part of a message in the memory of its sender, or in its request.
    fn locate(&mut self, from: PortId, data: &Data) -> Result<Payload<'_>, CompStatus> {
        self.source.clear();
        let sender = self.senders.get(&data.connection.number);
        let found = sender.and_then(|sender| Some((sender.qp, sender.message(data.message)?)));
        let (qp, message) = found.ok_or(CompStatus::Flushed)?;
        let device = &mut self.ports[from.0].device;
        match &message.content {
            Content::Request(request) if request.operation == Operation::RdmaRead => {
                Ok(Payload::Memory)
            }
            Content::Request(request) => {
                device.gather(request, data.offset, data.length, &mut self.source)
            }
            Content::Response { memory, .. } => {
                let (rkey, address) = *memory;
                let memory = (rkey, address.wrapping_add(data.offset.into()));
                device.gather_for_peer(qp, memory, data.length, &mut self.source)?;
                Ok(Payload::Memory)
            }
            Content::Failure { .. } => Ok(Payload::Memory),
        }
    }

    /// Reads the payload of a part of a message.
    pub(super) fn payload(&mut self, from: PortId, data: &Data) -> Result<Vec<u8>, CompStatus> {
        if let Payload::Inline(bytes) = self.locate(from, data)? {
            return Ok(bytes.to_vec());
        }
        read(&mut self.ports[from.0].guest, &self.source)
    }

    /// Puts the payload of a part of a message where `self.target` says.
    pub(super) fn place(&mut self, to: PortId, data: &Data, source: &Source<'_>) -> Moved {
        if data.length == 0 {
            return Moved::Done;
        }
        let moved = match source {
            Source::Packet(bytes) => scatter(&mut self.ports[to.0].guest, &self.target, bytes),
            Source::Sender(from) => match self.locate(*from, data) {
                Ok(Payload::Inline(bytes)) => {
                    let bytes = bytes.to_vec();
                    scatter(&mut self.ports[to.0].guest, &self.target, &bytes)
                }
                Ok(Payload::Memory) => transfer(
                    &self.ports[from.0].guest,
                    &self.source,
                    &self.ports[to.0].guest,
                    &self.target,
                ),
                Err(status) => Moved::Missing(status),
            },
        };
        if matches!(moved, Moved::Done) {
            let guest = &mut self.ports[to.0].guest;
            flip(&mut self.network, guest, &self.target);
        }
        moved
    }
}

/// Copies from segments of one guest's memory to segments of another's.
fn transfer<G: Guest>(source: &G, from: &[Segment], target: &G, to: &[Segment]) -> Moved {
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let (mut read, mut write) = (from.next(), to.next());
    while let (Some(source_part), Some(target_part)) = (&mut read, &mut write) {
        let length = source_part.length.min(target_part.length);
        // CAST: 32 bits fit.
        let copied = source.copy(
            source_part.address,
            target,
            target_part.address,
            length as usize,
        );
        match copied {
            Ok(()) => {}
            Err(CopyError::Source(_)) => return Moved::Missing(CompStatus::LocalInvalidLkey),
            Err(CopyError::Target(error)) => return Moved::Lost(error),
        }
        if advance(source_part, length) {
            read = from.next();
        }
        if advance(target_part, length) {
            write = to.next();
        }
    }
    Moved::Done
}

/// Leaves out the start of a segment; returns whether nothing is left.
fn advance(segment: &mut Segment, length: u32) -> bool {
    segment.address = segment.address.wrapping_add(length.into());
    segment.length -= length;
    segment.length == 0
}

/// Writes bytes to segments of a guest's memory.
pub(super) fn scatter(guest: &mut dyn Host, segments: &[Segment], mut bytes: &[u8]) -> Moved {
    for segment in segments {
        let (now, later) = bytes.split_at(bytes.len().min(segment.length as usize));
        if let Err(error) = guest.dma_write(segment.address, now) {
            return Moved::Lost(error);
        }
        bytes = later;
    }
    Moved::Done
}

/// Reads segments of a guest's memory.
pub(super) fn read(guest: &mut dyn Host, segments: &[Segment]) -> Result<Vec<u8>, CompStatus> {
    let mut bytes = Vec::new();
    for segment in segments {
        let start = bytes.len();
        bytes.resize(start + segment.length as usize, 0);
        guest
            .dma_read(segment.address, &mut bytes[start..])
            .map_err(|_| CompStatus::LocalInvalidLkey)?;
    }
    Ok(bytes)
}

/// Makes a bit wrong, if the network is one that does.
pub(super) fn flip<P>(network: &mut Network<P>, guest: &mut dyn Host, segments: &[Segment]) {
    let part = network.settings().flip;
    let length = segments.iter().map(|segment| segment.length).sum::<u32>();
    if length == 0 || !network.happens(part) {
        return;
    }
    let mut offset = network.below(length);
    for segment in segments {
        if offset < segment.length {
            let address = segment.address + u64::from(offset);
            let mut byte = [0];
            if guest.dma_read(address, &mut byte).is_ok() {
                byte[0] ^= 1 << network.below(8);
                // It was just written.
                let _ = guest.dma_write(address, &byte);
            }
            return;
        }
        offset -= segment.length;
    }
}
