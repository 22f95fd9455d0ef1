// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Capture of the packets that an endpoint sends.

use efa_model::{Operation, Payload as Gathered};

use super::State;
use crate::{
    capture::{self, Message},
    memory::{Access, Guest, Memory},
    packet::{Body, Data, Packet},
    srd::Content,
    wire::Wire,
};

impl<G: Guest> State<G> {
    /// Passes a part of a message that is about to leave to the observer, with the start of its current payload.
    pub(super) fn show(&mut self, wire: &Wire, packet: &Packet, again: bool) {
        let Body::Data(data, _) = &packet.body else {
            return;
        };
        let payload = self.payload_start(data, wire.snap());
        if let Some((_, header, _)) = self.connections.find(self.address, data) {
            let message = Message {
                header: &header,
                payload: &payload,
                again,
            };
            wire.show(packet, true, Some(message));
        }
    }

    /// Returns the start of the payload of a part of a message, or nothing if the payload is unavailable.
    fn payload_start(&mut self, data: &Data, snap: u32) -> Vec<u8> {
        let length = data.length.min(snap);
        let Some((qp, _, content)) = self.connections.find(self.address, data) else {
            return Vec::new();
        };
        self.segments.clear();
        let segments = &mut self.segments;
        let found = match content {
            Content::Request(request) if request.operation != Operation::RdmaRead => self
                .device
                .gather(request, data.offset, length, segments)
                .map(|gathered| match gathered {
                    Gathered::Inline(bytes) => Some(capture::start(bytes, snap).to_vec()),
                    Gathered::Memory => None,
                }),
            Content::Response { memory, .. } => {
                let memory = (memory.0, memory.1.wrapping_add(data.offset.into()));
                let found = self.device.peek_for_peer(qp, memory, length, segments);
                found.map(|()| None)
            }
            Content::Request(_) | Content::Failure { .. } => Ok(Some(Vec::new())),
        };
        match found {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                // CAST: 32 bits fit.
                let mut bytes = vec![0; length as usize];
                let memory = self.guest.memory(&self.segments, Access::Read);
                match memory.and_then(|memory| memory.read(&mut bytes)) {
                    Ok(()) => bytes,
                    Err(_) => Vec::new(),
                }
            }
            Err(_) => Vec::new(),
        }
    }
}
