// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Countable events of queue pairs, and the event counters that count them.

use efa_hw::{admin::event_counter::QpEvents, io::OpType};

/// Number of event kinds.
const EVENTS: usize = QpEvents::DEFINED.count_ones() as usize;

/// A countable event of a queue pair, in the order of the bits of [`QpEvents`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum QpEvent {
    SendComp,
    SendCompErr,
    RecvComp,
    RecvCompErr,
    ReadComp,
    ReadCompErr,
    WriteComp,
    WriteCompErr,
    RemoteReadComp,
    RemoteWriteComp,
}

impl QpEvent {
    /// Returns the event for the end of a send-queue work request, if there is one.
    pub(crate) fn of_request(operation: OpType, ok: bool) -> Option<Self> {
        match (operation, ok) {
            (OpType::Send, true) => Some(Self::SendComp),
            (OpType::Send, false) => Some(Self::SendCompErr),
            (OpType::RdmaRead, true) => Some(Self::ReadComp),
            (OpType::RdmaRead, false) => Some(Self::ReadCompErr),
            (OpType::RdmaWrite, true) => Some(Self::WriteComp),
            (OpType::RdmaWrite, false) => Some(Self::WriteCompErr),
            (OpType::FastReg | OpType::FastInv, _) => None,
        }
    }

    /// Returns the event for a received message or write, or for a failed receive work request.
    pub(crate) fn of_receive(ok: bool) -> Self {
        if ok { Self::RecvComp } else { Self::RecvCompErr }
    }
}

/// The attached event counter for each event kind of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Attached(pub(super) [Option<u16>; EVENTS]);

impl Attached {
    /// The event counter that counts a kind of events.
    pub(crate) fn counter(&self, event: QpEvent) -> Option<u16> {
        self.0[event as usize]
    }

    /// Replaces the event counter of the given event kinds. Returns their number, or `None` if one of them has another than `from`.
    pub(super) fn replace(&mut self, events: QpEvents, from: Option<u16>, to: Option<u16>) -> Option<usize> {
        let events = events.into_raw();
        let kinds = (0..EVENTS).filter(|bit| events & (1 << bit) != 0);
        let fits = kinds.clone().all(|kind| self.0[kind] == from);
        fits.then(|| kinds.map(|kind| self.0[kind] = to).count())
    }
}
