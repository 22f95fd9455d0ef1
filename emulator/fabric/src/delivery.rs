// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Transfer of payload between endpoints: located under the lock of the sender, placed under the lock of the receiver, and copied
//! under no lock.

use std::time::Duration;

use efa_hw::io::CompStatus;

use crate::{
    endpoint::{Copied, Endpoint, Located, Part, Payload, Placement, Received, State, Unplaced, Written},
    memory::{BOUNCED, Guest},
    network::Load,
    packet::{Ack, Body, Carried, Data, Header, OVERHEAD, Origin, Packet, PortId, Verdict},
    schedule::{Run, Woken},
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
    /// The run of the endpoint's port.
    pub(crate) run: Run,
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
    /// The payload was not copied, as its location is stale.
    Again,
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
                (Origin::Device(_), Some(sender)) => {
                    let lock = || sender.lock_for(self.to.port);
                    match self.to.mailbox.accessing(self.run, sender.port, lock) {
                        Some(mut state) => (state.locate(self.now, data), &sender.remembered),
                        None => {
                            if sender.mailbox.is_slow() {
                                self.wire.wake(self.to.port, woken);
                            }
                            return Delivered::Later(packet);
                        }
                    }
                }
                (Origin::Device(_), None) => return Delivered::Done,
            };
            // The sender no longer has this message, so the packet is dropped.
            let Some(Located { header, payload }) = located else {
                self.fail(data, Unplaced::Gone, woken);
                break;
            };
            let direct = data.length > BOUNCED && !self.to.mailbox.is_slow();
            let payload = match payload {
                Payload::Memory(..) if !direct => {
                    let mut bytes = Vec::new();
                    let read = || payload.read(data.length, &mut bytes);
                    match self.to.mailbox.accessing(self.run, packet.from, read) {
                        Ok(()) => Payload::Inline(bytes.into()),
                        Err(Unplaced::Busy) => continue,
                        Err(unplaced) => {
                            self.fail(data, unplaced, woken);
                            break;
                        }
                    }
                }
                payload => payload,
            };
            let part = Part { from: packet.from, data, header: &header, remembered };
            match self.place(&packet, part, &payload, woken) {
                Rest::Nothing => break,
                Rest::All => return Delivered::Later(packet),
                Rest::Report(placement, written) => {
                    let remembered = remembered.clone();
                    return self.postpone(Copied { packet, header, remembered, placement, written });
                }
                Rest::Again => {}
            }
        }
        Delivered::Done
    }

    /// Lets a receiver process payload that was placed while a command occupied it.
    pub(crate) fn finish(&self, copied: Copied<G::Memory>, woken: &mut Woken) -> Delivered {
        let Copied { packet, header, remembered, placement, written } = copied;
        let Body::Data(data, _) = &packet.body else {
            return Delivered::Done;
        };
        let part = Part { from: packet.from, data, header: &header, remembered: &remembered };
        match self.report(&packet, part, (placement, written), woken) {
            Rest::Nothing => Delivered::Done,
            Rest::All | Rest::Again => Delivered::Later(packet),
            Rest::Report(placement, written) => {
                self.postpone(Copied { packet, header, remembered, placement, written })
            }
        }
    }

    /// Keeps payload until the command that occupies the receiver has ended.
    fn postpone(&self, copied: Copied<G::Memory>) -> Delivered {
        self.to.unfinished.lock().push(copied);
        Delivered::Unfinished
    }

    /// Fails the message of a packet if its payload cannot be read from the sender's memory. If a command occupies the sender,
    /// the packet is dropped, and its retransmission fails again.
    fn fail(&self, data: &Data, unplaced: Unplaced, woken: &mut Woken) {
        let Some(sender) = self.sender else {
            return;
        };
        if unplaced == Unplaced::Lost {
            self.with_sender(|state| {
                state.fail(self.now, data, CompStatus::LocalInvalidLkey);
            });
        }
        // The sender may have ended the message, and may have to send a failure to a reading peer.
        self.wire.wake(sender.port, woken);
    }

    /// Sends the verdict to the sender of a packet. On a network without delay, a sender in this program processes it
    /// immediately, unless a command occupies that sender.
    fn answer(&self, packet: &Packet, ack: Ack, woken: &mut Woken) {
        let (from, to) = (packet.to, packet.from);
        let load = Load { packets: 1, bytes: 0 };
        let packet = Packet { from, to, path: packet.path, body: Body::Ack(ack, None) };
        self.wire.show(&packet, true, None);
        if self.wire.is_denied(&packet) {
            return;
        }
        // An acknowledgement that cannot be sent counts as lost.
        let (network, ends) = (&self.wire.network, (from.0, to.0));
        let sent = network.send(self.now, ends, packet.path, load, packet);
        let Ok((_, Some(packet))) = sent else {
            return;
        };
        let processed = self.with_sender(|state| {
            self.wire.show(&packet, false, None);
            state.acknowledge(self.now, from, &ack);
        });
        match processed {
            Some(()) => self.wire.wake(to, woken),
            None => self.wire.arrive(to, packet, woken),
        }
    }

    /// Calls `work` with the sender, if it is in this program, no command occupies it, and the memory of its guest is not slow.
    fn with_sender<R>(&self, work: impl FnOnce(&mut State<G>) -> R) -> Option<R> {
        let sender = self.sender.filter(|sender| !sender.mailbox.is_slow())?;
        let work = || sender.lock_now().map(|mut state| work(&mut state));
        self.to.mailbox.accessing(self.run, sender.port, work)
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
        let pinned = state.guest.pins().pin();
        drop(state);
        let copy = || payload.copy(&placement.target);
        let written = match payload {
            Payload::Memory(..) => self.to.mailbox.accessing(self.run, packet.from, copy),
            _ => copy(),
        };
        if written == Ok(Ok(())) {
            placement.flip_bit();
        }
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
                drop(state);
                if unplaced == Unplaced::Busy {
                    return Rest::Again;
                }
                self.fail(part.data, unplaced, woken);
                return Rest::Nothing;
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

/// Reads the payload of a part of a message. Returns `None` if the payload is unavailable. If a command occupies the sender,
/// `port` is woken when the command ends.
pub(crate) fn read<G: Guest>(
    now: Duration,
    sender: &Endpoint<G>,
    port: PortId,
    data: &Data,
) -> Result<Option<(Header, Vec<u8>)>, Occupied> {
    for _ in 0..TRIES {
        let located = sender.lock_for(port).ok_or(Occupied)?.locate(now, data);
        let Some(Located { header, payload }) = located else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        match payload.read(data.length, &mut bytes) {
            Ok(()) => return Ok(Some((header, bytes))),
            Err(Unplaced::Busy) => {}
            Err(_) => {
                if let Some(mut state) = sender.lock_now() {
                    state.fail(now, data, CompStatus::LocalInvalidLkey);
                }
                return Ok(None);
            }
        }
    }
    Ok(None)
}

/// Reads the payload of a packet, in the turn of its sender, and passes the packet on to the receiver.
pub(crate) fn pass<G: Guest>(
    wire: &Wire,
    now: Duration,
    sender: &Endpoint<G>,
    packet: Packet,
    woken: &mut Woken,
) -> Delivered {
    let Body::Data(data, _) = packet.body else {
        return Delivered::Done;
    };
    match read(now, sender, sender.port, &data) {
        Ok(Some((header, payload))) => {
            // A packet without a permit counts as lost.
            let permit = sender.passed.take(payload.len() + OVERHEAD);
            if let Some(permit) = permit {
                let carried = Carried { header, payload, permit, remembered: sender.remembered.clone() };
                let body = Body::Data(data, Origin::Program(Box::new(carried)));
                wire.arrive(packet.to, Packet { body, ..packet }, woken);
            }
            Delivered::Done
        }
        Ok(None) => Delivered::Done,
        Err(Occupied) => Delivered::Later(packet),
    }
}

/// A command occupies an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupied;
