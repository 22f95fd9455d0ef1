// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How payload gets from the memory of one endpoint to that of another: found under the lock of the one, placed under that of the
//! other, and copied under none.

use std::time::Duration;

use efa_hw::io::CompStatus;
use efa_model::DmaError;

use parking_lot::MutexGuard;

use crate::{
    endpoint::{Endpoint, Part, Payload, Placement, Received},
    memory::{CopyError, Guest, Memory},
    network::Load,
    packet::{Ack, Body, Carried, Data, Header, Packet, Verdict},
    schedule::Woken,
    wire::Wire,
};

/// Payload up to which a copy takes no longer than it takes to give the lock back and to get it again.
const SHORT: u32 = 4096;

/// How often it is tried to pin memory whose owner waits for copies, which it does once for each command.
const TRIES: usize = 8;

/// Where the payload of a packet comes from.
pub(crate) enum Source<'a, G> {
    /// A device of this program.
    Endpoint(&'a Endpoint<G>),
    /// The packet.
    Packet(&'a Carried),
}

/// Delivers a part of a message to an endpoint, and tells the sender.
pub(crate) fn deliver<G: Guest>(
    wire: &Wire,
    now: Duration,
    to: &Endpoint<G>,
    packet: &Packet,
    data: &Data,
    source: &Source<'_, G>,
    woken: &mut Woken,
) {
    let from = packet.from;
    let (sender, remembered) = match source {
        Source::Endpoint(sender) => (Some(*sender), &sender.remembered),
        Source::Packet(carried) => (None, &carried.remembered),
    };
    let mut place = |header: &Header, payload: &Payload<G::Memory>| {
        let part = Part {
            from,
            data,
            header,
            remembered,
        };
        place(wire, now, (to, sender), packet, part, payload, woken)
    };
    match source {
        Source::Packet(carried) => {
            let payload = Payload::Inline(carried.payload.as_slice().into());
            // What another program sends can't be busy, gone or lost.
            let _ = place(&carried.header, &payload);
        }
        Source::Endpoint(sender) => {
            for _ in 0..TRIES {
                // What its sender does not know any more is nothing.
                let located = sender.lock().locate(now, data);
                let placed = located.map_or(Err(Unplaced::Gone), |located| {
                    place(&located.header, &located.payload)
                });
                match placed {
                    Err(Unplaced::Busy) => continue,
                    Err(Unplaced::Lost) => {
                        sender.lock().fail(now, data, CompStatus::LocalInvalidLkey);
                        wire.wake(sender.port, woken);
                    }
                    // It may have given the message up, and has to say so to a peer that reads.
                    Err(Unplaced::Gone) => wire.wake(sender.port, woken),
                    Ok(()) => {}
                }
                break;
            }
        }
    }
}

/// Tells the sender of a packet what became of it. If it is at hand and the network takes no time, it knows at once.
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
    // One that can't be sent is one that is lost.
    let Ok(sent) = wire
        .network
        .send(now, (from.0, to.0), packet.path, load, packet)
    else {
        return;
    };
    match (sent.arrived, sender) {
        (Some(packet), Some(sender)) => {
            wire.show(&packet, false, None);
            sender.lock().acknowledge(now, from, &ack);
            wire.wake(to, woken);
        }
        (Some(packet), None) => wire.arrive(packet, woken),
        (None, _) => {}
    }
}

/// Why payload was not placed.
enum Unplaced {
    /// The sender waits for copies, so that no other can begin now.
    Busy,
    /// The sender has no such message.
    Gone,
    /// The sender's memory was taken away.
    Lost,
}

/// Places payload at an endpoint, and tells its sender.
fn place<G: Guest>(
    wire: &Wire,
    now: Duration,
    (to, sender): (&Endpoint<G>, Option<&Endpoint<G>>),
    packet: &Packet,
    part: Part<'_>,
    payload: &Payload<G::Memory>,
    woken: &mut Woken,
) -> Result<(), Unplaced> {
    let flip = wire.network.flips(part.data.length);
    let mut state = to.lock();
    let received = match state.receive(now, part, flip) {
        Received::Place(placement) => {
            let copied = if part.data.length <= SHORT {
                copy(payload, &placement)
            } else {
                // Nothing is waited for as long as this is kept.
                let pinned = state.guest.pins().pin();
                MutexGuard::unlocked(&mut state, || {
                    let copied = copy(payload, &placement);
                    drop(pinned);
                    copied
                })
            };
            match copied {
                Ok(written) => {
                    // The sender knows before the receiver's program does, whose answer so comes after the completion of what it
                    // answers. On hardware it takes longer, too, and perftest relies on it. Nothing that follows can fail.
                    if written.is_ok() {
                        let ack = part.ack(Verdict::Delivered);
                        MutexGuard::unlocked(&mut state, || {
                            answer(wire, now, sender, packet, ack, woken);
                        });
                        state.placed(now, wire, part, placement, written);
                        return Ok(());
                    }
                    state.placed(now, wire, part, placement, written)
                }
                Err(unplaced) => {
                    state.not_placed(placement);
                    return Err(unplaced);
                }
            }
        }
        received => received,
    };
    drop(state);
    if let Received::Answer(verdict) = received {
        answer(wire, now, sender, packet, part.ack(verdict), woken);
    }
    Ok(())
}

/// Copies payload to its place, if it can be had; returns whether it was written.
fn copy<M: Memory>(
    payload: &Payload<M>,
    placement: &Placement<M>,
) -> Result<Result<(), DmaError>, Unplaced> {
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

/// Reads the payload of a part of a message, for another program.
pub(crate) fn read<G: Guest>(
    now: Duration,
    sender: &Endpoint<G>,
    data: &Data,
) -> Option<(Header, Vec<u8>)> {
    for _ in 0..TRIES {
        let located = sender.lock().locate(now, data)?;
        match located.payload {
            Payload::Nothing => return Some((located.header, Vec::new())),
            Payload::Inline(bytes) => return Some((located.header, bytes.into())),
            Payload::Memory(memory, unpinned) => {
                if let Some(pinned) = unpinned.pin() {
                    // CAST: 32 bits fit.
                    let mut bytes = vec![0; data.length as usize];
                    if memory.read(&mut bytes).is_ok() {
                        return Some((located.header, bytes));
                    }
                    drop(pinned);
                    sender.lock().fail(now, data, CompStatus::LocalInvalidLkey);
                    return None;
                }
            }
        }
    }
    None
}
