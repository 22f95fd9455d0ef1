// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Schedule of ports: those with work now, and the times of later work.
//!
//! Only one thread at a time runs a port. A thread that creates work for a port wakes it. If the port was asleep, the waking
//! thread must run it, or queue it for another thread.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::packet::PortId;

/// Woken ports that the current thread runs next.
pub(crate) type Woken = VecDeque<PortId>;

/// Scheduling state of a port, in the lowest bits, and above them the number of its current or last run.
///
/// A run may be taken away from a thread that is stuck in it. It ends then, and the thread must not run the port any further. Or
/// the thread is late: it keeps the port, but has a substitute.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU64);

const STATE: u64 = 7;
const ASLEEP: u64 = 0;
/// The port is in a list, to be run.
const QUEUED: u64 = 1;
const RUNNING: u64 = 2;
/// The port is running, and has to run again.
const WOKEN: u64 = 3;
/// Added while the port is running: its thread is late.
const LATE: u64 = 4;

/// The number of a run of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run(u64);

impl Turn {
    /// Wakes the port; returns whether the caller must run or queue it.
    pub(crate) fn wake(&self) -> bool {
        let woken = self.change(|turn| match turn & WOKEN {
            ASLEEP => Some(turn | QUEUED),
            RUNNING => Some(turn | WOKEN),
            _ => None,
        });
        woken.is_some_and(|turn| turn & STATE == ASLEEP)
    }

    /// Marks a queued port as running. Returns `None` if another thread has already done this.
    pub(crate) fn begin(&self) -> Option<Run> {
        let next = |turn: u64| (turn & !STATE).wrapping_add(STATE + 1);
        let queued = self.change(|turn| (turn & STATE == QUEUED).then(|| next(turn) | RUNNING))?;
        Some(Run(next(queued)))
    }

    /// Returns the run that is in progress.
    pub(crate) fn run(&self) -> Option<Run> {
        let turn = self.0.load(Ordering::Acquire);
        (turn & RUNNING != 0).then_some(Run(turn & !STATE))
    }

    /// Ends a run of the port; `more` is whether it has more work. Returns whether the caller must queue it, and whether the
    /// thread was late or the run was taken away.
    pub(crate) fn end(&self, run: Run, more: bool) -> (bool, bool) {
        let asleep = |turn: u64| !more && turn & WOKEN == RUNNING;
        let next = |turn| if asleep(turn) { ASLEEP } else { QUEUED };
        match self.change(|turn| is(turn, run).then(|| run.0 | next(turn))) {
            Some(turn) => (!asleep(turn), turn & LATE != 0),
            None => (false, true),
        }
    }

    /// Takes a run away from its thread. Returns whether the caller must queue the port.
    pub(crate) fn take(&self, run: Run) -> bool {
        self.change(|turn| (is(turn, run) && turn & LATE == 0).then_some(run.0 | QUEUED)).is_some()
    }

    /// Marks the thread of a run as late. Returns false if it is late already, or if the run has ended.
    pub(crate) fn mark_late(&self, run: Run) -> bool {
        self.change(|turn| (is(turn, run) && turn & LATE == 0).then_some(turn | LATE)).is_some()
    }

    /// Changes the state; returns the former one, unless it stays.
    fn change(&self, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let changed = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        changed.ok()
    }
}

/// Whether a run is in progress.
fn is(turn: u64, run: Run) -> bool {
    turn & RUNNING != 0 && turn & !STATE == run.0
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
        for (woken, more) in [(false, false), (true, false), (false, true), (true, true)] {
            assert!(!turn.wake());
            let run = turn.begin().unwrap();
            // Another thread has the port in its list, too.
            assert_eq!(turn.begin(), None);
            assert!(!woken || !turn.wake());
            let again = woken || more;
            assert_eq!(turn.end(run, more), (again, false));
            assert_eq!(turn.wake(), !again);
        }
    }

    #[test]
    fn a_run_is_taken_from_a_thread_that_is_stuck() {
        let turn = Turn::default();
        assert!(turn.wake());
        let stuck = turn.begin().unwrap();
        assert_eq!(turn.run(), Some(stuck));
        assert!(turn.take(stuck));
        assert_eq!((turn.run(), turn.take(stuck)), (None, false));
        let next = turn.begin().unwrap();
        assert_eq!(turn.end(stuck, true), (false, true));
        assert_eq!(turn.run(), Some(next));
        // A thread that is late keeps the port.
        assert!(turn.mark_late(next));
        assert!(!turn.mark_late(next) && !turn.take(next) && !turn.wake());
        assert_eq!(turn.run(), Some(next));
        assert_eq!(turn.end(next, false), (true, true));
        assert_eq!((turn.run(), turn.mark_late(next)), (None, false));
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
