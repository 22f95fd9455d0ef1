// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages between two devices of this program over an ideal network: in batches, without packets and connections.
//!
//! A sender delivers them in its own turn. A batch locks each of the two endpoints twice, and waits for neither. Messages that the
//! receiver does not take at once are sent in packets, which the transport repeats, and so are those to slow memory.

use std::{mem, sync::Arc, time::Duration};

use efa_hw::io::CompStatus;
use efa_model::{Arrival, Delivery, Operation, Refusal, Request, TransportEvent};

use super::{
    Endpoint, State,
    batch::{Batch, Copied, Direct, End, Postponed, Stage},
    placement::{Payload, Unplaced},
    sending::PACKETS_AT_ONCE,
};
use crate::{
    memory::Guest,
    network::Load,
    packet::PortId,
    schedule::{Run, Woken},
    wire::Wire,
};

impl<G: Guest> State<G> {
    /// Adds a message to a batch, unless it needs packets: then its work request is returned.
    pub(super) fn prepare(
        &mut self,
        wire: &Wire,
        to: PortId,
        request: Box<Request>,
        batch: &mut Batch<G::Memory>,
    ) -> Option<Box<Request>> {
        let needs_packets = request.operation == Operation::RdmaRead
            || request.length > self.device.mtu().saturating_mul(PACKETS_AT_ONCE)
            || wire.is_remote(to)
            || wire.is_tapped()
            || self.connections.is_busy(request.qp, to);
        if needs_packets {
            return Some(request);
        }
        self.segments.clear();
        let gathered = self.device.gather(&request, 0, request.length, &mut self.segments);
        match gathered.and_then(|gathered| Payload::new(&self.guest, gathered, &self.segments)) {
            Ok(payload) => {
                self.device.count(TransportEvent::Sent(request.length));
                batch.messages.push(Direct::new(to, self.address, request, payload));
            }
            Err(status) => self.complete(&request, status),
        }
        None
    }

    /// Takes messages from a peer, as far as there are receive work requests and memory for them.
    fn take(&mut self, messages: &mut [Direct<G::Memory>]) {
        for message in messages {
            let Stage::Located(payload) = mem::replace(&mut message.stage, Stage::Ended) else {
                continue;
            };
            match self.accept(&message.arrival) {
                Ok((target, delivery)) => message.stage = Stage::Placed(payload, target, delivery),
                Err(Refusal::Status(status)) => message.end = End::Completed(status),
                Err(Refusal::NotReady) => message.end = End::NotReady,
                Err(Refusal::Drop) => {}
            }
        }
    }

    /// Ends the work request of a message.
    fn end_direct(&mut self, now: Duration, wire: &Wire, to: PortId, request: Box<Request>, end: End) {
        match end {
            End::Completed(status) => self.complete(&request, status),
            End::InPackets => self.start(now, wire, to, request, true),
            End::NotReady => self.start(now, wire, to, request, false),
        }
    }

    /// Processes the payload of a message from a peer.
    fn copied(&mut self, arrival: &Arrival, delivery: Delivery, written: Copied) {
        match written {
            // The sender knows the result.
            Some(written) => {
                let (device, guest) = (&mut self.device, &mut self.guest);
                let _ = device.delivered(guest, arrival, delivery, written);
            }
            None => self.device.cancel(delivery),
        }
    }

    /// Processes what was postponed.
    pub(crate) fn catch_up(&mut self, now: Duration, wire: &Wire, postponed: &mut Postponed) {
        for (to, request, end) in postponed.ends.drain(..) {
            self.end_direct(now, wire, to, request, end);
        }
        for (arrival, delivery, written) in postponed.copied.drain(..) {
            self.copied(&arrival, delivery, written);
        }
    }
}

impl<G: Guest> Endpoint<G> {
    /// Delivers a batch of messages. The thread may be stuck in the memory of a receiver, and the port is taken away from it then.
    pub(crate) fn exchange(
        &self,
        (run, now): (Run, Duration),
        wire: &Wire,
        find: impl Fn(PortId) -> Option<Arc<Self>>,
        batch: &mut Batch<G::Memory>,
        woken: &mut Woken,
    ) {
        let Batch { messages, bytes } = batch;
        for messages in messages.chunk_by_mut(|one, next| one.to == next.to) {
            let receiver = messages.first().and_then(|first| find(first.to));
            let Some(receiver) = receiver else {
                continue;
            };
            let is_slow = self.mailbox.is_slow();
            let places = match receiver.mailbox.is_slow() {
                true => None,
                false => self.mailbox.accessing(run, receiver.port, || {
                    let mut state = receiver.lock_now()?;
                    state.take(messages);
                    Some(state.guest.pins().later())
                }),
            };
            let has_taken = places.is_some();
            if let Some(places) = places {
                for message in &mut *messages {
                    message.copy(is_slow, bytes, |access| {
                        let _pinned = places.pin().ok_or(Unplaced::Busy)?;
                        self.mailbox.accessing(run, receiver.port, access)
                    });
                }
            }
            // The sender is notified before the receiver's program, see `Transfer::place`.
            self.end_all(now, wire, messages, woken);
            if has_taken {
                let conclude = || receiver.conclude_all(wire, messages, woken);
                self.mailbox.accessing(run, receiver.port, conclude);
            }
        }
        messages.clear();
    }

    /// Ends the work requests of messages.
    fn end_all(&self, now: Duration, wire: &Wire, messages: &mut [Direct<G::Memory>], woken: &mut Woken) {
        let mut state = self.lock_now();
        let mut has_more = state.is_none();
        let mut load = Load::default();
        for message in messages.iter_mut() {
            let Some(request) = message.request.take() else {
                continue;
            };
            let is_delivered = matches!(message.end, End::Completed(CompStatus::Ok));
            has_more |= !is_delivered;
            match &mut state {
                Some(state) => {
                    if is_delivered {
                        // The acknowledgement is a packet, too.
                        load.packets += state.device.packets(request.length) + 1;
                        load.bytes += request.length;
                        state.connections.heard(now, message.to);
                    }
                    state.end_direct(now, wire, message.to, request, message.end);
                }
                None => {
                    let mut postponed = self.postponed.lock();
                    postponed.ends.push((message.to, request, message.end));
                }
            }
        }
        if let Some(message) = messages.first() {
            let ends = (self.port.0, message.to.0);
            wire.network.count(ends, message.arrival.peer_qp, load);
        }
        if has_more || state.is_some_and(|state| state.device.is_urgent()) {
            wire.wake(self.port, woken);
        }
    }

    /// Processes the payload of messages from a peer.
    fn conclude_all(&self, wire: &Wire, messages: &mut [Direct<G::Memory>], woken: &mut Woken) {
        let mut state = self.lock_now();
        for message in messages {
            if let Stage::Copied(delivery, written) = mem::replace(&mut message.stage, Stage::Ended) {
                match &mut state {
                    Some(state) => state.copied(&message.arrival, delivery, written),
                    None => {
                        let mut postponed = self.postponed.lock();
                        postponed.copied.push((message.arrival, delivery, written));
                    }
                }
            }
        }
        if state.is_none_or(|state| state.device.is_urgent()) {
            wire.wake(self.port, woken);
        }
    }
}
