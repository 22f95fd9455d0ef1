// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Threads that move packets do not wait for a command that occupies a device, and serve the device after it. Devices do not wait
//! for the memory of another guest.

use efa_testing::wait::{patience, wait_for, wait_until};
use std::{
    marker,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, Scope},
};

use super::*;

/// Bytes of a message, and of a write or read.
const SHORT: u32 = 4000;
const LONG: u32 = 100_000;

/// Occupies a device while `meanwhile` runs.
fn occupy<R>(net: &mut Net, port: PortId, meanwhile: impl FnOnce(&mut Net) -> R) -> R {
    let (fabric, now) = (Arc::clone(&net.fabric), net.now);
    thread::scope(|scope| {
        let (begins, begun) = mpsc::channel();
        let (_ends, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            fabric.with(port, now, 0, |_, _| {
                begins.send(()).unwrap();
                // Blocks until the sender is dropped.
                let _ = ended.recv();
            });
        });
        begun.recv().unwrap();
        meanwhile(net)
    })
}

/// Does something with a network that must not block.
fn at_once(net: &Net, work: impl FnOnce(&Fabric<World>, Duration) + marker::Send + 'static) {
    let (fabric, now) = (Arc::clone(&net.fabric), net.now);
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || {
        work(&fabric, now);
        ends.send(())
    });
    assert!(ended.recv_timeout(patience()).is_ok(), "a thread is blocked");
}

/// Moves all packets that can be moved.
fn run(net: &Net) {
    at_once(net, |fabric, now| _ = fabric.run(now, UNLIMITED_BUDGET));
}

/// Two queue pairs with address handles of each other, and a region of each.
struct Pair {
    qps: [Qp; 2],
    regions: [Region; 2],
    /// Whether the first queue pair has its completion.
    has_succeeded: bool,
}

/// Operation of the first device on the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Message,
    Write,
    Read,
    Datagram,
}

const ALL: [Operation; 4] = [Operation::Message, Operation::Write, Operation::Read, Operation::Datagram];

impl Pair {
    fn new(net: &mut Net, ports: [usize; 2], what: Operation) -> Self {
        let qp_type = match what {
            Operation::Datagram => QpType::Ud,
            _ => QpType::Srd,
        };
        let qps = net.pair(ports, [Shape::new(qp_type, 128); 2]);
        let regions = [0, 1].map(|index: usize| net.region(&qps[index], 30, 0));
        net.fill(&regions[0], 0, &pattern(LONG as usize, 1));
        net.fill(&regions[1], 0, &pattern(LONG as usize, 2));
        Self { qps, regions, has_succeeded: false }
    }

    fn post(&mut self, net: &mut Net, what: Operation) {
        let [a, b] = &mut self.qps;
        let [from, to] = &self.regions;
        let send = match what {
            Operation::Message | Operation::Datagram => {
                net.receive(b, &[(to.iova, 5000, to.lkey)]);
                Send::message(b, from, SHORT)
            }
            Operation::Write => Send::write(b, from, to, LONG),
            Operation::Read => Send::read(b, from, to, LONG),
        };
        net.post(a, &send);
    }

    /// Returns whether the operation has ended; checks its result.
    fn has_ended(&mut self, net: &mut Net, what: Operation) -> bool {
        if !self.has_succeeded {
            let Some(completion) = net.poll(&mut self.qps[0]) else {
                return false;
            };
            assert_eq!(completion.status, u8::from(CompStatus::Ok), "{what:?}");
            self.has_succeeded = true;
        }
        let [from, to] = &self.regions;
        let (target, offset, length, source) = match what {
            Operation::Write => (to, 0, LONG, 1),
            Operation::Read => (from, 0, LONG, 2),
            Operation::Message | Operation::Datagram => {
                let Some(received) = net.poll(&mut self.qps[1]) else {
                    return false;
                };
                (to, u32::from(received.length) - SHORT, SHORT, 1)
            }
        };
        let found = net.content(target, offset.into(), length as usize);
        let expected = &pattern(LONG as usize, source)[..length as usize];
        assert!(found == expected, "{what:?}");
        self.has_succeeded = false;
        true
    }
}

