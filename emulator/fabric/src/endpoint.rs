// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An endpoint: a device with its guest's memory and its half of the transport, under a lock of its own.

mod batch;
mod direct;
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
    batch::{Batch, Postponed},
    placement::{Copied, Payload, Placement, Unplaced, Written},
    receiving::{Part, Received},
    sending::Located,
};
use crate::{
    memory::Guest,
    packet::{Address, MAX_IN_TRANSIT, PortId},
    quota::Quota,
    schedule::Woken,
    srd::{ConnectionState, Connections, REMEMBERED, Reads, Receivers},
    wire::{Mailbox, Wire},
};

/// Upper bound on the time that a thread holds an endpoint to move packets, unless it is preempted.
const MOMENT: Duration = Duration::from_micros(100);

/// Interval between searches for unused connections.
const SWEEP: Duration = Duration::from_secs(1);

/// Limit on the undelivered unreliable datagrams of a device, in bytes. Further ones are dropped, as in a switch with full
/// buffers.
const DATAGRAM_BYTES: usize = 8 << 20;

/// Limit on payload of slow memory that was read but not delivered, in bytes. Further packets with such payload are dropped.
const PASSED_BYTES: usize = 8 << 20;

/// Limit on the connections that are listed.
const MAX_LISTED: usize = 256;

/// Interval of attempts to lock an endpoint whose guest's memory is slow.
pub(crate) const RETRY: Duration = Duration::from_millis(10);

/// A device, its guest, and its state of the transport.
#[derive(Debug)]
pub(crate) struct Endpoint<G: Guest> {
    pub(crate) port: PortId,
    pub(crate) address: Address,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Quota for the state that receivers keep of its connections.
    pub(crate) remembered: Quota,
    /// Memory for messages that are delivered without packets. The thread that delivers them takes it.
    pub(crate) batch: Mutex<Batch<G::Memory>>,
    pub(crate) postponed: Mutex<Postponed>,
    /// Payload that was copied, but not yet processed by the endpoint.
    pub(crate) unfinished: Mutex<Vec<Copied<G::Memory>>>,
    /// Quota for payload of slow memory.
    pub(crate) passed: Quota,
    users: Mutex<Users>,
    state: Mutex<State<G>>,
}

/// Number of commands that occupy the device of an endpoint, and the ports that wait for them.
#[derive(Debug, Default)]
struct Users {
    count: usize,
    /// Ports whose turn ended early because they need the endpoint.
    waiting: BTreeSet<PortId>,
}

/// State guarded by the lock of an endpoint.
#[derive(Debug)]
pub(crate) struct State<G> {
    port: PortId,
    address: Address,
    pub(crate) device: Device,
    pub(crate) guest: G,
    /// Time at which the device must run.
    due: Option<Duration>,
    connections: Connections,
    receivers: Receivers,
    reads: Reads,
    /// Work requests of datagrams, and the times at which they leave the device and are completed.
    departures: VecDeque<(Duration, Box<Request>)>,
    datagrams: Quota,
    /// Quota for its other packets in transit.
    packets: Quota,
    /// Time of the next search for unused state.
    sweep: Option<Duration>,
    /// Location of the current packet's payload, kept to reuse the allocation.
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
            batch: Mutex::default(),
            postponed: Mutex::default(),
            unfinished: Mutex::default(),
            passed: Quota::new(PASSED_BYTES),
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
                packets: Quota::new(MAX_IN_TRANSIT),
                sweep: None,
                segments: Vec::new(),
            }),
        }
    }

    /// Locks the endpoint, however long that takes. No thread locks two at a time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<G>> {
        self.state.lock()
    }

    /// Calls `work` with the endpoint locked, however long it takes. Also returns the ports to wake that have waited for it.
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

    /// Locks the endpoint briefly, during the turn of a port. Returns `None` if a command occupies the endpoint. The turn must
    /// then end, and the port is woken when the command ends. Also returns `None` if a thread that is stuck in slow memory has
    /// the lock.
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
            // All other threads hold the lock only briefly, unless the memory of the guest is slow.
            let state = self.state.try_lock_for(MOMENT);
            if state.is_some() || self.mailbox.is_slow() {
                return state;
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
    /// Returns the state of the first connections, and their peers.
    pub(crate) fn connections(&self) -> Vec<(PortId, ConnectionState)> {
        self.connections.states().take(MAX_LISTED).collect()
    }

    /// Returns the number of messages and reads that have not ended.
    pub(crate) fn held(&self) -> usize {
        self.connections.messages() + self.reads.len()
    }

    /// Calls `work` on the device, then lets the device process due work.
    pub(crate) fn with<R>(&mut self, now: Duration, work: impl FnOnce(&mut Device, &mut G) -> R) -> R {
        let result = work(&mut self.device, &mut self.guest);
        self.due = self.device.run(&mut self.guest, now);
        result
    }

    /// Processes due work, then sends, messages without packets in a `batch`. Returns the number of packets sent, and whether
    /// there is more work.
    pub(crate) fn work(
        &mut self,
        now: Duration,
        wire: &Wire,
        budget: u32,
        batch: &mut Batch<G::Memory>,
        woken: &mut Woken,
    ) -> (u32, bool) {
        if self.due.is_some_and(|due| due <= now) {
            self.with(now, |_, _| ());
        }
        self.depart(now);
        if self.connections.next_due().is_some_and(|due| due <= now) {
            self.expire(now);
        }
        let (fetched, fetched_all) = self.fetch(now, wire, budget, batch, woken);
        // A dead device does not send failures, either.
        if self.device.is_alive() {
            let device = &self.device;
            self.connections.end_all(|qp| device.is_current(qp));
        }
        let sent = fetched + self.transmit(now, wire, budget, woken);
        if self.sweep.is_some_and(|sweep| sweep <= now) {
            self.sweep(now, wire);
        }
        if self.device.is_urgent() {
            self.with(now, |_, _| ());
        }
        self.arm(now, wire);
        (sent, !fetched_all || self.connections.has_work())
    }

    /// Sets a timer that wakes the endpoint when its next work is due.
    fn arm(&mut self, now: Duration, wire: &Wire) {
        let nothing = self.connections.len() == 0 && self.receivers.is_empty() && self.reads.len() == 0;
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

    /// Drops unused state, and fails reads without a response. If this is late, the program has paused. What has arrived meanwhile
    /// is then processed before the next time.
    fn sweep(&mut self, now: Duration, wire: &Wire) {
        let due = self.sweep.take();
        if due.is_some_and(|due| now > due + SWEEP) {
            return;
        }
        let device = &self.device;
        self.connections.sweep(now, |qp| device.is_current(qp));
        let silence = Duration::from_secs_f64(wire.network.settings().silence_s);
        self.receivers.sweep(now, silence);
        for read in self.reads.sweep(now, |qp| device.is_current(qp)) {
            self.complete(&read.request, CompStatus::LocalUnrespRemote);
        }
    }

    /// Drops the state of a peer that is gone, and fails the work requests for it.
    pub(crate) fn forget(&mut self, now: Duration, peer: PortId) {
        for ended in self.connections.forget(peer) {
            self.end(now, Some(ended));
        }
        for read in self.reads.forget(peer) {
            self.complete(&read.request, CompStatus::LocalUnrespRemote);
        }
        self.receivers.forget(peer);
    }

    fn complete(&mut self, request: &Request, status: CompStatus) {
        self.device.complete(&mut self.guest, request, status);
    }
}
