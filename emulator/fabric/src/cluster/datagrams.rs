// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Unreliable datagrams.

use std::time::Duration;

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::{Arrival, Content, Payload, Request, TransportEvent};

use super::{
    Cluster, Guest, Port, PortId,
    payload::{Moved, flip, read, scatter},
};
use crate::{
    network::Load,
    packet::{Body, Datagram, Packet},
};

impl<G: Guest> Cluster<G> {
    /// Sends an unreliable datagram.
    pub(super) fn send_datagram(&mut self, now: Duration, from: PortId, request: &Request) {
        let Port { device, guest, .. } = &mut self.ports[from.0];
        self.source.clear();
        let payload = match device.gather(request, 0, request.length, &mut self.source) {
            Ok(Payload::Inline(bytes)) => Ok(bytes.to_vec()),
            Ok(Payload::Memory) => read(guest, &self.source),
            Err(status) => Err(status),
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(status) => {
                self.finish(from, request, status);
                return;
            }
        };
        device.count(TransportEvent::Sent(request.length));
        let datagram = Box::new(Datagram {
            peer: device.address(),
            peer_qp: request.qp.number,
            qp: request.peer_qp,
            qkey: request.qkey,
            immediate: request.immediate,
            payload,
        });
        // One to nobody is one that is lost.
        let load = Load {
            packets: 1,
            bytes: request.length,
        };
        if let Some(to) = self.find(request.peer) {
            let path = request.qp.number;
            let packet = Packet {
                from,
                to,
                path,
                body: Body::Datagram(datagram),
            };
            let _ = self.network.send(now, from.0, to.0, path, load, packet);
        }
        self.finish(from, request, CompStatus::Ok);
    }

    /// Takes an unreliable datagram, or drops it.
    pub(super) fn take_datagram(&mut self, to: PortId, datagram: &Datagram) {
        let arrival = Arrival {
            peer: datagram.peer,
            peer_qp: datagram.peer_qp,
            qp: datagram.qp,
            transport: QpType::Ud,
            qkey: datagram.qkey,
            content: Content::Send {
                // CAST: it is no longer than a request.
                length: datagram.payload.len() as u32,
                immediate: datagram.immediate,
            },
        };
        self.target.clear();
        let Port { device, guest, .. } = &mut self.ports[to.0];
        let Ok(landing) = device.land(guest, &arrival, &mut self.target) else {
            return;
        };
        let written = match scatter(guest, &self.target, &datagram.payload) {
            Moved::Lost(error) => Err(error),
            Moved::Done | Moved::Missing(_) => Ok(()),
        };
        flip(&mut self.network, guest, &self.target);
        // Nobody is told.
        let _ = device.landed(guest, &arrival, &landing, written);
    }
}
