// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The clock and the threads of a fabric.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use efa_fabric::{Fabric, Frame, Guest, JoinError, Link, LinkId, Newcomer, PortId, Runs, Settings};
use efa_model::Device;
use parking_lot::{Condvar, Mutex};

use crate::slot::Slot;

/// Number of packets that a caller moves at once after it gave a device work, so that short messages need no other thread.
const PROMPT: u32 = 1024;

/// Number of packets that a thread moves before it reads the clock again.
const BATCH: u32 = 128;

/// Interval at which ports are taken away from threads that are stuck. A guest keeps others waiting for two of them at most. A thread
/// that only waits for a processor is not stuck: on a busy host, that takes tens of milliseconds.
const WATCH: Duration = Duration::from_millis(50);

/// The value of `sleep_until` while no thread sleeps.
const AWAKE: u64 = u64::MAX;

/// A fabric in the time of the host, with threads that do its work.
///
/// A caller that gives a device work, such as the thread of a VMM, does some of it at once. Threads that call
/// [`work`](Self::work) do the rest, and the work that is due later.
pub struct Runtime {
    pub(crate) fabric: Fabric<Slot>,
    pub(crate) start: Instant,
    sleepers: Mutex<Sleepers>,
    called: Condvar,
    /// Earliest timeout of the threads that sleep, in ns since the start; [`AWAKE`] if none sleeps.
    sleep_until: AtomicU64,
}

/// The threads that sleep.
#[derive(Debug, Default)]
struct Sleepers {
    /// Number of requests to wake one of them.
    calls: u64,
    /// The timeout of each, in ns since the start.
    until: Vec<u64>,
}

impl Runtime {
    /// Creates a network without devices. All times are relative to `start`.
    pub fn new(settings: Settings, seed: u64, start: Instant) -> Self {
        Self {
            fabric: Fabric::new(settings, seed),
            start,
            sleepers: Mutex::default(),
            called: Condvar::new(),
            sleep_until: AtomicU64::new(AWAKE),
        }
    }

    /// Returns the network, for what creates no work for devices.
    pub fn fabric(&self) -> &Fabric<impl Guest> {
        &self.fabric
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Calls `work` with exclusive access to a device, then does some of the work that results.
    pub(crate) fn with<R>(&self, port: PortId, work: impl FnOnce(&mut Device, &mut Slot, Duration) -> R) -> R {
        let now = self.now();
        let result = self.fabric.with(port, now, PROMPT, |device, slot| work(device, slot, now));
        self.call(now);
        result
    }

    /// Adds another program. `way` carries packets to it.
    ///
    /// # Errors
    ///
    /// The program can't join.
    pub fn join(&self, newcomer: &Newcomer<'_>, way: &Arc<dyn Link>) -> Result<LinkId, JoinError> {
        let now = self.now();
        let joined = self.fabric.join(now, newcomer, way);
        self.call(now);
        joined
    }

    /// Accepts a packet from another program, whose further packets do not wait for the memory of a guest.
    pub fn accept(&self, link: LinkId, frame: Frame) {
        let now = self.now();
        self.fabric.accept(now, link, frame, 0);
        self.call(now);
    }

    /// Wakes a thread that sleeps, if work is due before the earliest timeout.
    fn call(&self, now: Duration) {
        let until = self.sleep_until.load(Ordering::SeqCst);
        let is_earlier = |due| until != AWAKE && nanos(due) < until;
        if self.fabric.next_due(now).is_some_and(is_earlier) {
            self.sleepers.lock().calls += 1;
            self.called.notify_one();
        }
    }

    /// Starts substitutes of threads that are stuck in the memory of a guest, for ever. It needs a thread of its own.
    pub fn watch(self: &Arc<Self>) -> ! {
        let mut seen = Runs::default();
        loop {
            thread::sleep(WATCH);
            for _ in 0..self.fabric.relieve(&mut seen) {
                let runtime = Arc::clone(self);
                let thread = thread::Builder::new().name("fabric".into());
                if let Err(error) = thread.spawn(move || runtime.work()) {
                    tracing::warn!(%error, "one thread less moves packets");
                }
            }
        }
    }

    /// Does the work that is due, until another thread has returned that this one substitutes. It needs a thread of its own.
    /// Several threads may call it.
    pub fn work(&self) {
        while !self.fabric.has_returned() {
            let calls = self.sleepers.lock().calls;
            let now = self.now();
            let due = self.fabric.run(now, BATCH);
            if due.is_none_or(|due| due > now) {
                self.sleep(calls, due);
            }
        }
        // All others may sleep, and not know of the work that this thread leaves.
        self.call(self.now());
    }

    /// Sleeps until `due`. Returns at once if another thread has changed the number of `calls`, or if work is due before.
    fn sleep(&self, calls: u64, due: Option<Duration>) {
        let until = due.map_or(AWAKE - 1, nanos);
        let mut sleepers = self.sleepers.lock();
        sleepers.until.push(until);
        self.publish(&sleepers);
        // Another thread may have added work before it could see that this thread is about to sleep.
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
        self.sleep_until.store(first.unwrap_or(AWAKE), Ordering::SeqCst);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(AWAKE - 1)
}