/// Two pairs of devices, and the device that a command occupies. Whether packets are under way by then.
type Case = (&'static str, [usize; 2], [usize; 2], usize, bool);

const CASES: [Case; 4] = [
    ("a sender and others", [0, 1], [2, 3], 0, false),
    ("a receiver and others", [0, 1], [2, 3], 1, false),
    ("a receiver and another one", [0, 1], [0, 2], 1, false),
    ("a sender and another one", [0, 2], [1, 2], 0, true),
];

#[test]
fn others_are_not_blocked_by_an_occupied_device() {
    for (what, (case, one, other, occupied, under_way)) in ALL.iter().flat_map(|what| CASES.map(|case| (*what, case))) {
        let mut net = Net::new(&[Profile::Efa3; 4], Settings::default());
        let mut pairs = [one, other].map(|ports| Pair::new(&mut net, ports, what));
        if under_way {
            net.fabric.set(delay(100.0));
        }
        for pair in &mut pairs {
            pair.post(&mut net, what);
            if under_way {
                net.run();
            }
        }
        net.fabric.set(Settings::default());
        net.now += Duration::from_micros(100);
        let [one, other] = &mut pairs;
        occupy(&mut net, PortId(occupied), |net| {
            run(net);
            assert!(other.has_ended(net, what), "{what:?}: {case}");
        });
        // Moves the packets that were deferred.
        run(&net);
        let ended = match under_way {
            true => wait_for_end(&mut net, one, what),
            false => one.has_ended(&mut net, what),
        };
        assert!(ended, "{what:?}: {case}");
    }
}

/// Advances time until the operation has ended, for at most 20 ms; returns whether it has.
fn wait_for_end(net: &mut Net, pair: &mut Pair, what: Operation) -> bool {
    (0..100).any(|_| {
        net.run_for(Duration::from_micros(200));
        pair.has_ended(net, what)
    })
}

#[test]
fn a_device_may_be_occupied_at_any_time() {
    let slow = delay(100.0);
    for what in ALL {
        for occupied in 0..2 {
            for step in 0..8 {
                let mut net = Net::new(&[Profile::Efa3; 2], slow.clone());
                let mut pair = Pair::new(&mut net, [0, 1], what);
                pair.post(&mut net, what);
                net.run_for(Duration::from_micros(50 * step));
                occupy(&mut net, PortId(occupied), |net| {
                    net.now += Duration::from_micros(100);
                    run(net);
                });
                let ended = wait_for_end(&mut net, &mut pair, what);
                assert!(ended, "{what:?} {occupied} {step}");
            }
        }
    }
}

#[test]
fn deferred_work_is_done() {
    const ROUNDS: usize = 4;
    let mut net = Net::new(&[Profile::Efa3; 2], Settings::default());
    let mut pairs = ALL.map(|what| (what, Pair::new(&mut net, [0, 1], what)));
    let stop = AtomicBool::new(false);
    let (fabric, now) = (Arc::clone(&net.fabric), net.now);
    thread::scope(|scope| {
        let (fabric, stop) = (&fabric, &stop);
        for port in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    fabric.with(PortId(port), now, 0, |_, _| thread::yield_now());
                    // Packets move while both devices are free, which would be too rare on a busy host otherwise.
                    thread::yield_now();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    fabric.run(now, 128);
                    thread::yield_now();
                }
            });
        }
        // Stops the other threads even if an assertion fails.
        let stopped = Stopped(stop);
        for _ in 0..ROUNDS {
            for (what, pair) in &mut pairs {
                pair.post(&mut net, *what);
            }
            // Time does not advance, so nothing is retransmitted.
            for (what, pair) in &mut pairs {
                wait_for("end", || match pair.has_ended(&mut net, *what) {
                    true => Ok(()),
                    false => Err(*what),
                });
            }
        }
        drop(stopped);
    });
}

/// Stops the threads when it is dropped.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Moves packets until `stop`, in threads that have a substitute for each that is stuck. Each call of `run` takes a microsecond, and
/// their number is counted.
fn keep_running<'a>(
    scope: &'a Scope<'a, '_>,
    fabric: &'a Fabric<World>,
    start: Duration,
    calls: &'a AtomicU64,
    stop: &'a AtomicBool,
) {
    let work = move || {
        while !stop.load(Ordering::Relaxed) && !fabric.has_returned() {
            let time = Duration::from_micros(calls.fetch_add(1, Ordering::Relaxed));
            fabric.run(start + time, 128);
            thread::yield_now();
        }
    };
    scope.spawn(move || {
        let (mut seen, mut missing) = (Runs::default(), 1);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..missing {
                scope.spawn(work);
            }
            thread::sleep(Duration::from_millis(1));
            missing = fabric.relieve(&mut seen);
        }
    });
}

/// A guest can make accesses to its memory take as long as it likes.
#[test]
fn devices_do_not_wait_for_the_memory_of_another_guest() {
    let settings = network(r#"{"delay_us":10.0,"silence_s":3600.0}"#);
    for (what, slow) in ALL.iter().flat_map(|what| [(*what, 0), (*what, 1)]) {
        let mut net = Net::new(&[Profile::Efa3; 3], settings.clone());
        let victim = 1 - slow;
        let mut one = Pair::new(&mut net, [0, 1], what);
        let mut other = Pair::new(&mut net, [2, victim], what);
        one.post(&mut net, what);
        other.post(&mut net, what);
        let memory = net.fabric.with_guest(PortId(slow), |world| Arc::clone(&world.stuck));
        let fabric = Arc::clone(&net.fabric);
        let (calls, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let stuck = memory.write().unwrap();
            let stopped = Stopped(&stop);
            keep_running(scope, &fabric, net.now, &calls, &stop);
            wait_until("end beside slow memory", || other.has_ended(&mut net, what));
            // A command that revokes memory waits for copies.
            at_once(&net, move |fabric, now| fabric.with(PortId(victim), now, 0, |_, host| host.quiesce()));
            drop(stuck);
            wait_until("end", || one.has_ended(&mut net, what));
            drop(stopped);
        });
    }
}
