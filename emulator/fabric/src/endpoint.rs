// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An endpoint: a device with its guest's memory and its half of the transport, under a lock of its own.

mod capturing;
mod placement;
mod receiving;
mod sending;

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use efa_hw::io::CompStatus;
use efa_model::{Device, Request, Segment};
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::{
    placement::{Copied, Placement, Unplaced, Written},
    receiving::{Part, Received},
    sending::{Located, Payload},
};
use crate::{
    memory::Guest,
    packet::{Address, PortId},
    quota::Quota,
    schedule::Woken,
    srd::{Connections, REMEMBERED, Reads, Receivers},
    wire::{Mailbox, Wire},
};

/// Longer than a thread has an endpoint that only moves packets, unless it has lost its CPU.
const MOMENT: Duration = Duration::from_micros(100);

/// How often connections are looked at that may not be needed any more.
const SWEEP: Duration = Duration::from_secs(1);

/// Bytes that unreliable datagrams of a device take that have left it and have not been delivered. More is lost, as in a switch
/// without room.
const DATAGRAM_BYTES: usize = 8 << 20;

/// A device, its guest, and what it exchanges with others.
#[derive(Debug)]
pub(crate) struct Endpoint<G: Guest> {
    pub(crate) port: PortId,
    pub(crate) address: Address,
    pub(crate) mailbox: Arc<Mailbox>,
    /// What may be remembered of its connections where they end.
    pub(crate) remembered: Quota,
    /// Payload that was copied, if the endpoint has not processed it yet.
    pub(crate) unfinished: Mutex<Option<Copied<G::Memory>>>,
    users: Mutex<Users>,
    state: Mutex<State<G>>,
}

/// How many commands occupy the device of an endpoint, and the ports that wait for them.
#[derive(Debug, Default)]
struct Users {
    count: usize,
    /// Ports whose turn has ended meanwhile, as they need the endpoint.
    waiting: BTreeSet<PortId>,
}

/// What the lock of an endpoint guards.
#[derive(Debug)]
pub(crate) struct State<G> {
    port: PortId,
    address: Address,
    pub(crate) device: Device,
    pub(crate) guest: G,
    /// When the device wants to run.
    due: Option<Duration>,
    connections: Connections,
    receivers: Receivers,
    reads: Reads,
    /// Datagrams that leave the device, and when: their work requests are completed then.
    departures: VecDeque<(Duration, Box<Request>)>,
    datagrams: Quota,
    /// When to look for what is not needed any more.
    sweep: Option<Duration>,
    /// Where the payload of the packet at hand is; kept for its memory.
    segments: Vec<Segment>,
}

impl<G: Guest> Endpoint<G> {
    pub(crate) fn new(port: PortId, mailbox: Arc<Mailbox>, device: Device, guest: G) -> Self {
        let address = device.address();
        Self {
            port,
            address,
            mailbox,
            remembered: Quota::new(REMEMBERED),
            unfinished: Mutex::default(),
            users: Mutex::default(),
            state: Mutex::new(State {
                port,
                address,
                device,
                guest,
                due: None,
                connections: Connections::default(),
                receivers: Receivers::default(),
                reads: Reads::default(),
                departures: VecDeque::new(),
                datagrams: Quota::new(DATAGRAM_BYTES),
                sweep: None,
                segments: Vec::new(),
            }),
        }
    }

