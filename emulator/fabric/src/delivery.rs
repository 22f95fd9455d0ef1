// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Transfer of payload between endpoints: located under the lock of the sender, placed under the lock of the receiver, and copied
//! under no lock.

use std::time::Duration;

use efa_hw::io::CompStatus;

use crate::{
    endpoint::{Copied, Endpoint, Located, Part, Payload, Placement, Received, Unplaced, Written},
    memory::{CopyError, Guest, Memory},
    network::Load,
    packet::{Ack, Body, Data, Header, Origin, Packet, PortId, Verdict},
    schedule::Woken,
    wire::Wire,
};

/// Attempts to pin the sender's memory. One fails if the sender has just waited for copies, as it does once per command.
const TRIES: usize = 8;

/// Result of the delivery of a packet.
#[derive(Debug)]
pub(crate) enum Delivered {
    /// The packet was delivered or dropped.
    Done,
    /// A command occupies the sender or the receiver. The port is woken when the command ends.
    Later(Packet),
    /// A command occupies the receiver. The payload is placed but not processed: see [`Transfer::finish`].
    Unfinished,
}

/// A transfer of payload to an endpoint.
pub(crate) struct Transfer<'a, G: Guest> {
    pub(crate) wire: &'a Wire,
    pub(crate) now: Duration,
    pub(crate) to: &'a Endpoint<G>,
    /// The sender, if it is a device of this program.
    pub(crate) sender: Option<&'a Endpoint<G>>,
}

/// Remaining work for a packet.
enum Rest<M> {
    Nothing,
    /// The whole delivery.
    All,
    /// The payload was copied, or the copy failed. The receiver has to process the result.
    Report(Placement<M>, Written),
    /// The payload could not be copied.
    Unplaced(Unplaced),
}

impl<G: Guest> Transfer<'_, G> {
    /// Delivers a part of a message to an endpoint, and acknowledges it to the sender.
    pub(crate) fn deliver(&self, packet: Packet, woken: &mut Woken) -> Delivered {
        let Body::Data(data, origin) = &packet.body else {
            return Delivered::Done;
        };
        for _ in 0..TRIES {
            let (located, remembered) = match (origin, self.sender) {
                (Origin::Program(carried), _) => {
                    let payload = Payload::Inline(carried.payload.as_slice().into());
                    let header = carried.header;
                    (Some(Located { header, payload }), &carried.remembered)
                }
                (Origin::Device(_), Some(sender)) => match sender.lock_for(self.to.port) {
                    Some(mut state) => (state.locate(self.now, data), &sender.remembered),
                    None => return Delivered::Later(packet),
                },
                (Origin::Device(_), None) => return Delivered::Done,
            };
            // The sender no longer has this message, so the packet is dropped.
            let Some(Located { header, payload }) = located else {
                self.fail(data, Unplaced::Gone, woken);
                break;
            };
            let part = Part {
                from: packet.from,
                data,
                header: &header,
                remembered,
            };
            match self.place(&packet, part, &payload, woken) {
                Rest::Nothing => break,
                Rest::All => return Delivered::Later(packet),
                Rest::Report(placement, written) => {
                    let remembered = remembered.clone();
                    return self.postpone(Copied {
                        packet,
                        header,
                        remembered,
                        placement,
                        written,
                    });
                }
                Rest::Unplaced(Unplaced::Busy) => {}
                Rest::Unplaced(unplaced) => {
                    self.fail(data, unplaced, woken);
                    break;
                }
            }
        }
        Delivered::Done
    }

    /// Lets a receiver process payload that was placed while a command occupied it.
    pub(crate) fn finish(&self, copied: Copied<G::Memory>, woken: &mut Woken) -> Delivered {
        let Copied {
            packet,
            header,
            remembered,
            placement,
            written,
        } = copied;
        let Body::Data(data, _) = &packet.body else {
            return Delivered::Done;
        };
        let part = Part {
            from: packet.from,
            data,
            header: &header,
            remembered: &remembered,
        };
        match self.report(&packet, part, (placement, written), woken) {
            Rest::Nothing => Delivered::Done,
            Rest::All | Rest::Unplaced(Unplaced::Busy) => Delivered::Later(packet),
            Rest::Report(placement, written) => self.postpone(Copied {
                packet,
                header,
                remembered,
                placement,
                written,
            }),
            Rest::Unplaced(unplaced) => {
                self.fail(data, unplaced, woken);
                Delivered::Done
            }
        }
    }

    /// Keeps payload until the command that occupies the receiver has ended.
    fn postpone(&self, copied: Copied<G::Memory>) -> Delivered {
        *self.to.unfinished.lock() = Some(copied);
        Delivered::Unfinished
    }

    /// Fails the message of a packet if its payload cannot be read from the sender's memory. If a command occupies the sender,
    /// the packet is dropped, and its retransmission fails again.
    fn fail(&self, data: &Data, unplaced: Unplaced, woken: &mut Woken) {
        let Some(sender) = self.sender else {
            return;
        };
        if unplaced == Unplaced::Lost {
            if let Some(mut state) = sender.lock_now() {
                state.fail(self.now, data, CompStatus::LocalInvalidLkey);
            }
        }
        // The sender may have ended the message, and may have to send a failure to a reading peer.
        self.wire.wake(sender.port, woken);
    }

    /// Sends the verdict to the sender of a packet. On a network without delay, a sender in this program processes it
    /// immediately, unless a command occupies that sender.
    fn answer(&self, packet: &Packet, ack: Ack, woken: &mut Woken) {
        let (from, to) = (packet.to, packet.from);
        let load = Load {
            packets: 1,
            bytes: 0,
        };
        let packet = Packet {
            from,
            to,
            path: packet.path,
            body: Body::Ack(ack, None),
        };
        self.wire.show(&packet, true, None);
        if self.wire.is_denied(&packet) {
            return;
        }
        // An acknowledgement that cannot be sent counts as lost.
        let Ok(sent) = self
            .wire
            .network
            .send(self.now, (from.0, to.0), packet.path, load, packet)
        else {
            return;
        };
        let Some(packet) = sent.arrived else {
            return;
        };
        match self.sender.and_then(Endpoint::lock_now) {
            Some(mut state) => {
                self.wire.show(&packet, false, None);
                state.acknowledge(self.now, from, &ack);
                drop(state);
                self.wire.wake(to, woken);
            }
            None => self.wire.arrive(packet, woken),
        }
    }

    /// Places payload at an endpoint, and acknowledges it to the sender.
    fn place(
        &self,
        packet: &Packet,
        part: Part<'_>,
        payload: &Payload<G::Memory>,
        woken: &mut Woken,
    ) -> Rest<G::Memory> {
        let flip = self.wire.network.flips(part.data.length);
        let Some(mut state) = self.to.lock_for(self.to.port) else {
            return Rest::All;
        };
        let placement = match state.receive(self.now, part, flip) {
            Received::Place(placement) => placement,
            Received::Answer(verdict) => {
                drop(state);
                self.answer(packet, part.ack(verdict), woken);
                return Rest::Nothing;
            }
            Received::Silence => return Rest::Nothing,
        };
        // This thread must not block while it holds the pin.
        let pinned = state.guest.pins().pin();
        drop(state);
        let written = copy(payload, &placement);
        drop(pinned);
        // The sender is notified before the receiver's program. So the sender's completion precedes any reply from that program.
        // On hardware, a reply takes longer, too, and perftest relies on this order. Nothing that follows can fail.
        if written == Ok(Ok(())) {
            let ack = part.ack(Verdict::Delivered);
            self.answer(packet, ack, woken);
        }
        self.report(packet, part, (placement, written), woken)
    }

    /// Lets an endpoint process the result of a copy. If the payload could not be written, the sender gets the verdict.
    fn report(
        &self,
        packet: &Packet,
        part: Part<'_>,
        (placement, written): (Placement<G::Memory>, Written),
        woken: &mut Woken,
    ) -> Rest<G::Memory> {
        let Some(mut state) = self.to.lock_for(self.to.port) else {
            return Rest::Report(placement, written);
        };
        let written = match written {
            Ok(written) => written,
            Err(unplaced) => {
                state.not_placed(placement);
                return Rest::Unplaced(unplaced);
            }
        };
        let received = state.placed(self.now, self.wire, part, placement, written);
        drop(state);
        if let (Received::Answer(verdict), Err(_)) = (received, written) {
            self.answer(packet, part.ack(verdict), woken);
        }
        Rest::Nothing
    }
}

