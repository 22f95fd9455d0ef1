// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The devices of other programs on the same network.

use std::time::Duration;

use super::{Cluster, Guest, LinkId, PortId, payload::Source};
use crate::{
    Frame,
    packet::{Address, Body, FrameBody},
};

/// A device of another program.
pub(super) struct Remote {
    pub(super) address: Address,
    pub(super) link: LinkId,
}

impl<G: Guest> Cluster<G> {
    /// Takes note of another program with these devices.
    pub fn join(&mut self, addresses: Vec<Address>) -> LinkId {
        let link = LinkId(self.links);
        self.links += 1;
        for address in addresses {
            self.remotes.push(Remote { address, link });
            self.network.add_port();
        }
        link
    }

    /// Takes note that another program is gone. What is sent to its devices is lost.
    pub fn leave(&mut self, link: LinkId) {
        for remote in &mut self.remotes {
            if remote.link == link {
                // No device has this address.
                remote.address = [0; 16];
            }
        }
    }

    /// How many devices of other programs there are.
    pub fn remote_devices(&self) -> usize {
        let known = |remote: &&Remote| remote.address != [0; 16];
        self.remotes.iter().filter(known).count()
    }

    /// Takes the packets for other programs.
    pub fn take_frames(&mut self) -> Vec<(LinkId, Frame)> {
        std::mem::take(&mut self.frames)
    }

    /// Takes a packet from another program.
    pub fn accept(&mut self, now: Duration, link: LinkId, frame: Frame) {
        let from = self.find(frame.from);
        let ours = self.find(frame.to).filter(|to| to.0 < self.ports.len());
        let (Some(from), Some(to)) = (from, ours) else {
            return;
        };
        // Nobody speaks for the devices of others.
        if self.remote(from).is_none_or(|remote| remote.link != link) {
            return;
        }
        match frame.body {
            FrameBody::Data {
                data,
                header,
                payload,
            } => {
                let genuine = header.peer == frame.from && payload.len() == data.length as usize;
                if genuine {
                    let source = Source::Packet(&payload);
                    let outcome = self.take(now, to, &data, &header, source);
                    self.answer(now, from, to, frame.path, &data, outcome);
                }
            }
            FrameBody::Ack(ack) => self.acknowledge(now, to, ack),
            FrameBody::Datagram(datagram) => {
                if datagram.peer == frame.from {
                    self.take_datagram(to, &datagram);
                }
            }
        }
    }

    /// The device of another program that has this port.
    pub(super) fn remote(&self, port: PortId) -> Option<&Remote> {
        self.remotes.get(port.0.checked_sub(self.ports.len())?)
    }

    /// Hands a packet to another program, with its payload.
    pub(super) fn forward(
        &mut self,
        now: Duration,
        link: LinkId,
        from: PortId,
        to: Address,
        path: u16,
        body: Body,
    ) {
        let body = match body {
            Body::Data(data) => {
                let Some(header) = self.header(&data) else {
                    return;
                };
                match self.payload(from, &data) {
                    Ok(payload) => FrameBody::Data {
                        data,
                        header,
                        payload,
                    },
                    Err(status) => {
                        self.fail(now, data.connection.number, data.message, status);
                        return;
                    }
                }
            }
            Body::Ack(ack) => FrameBody::Ack(ack),
            Body::Datagram(datagram) => FrameBody::Datagram(datagram),
        };
        let from = self.address(from);
        let frame = Frame {
            from,
            to,
            path,
            body,
        };
        self.frames.push((link, frame));
    }
}
