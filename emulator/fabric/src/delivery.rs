// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How payload gets from the memory of one endpoint to that of another: found under the lock of the one, placed under that of the
//! other, and copied under none.

use std::time::Duration;

use efa_hw::io::CompStatus;

use crate::{
    endpoint::{Copied, Endpoint, Located, Part, Payload, Placement, Received, Unplaced, Written},
    memory::{CopyError, Guest, Memory},
    network::Load,
    packet::{Ack, Body, Data, Header, Packet, PortId, Verdict},
    schedule::Woken,
    wire::Wire,
};

/// How often it is tried to pin memory whose owner waits for copies, which it does once for each command.
const TRIES: usize = 8;

/// What became of a packet.
#[derive(Debug)]
pub(crate) enum Delivered {
    /// It was delivered, or is as good as lost.
    Done,
    /// A command occupies the sender or the receiver. The port is woken when it has ended.
    Later(Packet),
    /// A command occupies the receiver, whose payload is placed but not processed: see [`finish`].
    Unfinished,
}

/// The receiver of a packet, and its sender if that is a device of this program.
pub(crate) struct Ends<'a, G: Guest> {
    pub(crate) to: &'a Endpoint<G>,
    pub(crate) sender: Option<&'a Endpoint<G>>,
}

/// What is left to do for a packet.
enum Rest<M> {
    Nothing,
    /// All of it.
    All,
    /// The payload was copied, or could not be. The receiver has to process the result.
    Tell(Placement<M>, Written),
    /// It could not be copied.
    Unplaced(Unplaced),
}

/// Delivers a part of a message to an endpoint, and tells the sender.
pub(crate) fn deliver<G: Guest>(
    wire: &Wire,
    now: Duration,
    ends: &Ends<'_, G>,
    packet: Packet,
    woken: &mut Woken,
) -> Delivered {
    let Body::Data(data, carried) = &packet.body else {
        return Delivered::Done;
    };
    for _ in 0..TRIES {
        let (located, remembered) = match (carried, ends.sender) {
            (Some(carried), _) => {
                let payload = Payload::Inline(carried.payload.as_slice().into());
                let header = carried.header;
                (Some(Located { header, payload }), &carried.remembered)
            }
            (None, Some(sender)) => match sender.lock_for(ends.to.port) {
                Some(mut state) => (state.locate(now, data), &sender.remembered),
                None => return Delivered::Later(packet),
            },
            (None, None) => return Delivered::Done,
        };
        // What its sender does not know any more is nothing.
        let Some(Located { header, payload }) = located else {
            fail(wire, now, ends, data, Unplaced::Gone, woken);
            break;
        };
        let part = Part {
            from: packet.from,
            data,
            header: &header,
            remembered,
        };
        match place(wire, now, ends, &packet, part, &payload, woken) {
            Rest::Nothing => break,
            Rest::All => return Delivered::Later(packet),
            Rest::Tell(placement, written) => {
                let remembered = remembered.clone();
                *ends.to.unfinished.lock() = Some(Copied {
                    packet,
                    header,
                    remembered,
                    placement,
                    written,
                });
                return Delivered::Unfinished;
            }
            Rest::Unplaced(Unplaced::Busy) => {}
            Rest::Unplaced(unplaced) => {
                fail(wire, now, ends, data, unplaced, woken);
                break;
            }
        }
    }
    Delivered::Done
}

/// Has a receiver process payload that was placed while a command occupied it.
pub(crate) fn finish<G: Guest>(
    wire: &Wire,
    now: Duration,
    ends: &Ends<'_, G>,
    copied: Copied<G::Memory>,
    woken: &mut Woken,
) -> Delivered {
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
    match tell(wire, now, ends, &packet, part, (placement, written), woken) {
        Rest::Nothing => Delivered::Done,
        Rest::All | Rest::Unplaced(Unplaced::Busy) => Delivered::Later(packet),
        Rest::Tell(placement, written) => {
            *ends.to.unfinished.lock() = Some(Copied {
                packet,
                header,
                remembered,
                placement,
                written,
            });
            Delivered::Unfinished
        }
        Rest::Unplaced(unplaced) => {
            fail(wire, now, ends, data, unplaced, woken);
            Delivered::Done
        }
    }
}

