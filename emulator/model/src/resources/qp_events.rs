// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What happens to a queue pair and can be counted, and which event counter counts it.

use efa_hw::{admin::event_counter::QpEvents, io::OpType};

/// How many kinds of events there are.
const EVENTS: usize = QpEvents::DEFINED.count_ones() as usize;

/// What happens to a queue pair and can be counted, in the order of the bits of [`QpEvents`].
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
    /// A work request of the send queue has ended, if there is such an event.
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

    /// Something was received, or a work request of the receive queue has failed.
    pub(crate) fn of_receive(ok: bool) -> Self {
        if ok {
            Self::RecvComp
        } else {
            Self::RecvCompErr
        }
    }
}

/// The event counters of a queue pair: for each kind of events, the one that counts them.
#[derive(Debug, Default)]
pub(crate) struct Attached(pub(super) [Option<u16>; EVENTS]);

impl Attached {
    /// The event counter that counts a kind of events.
    pub(crate) fn counter(&self, event: QpEvent) -> Option<u16> {
        self.0[event as usize]
    }

    /// The places of some kinds of events.
    pub(super) fn of(&mut self, events: QpEvents) -> impl Iterator<Item = &mut Option<u16>> {
        let events = events.into_raw();
        let wanted = move |(bit, counter): (u32, _)| (events & (1 << bit) != 0).then_some(counter);
        (0..).zip(&mut self.0).filter_map(wanted)
    }
}
