// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The turns of ports, in which they process packets.

use std::{mem, sync::atomic::Ordering, time::Duration};

use super::{Fabric, Port};
use crate::{
    Frame,
    delivery::{self, Delivered, Occupied, Transfer},
    endpoint::{Endpoint, RETRY},
    inbox::Popped,
    links::Peer,
    memory::Guest,
    packet::{Body, FrameBody, Origin, PortId},
    schedule::{Run, Woken},
};

/// Bytes of payload that count as one packet against the budget.
const PACKET: u32 = 8928;

impl<G: Guest> Fabric<G> {
    /// Runs a woken port; returns the number of packets that it has moved, or 1 if none. `receives` is whether it also processes
    /// packets that have arrived, and so accesses the memory of other guests.
    pub(super) fn serve(&self, port: PortId, now: Duration, budget: u32, receives: bool, woken: &mut Woken) -> u32 {
        let Some(found) = self.port(port) else {
            return 1;
        };
        let mailbox = match &found {
            Port::Endpoint(endpoint) => &endpoint.mailbox,
            Port::Peer(peer) => &peer.mailbox,
        };
        let Some(run) = mailbox.begin() else {
            return 1;
        };
        let (used, more) = match &found {
            Port::Endpoint(endpoint) => self.serve_endpoint(endpoint, run, now, (budget, receives), woken),
            Port::Peer(peer) => self.serve_peer(peer, run, now, budget, woken),
        };
        let (again, returned) = mailbox.turn.end(run, more);
        if again {
            woken.push_back(port);
        }
        if returned {
            self.returned.fetch_add(1, Ordering::Relaxed);
        }
        used.max(1)
    }

    fn serve_endpoint(
        &self,
        endpoint: &Endpoint<G>,
        run: Run,
        now: Duration,
        (budget, receives): (u32, bool),
        woken: &mut Woken,
    ) -> (u32, bool) {
        let mailbox = &endpoint.mailbox;
        let received = match receives {
            true => match self.receive(endpoint, run, now, budget, woken) {
                Ok(received) => received,
                Err(received) => return (received, false),
            },
            false => {
                mailbox.resume();
                0
            }
        };
        // If a command occupies the endpoint, this turn ends early. The port is woken when the command ends.
        let Some(mut state) = endpoint.lock_for(endpoint.port) else {
            if mailbox.is_slow() {
                self.wire.schedule.arm(endpoint.port, now + RETRY);
            }
            return (received, false);
        };
        state.catch_up(now, &self.wire, &mut endpoint.postponed.lock());
        let mut batch = mem::take(&mut *endpoint.batch.lock());
        let (sent, more) = state.work(now, &self.wire, budget, &mut batch, woken);
        drop(state);
        let find = |port| self.endpoint(port);
        endpoint.exchange((run, now), &self.wire, find, &mut batch, woken);
        *endpoint.batch.lock() = batch;
        let rests = !receives && !endpoint.unfinished.lock().is_empty();
        (received + sent, more || rests || !mailbox.is_empty())
    }

    /// Processes packets that have arrived at an endpoint; returns their number, as an error if the turn ends.
    fn receive(
        &self,
        endpoint: &Endpoint<G>,
        run: Run,
        now: Duration,
        budget: u32,
        woken: &mut Woken,
    ) -> Result<u32, u32> {
        let mailbox = &endpoint.mailbox;
        let mut received = 0;
        loop {
            let Some(copied) = endpoint.unfinished.lock().pop() else {
                break;
            };
            let sender = self.endpoint(copied.packet.from);
            let transfer = Transfer { wire: &self.wire, now, to: endpoint, run, sender: sender.as_deref() };
            match transfer.finish(copied, woken) {
                Delivered::Done => received += 1,
                Delivered::Later(packet) => mailbox.put_back(packet),
                Delivered::Unfinished => return Err(received),
            }
        }
        mailbox.resume();
        while received < budget {
            // The thread may have been stuck in the memory of a sender.
            if mailbox.turn.run() != Some(run) {
                return Err(received);
            }
            let Some(popped) = mailbox.pop() else {
                break;
            };
            let packets = match &popped.packet.body {
                Body::Data(data, Origin::Device(_)) => data.length / PACKET + 1,
                _ => 1,
            };
            match self.deliver(endpoint, (run, now), popped, woken) {
                Delivered::Done => received += packets,
                Delivered::Later(packet) => mailbox.put_back(packet),
                Delivered::Unfinished => return Err(received),
            }
        }
        Ok(received)
    }

    /// Delivers a packet to an endpoint.
    fn deliver(&self, to: &Endpoint<G>, (run, now): (Run, Duration), popped: Popped, woken: &mut Woken) -> Delivered {
        let wire = &self.wire;
        let Popped { packet, again } = popped;
        if packet.to != to.port {
            return delivery::pass(wire, now, to, packet, woken);
        }
        if wire.is_unread(&packet) {
            wire.arrive(packet.from, packet, woken);
            return Delivered::Done;
        }
        if !again {
            wire.show(&packet, false, None);
        }
        match &packet.body {
            Body::Ack(ack, _) => match to.lock_for(to.port) {
                Some(mut state) => state.acknowledge(now, packet.from, ack),
                None => return Delivered::Later(packet),
            },
            Body::Datagram(datagram, _) => {
                // CAST: it is no longer than an MTU.
                let flip = wire.network.flips(datagram.payload.len() as u32);
                match to.lock_for(to.port) {
                    Some(mut state) => state.receive_datagram(datagram, flip),
                    None => return Delivered::Later(packet),
                }
            }
            Body::Data(..) => {
                let sender = self.endpoint(packet.from);
                let transfer = Transfer { wire, now, to, run, sender: sender.as_deref() };
                return transfer.deliver(packet, woken);
            }
        }
        Delivered::Done
    }

    /// Passes packets to another program.
    fn serve_peer(&self, peer: &Peer, run: Run, now: Duration, budget: u32, woken: &mut Woken) -> (u32, bool) {
        let mut moved = 0;
        peer.mailbox.resume();
        while moved < budget && peer.mailbox.turn.run() == Some(run) {
            let Some(Popped { packet, .. }) = peer.mailbox.pop() else {
                return (moved, false);
            };
            moved += 1;
            let Some(sender) = self.endpoint(packet.from) else {
                continue;
            };
            if self.wire.is_unread(&packet) {
                self.wire.arrive(packet.from, packet, woken);
                continue;
            }
            let body = match packet.body {
                Body::Data(data, Origin::Program(carried)) => {
                    FrameBody::Data { data, header: carried.header, payload: carried.payload }
                }
                Body::Data(data, Origin::Device(_)) => {
                    let read = || delivery::read(now, &sender, peer.port, &data);
                    match peer.mailbox.accessing(run, packet.from, read) {
                        Ok(Some((header, payload))) => FrameBody::Data { data, header, payload },
                        Ok(None) => continue,
                        Err(Occupied) => {
                            if sender.mailbox.is_slow() {
                                self.wire.wake(peer.port, woken);
                            }
                            peer.mailbox.put_back(packet);
                            continue;
                        }
                    }
                }
                Body::Ack(ack, _) => FrameBody::Ack(ack),
                Body::Datagram(datagram, _) => FrameBody::Datagram(datagram),
            };
            peer.send(Frame { from: sender.address, to: peer.address, path: packet.path, body });
        }
        (moved, true)
    }
}