/// Copies payload to its place, unless it is unavailable; returns whether it was written.
fn copy<M: Memory>(payload: &Payload<M>, placement: &Placement<M>) -> Written {
    let written = match payload {
        Payload::Nothing => Ok(()),
        Payload::Inline(bytes) => placement.target.write(bytes),
        Payload::Memory(memory, unpinned) => {
            let _pinned = unpinned.pin().ok_or(Unplaced::Busy)?;
            match placement.target.copy(memory) {
                Ok(()) => Ok(()),
                Err(CopyError::Source(_)) => return Err(Unplaced::Lost),
                Err(CopyError::Target(error)) => Err(error),
            }
        }
    };
    if written.is_ok() {
        placement.flip_bit();
    }
    Ok(written)
}

/// Reads the payload of a part of a message, for another program behind `port`. Returns `None` if the payload is unavailable. If
/// a command occupies the sender, the port is woken when the command ends.
pub(crate) fn read<G: Guest>(
    now: Duration,
    sender: &Endpoint<G>,
    port: PortId,
    data: &Data,
) -> Result<Option<(Header, Vec<u8>)>, Occupied> {
    for _ in 0..TRIES {
        let located = sender.lock_for(port).ok_or(Occupied)?.locate(now, data);
        let Some(located) = located else {
            return Ok(None);
        };
        match located.payload {
            Payload::Nothing => return Ok(Some((located.header, Vec::new()))),
            Payload::Inline(bytes) => return Ok(Some((located.header, bytes.into()))),
            Payload::Memory(memory, unpinned) => {
                if let Some(pinned) = unpinned.pin() {
                    // CAST: 32 bits fit.
                    let mut bytes = vec![0; data.length as usize];
                    if memory.read(&mut bytes).is_ok() {
                        return Ok(Some((located.header, bytes)));
                    }
                    drop(pinned);
                    if let Some(mut state) = sender.lock_now() {
                        state.fail(now, data, CompStatus::LocalInvalidLkey);
                    }
                    return Ok(None);
                }
            }
        }
    }
    Ok(None)
}

/// A command occupies an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupied;