    /// Locks the endpoint, however long that takes. No thread locks two at a time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<G>> {
        self.state.lock()
    }

    /// Works with the endpoint locked for as long as that takes; returns the ports that have waited for it, too.
    pub(crate) fn occupy<R>(&self, work: impl FnOnce(&mut State<G>) -> R) -> (R, BTreeSet<PortId>) {
        self.users.lock().count += 1;
        let result = work(&mut self.lock());
        let mut users = self.users.lock();
        users.count -= 1;
        let waiting = match users.count {
            0 => mem::take(&mut users.waiting),
            _ => BTreeSet::new(),
        };
        (result, waiting)
    }

    /// Locks the endpoint for a moment, in the turn of a port. If a command occupies it, this returns nothing. The turn has to end,
    /// and the port is woken when the command has ended.
    pub(crate) fn lock_for(&self, port: PortId) -> Option<MutexGuard<'_, State<G>>> {
        if let Some(state) = self.state.try_lock() {
            return Some(state);
        }
        loop {
            {
                let mut users = self.users.lock();
                if users.count > 0 {
                    users.waiting.insert(port);
                    return None;
                }
            }
            // All others have it for a moment only.
            if let Some(state) = self.state.try_lock_for(MOMENT) {
                return Some(state);
            }
        }
    }

    /// Locks the endpoint, unless a command occupies it.
    pub(crate) fn lock_now(&self) -> Option<MutexGuard<'_, State<G>>> {
        let state = self.state.try_lock();
        if state.is_some() || self.users.lock().count > 0 {
            return state;
        }
        self.state.try_lock_for(MOMENT)
    }
}

impl<G: Guest> State<G> {
    /// Works on the device, then lets it do what is due.
    pub(crate) fn with<R>(
        &mut self,
        now: Duration,
        work: impl FnOnce(&mut Device, &mut G) -> R,
    ) -> R {
        let result = work(&mut self.device, &mut self.guest);
        self.due = self.device.run(&mut self.guest, now);
        result
    }

    /// Does what is due, then sends; returns how many packets it has sent, and whether there is more.
    pub(crate) fn work(
        &mut self,
        now: Duration,
        wire: &Wire,
        budget: u32,
        woken: &mut Woken,
    ) -> (u32, bool) {
        if self.due.is_some_and(|due| due <= now) {
            self.with(now, |_, _| ());
        }
        self.depart(now);
        if self.connections.next_due().is_some_and(|due| due <= now) {
            self.expire(now);
        }
        let fetched_all = self.fetch(now, wire, woken);
        // One that does nothing any more says nothing, either.
        if self.device.is_alive() {
            let device = &self.device;
            self.connections.end_all(|qp| device.is_current(qp));
        }
        let sent = self.transmit(now, wire, budget, woken);
        if self.sweep.is_some_and(|sweep| sweep <= now) {
            self.sweep(now);
        }
        if self.device.is_urgent() {
            self.with(now, |_, _| ());
        }
        self.arm(now, wire);
        (sent, !fetched_all || self.connections.has_work())
    }

    /// Sees to it that somebody wakes the endpoint when there will be something to do.
    fn arm(&mut self, now: Duration, wire: &Wire) {
        let nothing =
            self.connections.len() == 0 && self.receivers.is_empty() && self.reads.len() == 0;
        match self.sweep {
            None if !nothing => self.sweep = Some(now + SWEEP),
            Some(_) if nothing => self.sweep = None,
            _ => {}
        }
        let departure = self.departures.front().map(|(at, _)| *at);
        let due = [self.due, departure, self.connections.next_due(), self.sweep];
        if let Some(due) = due.into_iter().flatten().min() {
            wire.schedule.arm(self.port, due);
        }
    }

    /// Forgets what is not needed any more.
    fn sweep(&mut self, now: Duration) {
        self.sweep = None;
        let device = &self.device;
        self.connections.sweep(now, |qp| device.is_current(qp));
        self.receivers.sweep(now);
        for read in self.reads.sweep(now, |qp| device.is_current(qp)) {
            self.complete(&read.request, CompStatus::LocalUnrespRemote);
        }
    }

    /// Forgets a peer that is not there any more, and fails what was to be sent to it.
    pub(crate) fn forget(&mut self, peer: PortId) {
        let reads = self.reads.forget(peer).into_iter();
        let reads = reads.map(|read| *read.request);
        let requests = self.connections.forget(peer).into_iter().chain(reads);
        for request in requests.collect::<Vec<_>>() {
            self.complete(&request, CompStatus::LocalUnrespRemote);
        }
        self.receivers.forget(peer);
    }

    fn complete(&mut self, request: &Request, status: CompStatus) {
        self.device.complete(&mut self.guest, request, status);
    }
}
