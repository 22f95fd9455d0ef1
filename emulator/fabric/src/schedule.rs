// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Whose turn it is: ports that have something to do now, and those that will have later.
//!
//! A port is worked on by one thread at a time. Whoever gives it something to do wakes it; if it was asleep, the waker sees to it
//! that somebody runs it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::packet::PortId;

/// Ports that have been woken and that the thread at hand runs next.
pub(crate) type Woken = VecDeque<PortId>;

/// What a port is up to.
#[derive(Debug, Default)]
pub(crate) struct Turn(AtomicU8);

const ASLEEP: u8 = 0;
/// It waits in some list.
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
/// It is to run again.
const WOKEN: u8 = 3;

impl Turn {
    /// Wakes the port; returns whether it is up to the caller to have it run.
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

    /// The port runs, if it was queued, in whichever list, and no other thread has begun.
    pub(crate) fn begin(&self) -> bool {
        let begun = self
            .0
            .compare_exchange(QUEUED, RUNNING, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    /// The port has run, and has more to do or not; returns whether it is to be queued.
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

/// Ports that any thread may run, and when others will have something to do.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    ready: Mutex<VecDeque<PortId>>,
    timers: Mutex<Timers>,
}

/// When ports are to be woken, each once.
#[derive(Debug, Default)]
struct Timers {
    by_time: BTreeSet<(Duration, PortId)>,
    by_port: HashMap<PortId, Duration>,
}

impl Schedule {
    /// Leaves ports to whoever has time for them.
    pub(crate) fn leave(&self, ports: &mut Woken) {
        if !ports.is_empty() {
            self.ready.lock().append(ports);
        }
    }

    pub(crate) fn take_ready(&self) -> Option<PortId> {
        self.ready.lock().pop_front()
    }

    /// Has a port woken at `due`, unless it is woken before that. One that is woken too early finds nothing to do, and asks again:
    /// that is cheaper than to change the time at each packet.
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

    /// Takes a port whose time has come.
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

    /// When somebody will have something to do, which may be now.
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
        // Another thread has it in its list, too.
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
    fn timers_go_off_in_their_order() {
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
        // One that was woken has to ask again, also for the same time: who runs it may have looked at the clock before.
        schedule.arm(PortId(1), at(2));
        assert_eq!(schedule.take_due(at(4)), Some(PortId(1)));
    }
}