/// Fails the packet of a sender whose payload can't be read. If a command occupies the sender, the packet is lost. Its retransmission
/// fails again.
fn fail<G: Guest>(
    wire: &Wire,
    now: Duration,
    ends: &Ends<'_, G>,
    data: &Data,
    unplaced: Unplaced,
    woken: &mut Woken,
) {
    let Some(sender) = ends.sender else {
        return;
    };
    if unplaced == Unplaced::Lost {
        if let Some(mut state) = sender.lock_now() {
            state.fail(now, data, CompStatus::LocalInvalidLkey);
        }
    }
    // It may have given the message up, and has to say so to a peer that reads.
    wire.wake(sender.port, woken);
}

/// Sends the sender of a packet the verdict. A sender of this program gets it at once if the network takes no time and no command
/// occupies it.
fn answer<G: Guest>(
    wire: &Wire,
    now: Duration,
    sender: Option<&Endpoint<G>>,
    packet: &Packet,
    ack: Ack,
    woken: &mut Woken,
) {
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
    wire.show(&packet, true, None);
    if wire.is_denied(&packet) {
        return;
    }
    // One that can't be sent is one that is lost.
    let Ok(sent) = wire
        .network
        .send(now, (from.0, to.0), packet.path, load, packet)
    else {
        return;
    };
    let Some(packet) = sent.arrived else {
        return;
    };
    match sender.and_then(Endpoint::lock_now) {
        Some(mut state) => {
            wire.show(&packet, false, None);
            state.acknowledge(now, from, &ack);
            drop(state);
            wire.wake(to, woken);
        }
        None => wire.arrive(packet, woken),
    }
}

/// Places payload at an endpoint, and tells its sender.
fn place<G: Guest>(
    wire: &Wire,
    now: Duration,
    ends: &Ends<'_, G>,
    packet: &Packet,
    part: Part<'_>,
    payload: &Payload<G::Memory>,
    woken: &mut Woken,
) -> Rest<G::Memory> {
    let flip = wire.network.flips(part.data.length);
    let Some(mut state) = ends.to.lock_for(ends.to.port) else {
        return Rest::All;
    };
    let placement = match state.receive(now, part, flip) {
        Received::Place(placement) => placement,
        Received::Answer(verdict) => {
            drop(state);
            answer(wire, now, ends.sender, packet, part.ack(verdict), woken);
            return Rest::Nothing;
        }
        Received::Silence => return Rest::Nothing,
    };
    // Nothing is waited for as long as this is kept.
    let pinned = state.guest.pins().pin();
    drop(state);
    let written = copy(payload, &placement);
    drop(pinned);
    // The sender knows before the receiver's program does, whose answer so comes after the completion of what it answers. On
    // hardware it takes longer, too, and perftest relies on it. Nothing that follows can fail.
    if written == Ok(Ok(())) {
        let ack = part.ack(Verdict::Delivered);
        answer(wire, now, ends.sender, packet, ack, woken);
    }
    tell(wire, now, ends, packet, part, (placement, written), woken)
}

/// Tells an endpoint of payload that was written, or could not be; and then its sender, if it could not.
fn tell<G: Guest>(
    wire: &Wire,
    now: Duration,
    ends: &Ends<'_, G>,
    packet: &Packet,
    part: Part<'_>,
    (placement, written): (Placement<G::Memory>, Written),
    woken: &mut Woken,
) -> Rest<G::Memory> {
    let Some(mut state) = ends.to.lock_for(ends.to.port) else {
        return Rest::Tell(placement, written);
    };
    let written = match written {
        Ok(written) => written,
        Err(unplaced) => {
            state.not_placed(placement);
            return Rest::Unplaced(unplaced);
        }
    };
    let received = state.placed(now, wire, part, placement, written);
    drop(state);
    if let (Received::Answer(verdict), Err(_)) = (received, written) {
        answer(wire, now, ends.sender, packet, part.ack(verdict), woken);
    }
    Rest::Nothing
}

/// Copies payload to its place, if it can be had; returns whether it was written.
fn copy<M: Memory>(payload: &Payload<M>, placement: &Placement<M>) -> Written {
    let written = match payload {
        Payload::Nothing => Ok(()),
        Payload::Inline(bytes) => placement.memory.write(bytes),
        Payload::Memory(memory, unpinned) => {
            let _pinned = unpinned.pin().ok_or(Unplaced::Busy)?;
            match memory.copy_to(&placement.memory) {
                Ok(()) => Ok(()),
                Err(CopyError::Source(_)) => return Err(Unplaced::Lost),
                Err(CopyError::Target(error)) => Err(error),
            }
        }
    };
    if written.is_ok() {
        placement.spoil();
    }
    Ok(written)
}

/// Reads the payload of a part of a message, for another program behind `port`; nothing, if the sender has none. If a command occupies
/// the sender, the port is woken when it has ended.
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

/// Somebody works on an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupied;
