// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The clock and the threads of a fabric.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use efa_fabric::{Fabric, Frame, JoinError, Link, LinkId, PathCounters, PortId, Settings, Tap};
use efa_model::Device;
use parking_lot::{Condvar, Mutex};

use crate::slot::Slot;

/// Packets that whoever gives a device something to do moves at once, so that a short message needs no other thread.
const PROMPT: u32 = 16;

/// Packets that a thread moves before it looks at the time again.
const BATCH: u32 = 128;

/// Nobody sleeps.
const AWAKE: u64 = u64::MAX;

/// A fabric whose time is that of the host, and which threads look after.
///
/// Whoever gives a device something to do, such as the thread of a VMM, does some of it at once. The rest, and what is due later,
/// is done by threads that call [`work`](Self::work).
pub struct Runtime {
    fabric: Fabric<Slot>,
    start: Instant,
    sleepers: Mutex<Sleepers>,
    called: Condvar,
    /// When the first of the threads that sleep wakes up by itself, in ns since the start; [`AWAKE`] if none sleeps.
    sleep_until: AtomicU64,
}

/// The threads that sleep.
#[derive(Debug, Default)]
struct Sleepers {
    /// How often somebody had something for them.
    calls: u64,
    /// When each wakes up by itself, in ns since the start.
    until: Vec<u64>,
}

impl Runtime {
    /// A network without devices. All times are times since `start`.
    pub fn new(settings: Settings, seed: u64, start: Instant) -> Self {
        Self {
            fabric: Fabric::new(settings, seed),
            start,
            sleepers: Mutex::default(),
            called: Condvar::new(),
            sleep_until: AtomicU64::new(AWAKE),
        }
    }

    /// Has all packets shown from now on. The ports are those of the devices, in the order in which they are attached.
    pub fn set_tap(&self, tap: Arc<dyn Tap>) {
        self.fabric.set_tap(tap);
    }

    /// What the network is like.
    pub fn settings(&self) -> Arc<Settings> {
        self.fabric.settings()
    }

    /// Changes what the network is like.
    pub fn set(&self, settings: Settings) {
        self.fabric.set(settings);
    }

    /// What each path did.
    pub fn paths(&self) -> Vec<PathCounters> {
        self.fabric.paths()
    }

    /// Packets that were lost as there was no room for them where they arrived.
    pub fn overflows(&self) -> usize {
        self.fabric.overflows()
    }

    /// The addresses of all devices of this program.
    pub fn addresses(&self) -> Vec<[u8; 16]> {
        self.fabric.addresses()
    }

    /// How many devices of other programs there are.
    pub fn remote_devices(&self) -> usize {
        self.fabric.remote_devices()
    }

    pub(crate) fn attach(&self, device: Device, slot: Slot) -> PortId {
        self.fabric.attach(device, slot)
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Works on a device alone, then does some of what follows from that.
    pub(crate) fn with<R>(
        &self,
        port: PortId,
        work: impl FnOnce(&mut Device, &mut Slot, Duration) -> R,
    ) -> R {
        let now = self.now();
        let result = self
            .fabric
            .with(port, now, PROMPT, |device, slot| work(device, slot, now));
        self.call(now);
        result
    }

    /// Takes note of another program.
    ///
    /// # Errors
    ///
    /// It can't join.
    pub fn join(
        &self,
        program: u64,
        addresses: &[[u8; 16]],
        way: &Arc<dyn Link>,
    ) -> Result<LinkId, JoinError> {
        let now = self.now();
        let joined = self.fabric.join(now, program, addresses, way);
        self.call(now);
        joined
    }

    /// Takes note that the link to another program is lost.
    pub fn leave(&self, link: LinkId) {
        self.fabric.leave(self.now(), link);
    }

    /// Takes a packet from another program.
    pub fn accept(&self, link: LinkId, frame: Frame) {
        let now = self.now();
        self.fabric.accept(now, link, frame, PROMPT);
        self.call(now);
    }

    /// Calls a thread that sleeps, if there is something to do before it wakes up.
    fn call(&self, now: Duration) {
        let until = self.sleep_until.load(Ordering::SeqCst);
        let is_earlier = |due| until != AWAKE && nanos(due) < until;
        if self.fabric.next_due(now).is_some_and(is_earlier) {
            self.sleepers.lock().calls += 1;
            self.called.notify_one();
        }
    }

    /// Does what there is to do, for ever. It needs a thread of its own; several may do it.
    pub fn work(&self) -> ! {
        loop {
            let calls = self.sleepers.lock().calls;
            let now = self.now();
            let due = self.fabric.run(now, BATCH);
            if due.is_none_or(|due| due > now) {
                self.sleep(calls, due);
            }
        }
    }

    /// Sleeps until `due`, unless somebody has called since there were so many `calls`, or there is something to do before.
    fn sleep(&self, calls: u64, due: Option<Duration>) {
        let until = due.map_or(AWAKE - 1, nanos);
        let mut sleepers = self.sleepers.lock();
        sleepers.until.push(until);
        self.publish(&sleepers);
        // Somebody may have left something, and not have seen that this thread is about to sleep.
        let now = self.now();
        let is_earlier = |due| nanos(due) < until;
        let missed = self.fabric.next_due(now).is_some_and(is_earlier);
        if sleepers.calls == calls && !missed {
            match due {
                None => self.called.wait(&mut sleepers),
                Some(due) => {
                    let time = due.saturating_sub(now);
                    self.called.wait_for(&mut sleepers, time);
                }
            }
        }
        if let Some(index) = sleepers.until.iter().position(|other| *other == until) {
            sleepers.until.swap_remove(index);
        }
        self.publish(&sleepers);
    }

    fn publish(&self, sleepers: &Sleepers) {
        let first = sleepers.until.iter().copied().min();
        self.sleep_until
            .store(first.unwrap_or(AWAKE), Ordering::SeqCst);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(AWAKE - 1)
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("fabric", &self.fabric)
            .finish_non_exhaustive()
    }
}
