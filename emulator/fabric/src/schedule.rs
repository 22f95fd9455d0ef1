// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Schedule of ports: those with work now, and the times of later work.
//!
//! Only one thread at a time runs a port. A thread that creates work for a port wakes it. If the port was asleep, the waking
//! thread must run it, or queue it for another thread.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::packet::PortId;

/// Woken ports that the current thread runs next.
pub(crate) type Woken = VecDeque<PortId>;

/// Scheduling state of a port.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU8);

const ASLEEP: u8 = 0;
/// The port is in a list, to be run.
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
/// The port is running, and has to run again.
const WOKEN: u8 = 3;

impl Turn {
    /// Wakes the port; returns whether the caller must run or queue it.
    pub(crate) fn wake(&self) -> bool {
        let woken = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |turn| match turn {
                ASLEEP => Some(QUEUED),
                RUNNING => Some(WOKEN),
                _ => None,
            });
        woken == Ok(ASLEEP)
    }

    /// Marks a queued port as running. Returns `false` if another thread has already done this.
    pub(crate) fn begin(&self) -> bool {
        let begun = self
            .0
            .compare_exchange(QUEUED, RUNNING, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    /// Ends a run of the port; `more` is whether it has more work. Returns whether the caller must queue it.
    pub(crate) fn end(&self, more: bool) -> bool {
        if !more {
            let asleep =
                self.0
                    .compare_exchange(RUNNING, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
            if asleep.is_ok() {
                return false;
            }
        }
        self.0.store(QUEUED, Ordering::Release);
        true
    }
}

/// Ports that any thread may run, and the times of later work.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    ready: Mutex<VecDeque<PortId>>,
    timers: Mutex<Timers>,
}

/// Times at which ports are woken, one per port.
#[derive(Debug, Default)]
struct Timers {
    by_time: BTreeSet<(Duration, PortId)>,
    by_port: HashMap<PortId, Duration>,
}

impl Schedule {
    /// Queues ports for any thread.
    pub(crate) fn leave(&self, ports: &mut Woken) {
        if !ports.is_empty() {
            self.ready.lock().append(ports);
        }
    }

    pub(crate) fn take_ready(&self) -> Option<PortId> {
        self.ready.lock().pop_front()
    }

    /// Has a port woken at `due`, or earlier. A port that is woken too early has no work yet, and sets a timer again. This is
    /// cheaper than a change of the timer with each packet.
    pub(crate) fn arm(&self, port: PortId, due: Duration) {
        let mut timers = self.timers.lock();
        let Timers { by_time, by_port } = &mut *timers;
        match by_port.get(&port).copied() {
            Some(before) if before <= due => return,
            Some(before) => {
                by_time.remove(&(before, port));
            }
            None => {}
        }
        by_time.insert((due, port));
        by_port.insert(port, due);
    }

    /// Takes a port with an expired timer.
    pub(crate) fn take_due(&self, now: Duration) -> Option<PortId> {
        let mut timers = self.timers.lock();
        let first = *timers.by_time.first()?;
        if first.0 > now {
            return None;
        }
        timers.by_time.remove(&first);
        timers.by_port.remove(&first.1);
        Some(first.1)
    }

    /// Returns the time of the next work, which may be now.
    pub(crate) fn next_due(&self, now: Duration) -> Option<Duration> {
        if !self.ready.lock().is_empty() {
            return Some(now);
        }
        let timers = self.timers.lock();
        timers.by_time.first().map(|first| first.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_runs_once_however_often_it_is_woken() {
        let turn = Turn::default();
        assert!(turn.wake());
        assert!(!turn.wake());
        assert!(turn.begin());
        // Another thread has the port in its list, too.
        assert!(!turn.begin());
        assert!(!turn.end(false));
        assert!(!turn.begin());
        assert!(turn.wake());
    }

    #[test]
    fn a_port_that_is_woken_while_it_runs_runs_again() {
        let turn = Turn::default();
        assert!(turn.wake());
        assert!(turn.begin());
        assert!(!turn.wake());
        assert!(turn.end(false));
        assert!(!turn.wake());
        assert!(turn.begin());
        assert!(turn.end(true));
        assert!(turn.begin());
        assert!(!turn.end(false));
    }

    #[test]
    fn timers_expire_in_order() {
        let schedule = Schedule::default();
        let at = Duration::from_millis;
        schedule.arm(PortId(1), at(5));
        schedule.arm(PortId(2), at(3));
        schedule.arm(PortId(1), at(2));
        schedule.arm(PortId(1), at(9));
        assert_eq!(schedule.next_due(at(0)), Some(at(2)));
        assert_eq!(schedule.take_due(at(1)), None);
        assert_eq!(schedule.take_due(at(4)), Some(PortId(1)));
        assert_eq!(schedule.take_due(at(4)), Some(PortId(2)));
        assert_eq!(schedule.next_due(at(9)), None);
        // A woken port must set its timer again, even for the same time: the thread that runs it may have read the clock earlier.
        schedule.arm(PortId(1), at(2));
        assert_eq!(schedule.take_due(at(4)), Some(PortId(1)));
    }
}
