// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Measures the data path of an emulator in this process, whose clients have memory and queue pairs, but no CPU.
//!
//! Prints JSON:
//!
//! - `memcpy`: copies of 1 MiB a second between the memory of two clients, by one thread and by two;
//! - for each operation and length the messages a second of one pair of clients and of four, and the allocations for each;
//! - `alone_us` and `attacked_us`: the median latency of a message of 64 bytes between two endpoints, in microseconds: alone, and
//!   while a third endpoint writes to itself as fast as it can.
//!
//! All pairs together use the same amount of memory, so that it is in the processor's caches for one pair if it is for four. Each
//! rate is the best of several rounds, as a scheduler that lets a thread wait beside a client that polls keeps it there for a round.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint,
    path::PathBuf,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use efa_fabric::Settings;
use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::{Config, Profile};
use efa_testing::{
    machine::End,
    qp::{self, Qp, Send},
};
use efa_vfio::{Allowed, Function, Limits, Runtime, Server, listen};
use serde_json::{Map, Value, json};

/// Number of rounds of each measurement, with new clients, and the duration of a round.
const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_millis(500);

/// Bytes of a copy, and of the largest write.
const LARGE: u32 = 1 << 20;

/// Bytes of memory that all pairs together use in turn.
const PLACES: u32 = 4 << 20;

/// Limit on messages in flight for each pair. Half of them are posted at a time, with one doorbell.
const IN_FLIGHT: usize = 64;

/// Polls between two calls that give the core to other threads.
const SPINS: u32 = 16;

/// Receive work requests that are posted before anything is sent. Another thread of the emulator accepts further ones, and if it is late,
/// a message that has none waits for a timer.
const RECEIVES: usize = 6 * IN_FLIGHT;

/// Allocations of all threads but the clients'.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_CLIENT: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, with a count.
struct Counted;

impl Counted {
    fn count() {
        if !IS_CLIENT.try_with(Cell::get).unwrap_or(true) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: All memory is the system allocator's.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: The caller fulfils the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `alloc` or `realloc` has returned this memory.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: `alloc` or `realloc` has returned this memory.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// A pair of clients, of which the first one sends.
struct Pair {
    from: End,
    to: End,
}

impl Pair {
    fn new(sockets: &[PathBuf], first: usize) -> Self {
        IS_CLIENT.set(true);
        let [from, to] = End::pair([first, first + 1].map(|device| sockets[device].clone()), QpType::Srd);
        let mut pair = Self { from, to };
        pair.receive(RECEIVES);
        // The device executes a command after it has read the doorbell.
        pair.to.machine.address();
        pair
    }

    /// Posts so many receive work requests.
    fn receive(&mut self, count: usize) {
        let End { machine, qp, region, .. } = &mut self.to;
        for _ in 0..count {
            qp.put_receives(&machine.world, &[(region.iova, u16::MAX, region.lkey)]);
        }
        qp.ring_receive(machine);
    }

    /// Sends these messages in turn until `stop`; returns how many have completed. Sends need receive work requests.
    fn exchange(&mut self, sends: &[Send], takes_receives: bool, stop: &AtomicBool) -> u64 {
        let (mut in_flight, mut done) = (0, 0);
        let mut sends = sends.iter().cycle();
        for idle in 0_u32.. {
            let stops = stop.load(Ordering::Relaxed);
            if stops && in_flight == 0 {
                break;
            }
            if !stops && in_flight <= IN_FLIGHT / 2 {
                let new = IN_FLIGHT - in_flight;
                if takes_receives {
                    self.receive(new);
                }
                for send in sends.by_ref().take(new) {
                    self.from.put(send);
                }
                self.from.ring();
                in_flight += new;
            }
            while let Some(completion) = self.from.poll() {
                assert_eq!(qp::status(&completion), CompStatus::Ok);
                in_flight -= 1;
                done += 1;
            }
            while let Some(completion) = self.to.poll() {
                assert_eq!(qp::status(&completion), CompStatus::Ok);
            }
            // The emulator's threads need a core, of which a processor may be one of two threads.
            hint::spin_loop();
            if idle % SPINS == 0 {
                thread::yield_now();
            }
        }
        done
    }
}

/// Starts an emulator with so many devices; returns their sockets.
fn start(folder: &tempfile::TempDir, devices: u32) -> Vec<PathBuf> {
    let runtime = Arc::new(Runtime::new(Settings::default(), 1, Instant::now()));
    let serve = |number| {
        let config = Config::new(Profile::Efa3, number);
        let function = Function::new(&runtime, config, None, Box::new(|_, _: &_| {}));
        let path = folder.path().join(format!("efa{number}"));
        let (listener, _) = listen(&path).expect("a socket");
        let function = Arc::new(function.expect("a function"));
        let server = Server::new(listener, function, Limits::default(), Allowed::Memory);
        thread::spawn(move || server.run());
        path
    };
    let sockets = (0..devices).map(serve).collect();
    for _ in 0..2 {
        let runtime = Arc::clone(&runtime);
        thread::spawn(move || runtime.work());
    }
    sockets
}

/// Calls `work` in so many threads for a while, with a pair each; returns the sum of the results, and the time in seconds.
fn at_once(sockets: &[PathBuf], pairs: usize, work: impl Fn(&mut Pair, &AtomicBool) -> u64 + Sync) -> (u64, f64) {
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(pairs + 1));
    thread::scope(|scope| {
        let (work, stop, ready) = (&work, &stop, &ready);
        let threads: Vec<_> = (0..pairs)
            .map(|index| {
                scope.spawn(move || {
                    let mut pair = Pair::new(sockets, 2 * index);
                    ready.wait();
                    let done = work(&mut pair, stop);
                    // The end of a client allocates.
                    ready.wait();
                    done
                })
            })
            .collect();
        ready.wait();
        let begin = Instant::now();
        thread::sleep(TIME);
        stop.store(true, Ordering::Relaxed);
        ready.wait();
        let time = begin.elapsed().as_secs_f64();
        let results = threads.into_iter().map(|thread| thread.join());
        (results.map(|done| done.expect("a client")).sum(), time)
    })
}

/// Measures several times; returns the highest rate, and the second value of that round.
fn best(measure: impl Fn() -> (f64, f64)) -> (f64, f64) {
    let rounds = [(); ROUNDS].map(|()| measure());
    rounds.into_iter().fold((0.0, 0.0), |best, round| if round.0 > best.0 { round } else { best })
}

/// Returns the copies of 1 MiB a second by so many threads.
fn memcpy(sockets: &[PathBuf], threads: usize) -> f64 {
    let (done, time) = at_once(sockets, threads, |pair, stop| {
        let (from, to) = (&pair.from, &pair.to);
        let places = (0..PLACES / LARGE / threads as u32).cycle();
        let copies = places.take_while(|_| !stop.load(Ordering::Relaxed));
        copies.fold(0, |done, place| {
            let offset = u64::from(place * LARGE);
            let [source, target] = [from, to].map(|end| end.region.iova + offset);
            let memory = &from.machine.world;
            memory.copy(source, &to.machine.world, target, LARGE as usize);
            done + 1
        })
    });
    done as f64 / time
}

/// Returns the messages a second of so many pairs, and the allocations for each message.
fn messages(sockets: &[PathBuf], pairs: usize, length: u32, operation: fn(&Qp, &End, &End, u32) -> Send) -> (f64, f64) {
    let before = AtomicU64::new(0);
    let (done, time) = at_once(sockets, pairs, |pair, stop| {
        let whole = operation(&pair.to.qp, &pair.from, &pair.to, length);
        let takes_receives = whole.remote.is_none();
        let places = PLACES / LARGE.max(length) / pairs as u32;
        let sends: Vec<_> = (0..places).map(|place| whole.moved(u64::from(place * LARGE))).collect();
        before.store(ALLOCATIONS.load(Ordering::Relaxed), Ordering::Relaxed);
        pair.exchange(&sends, takes_receives, stop)
    });
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before.into_inner();
    (done as f64 / time, allocations as f64 / done as f64)
}

/// Returns the median latency of a message between two endpoints in microseconds, under the load of a third one or without.
fn latency(sockets: &[PathBuf], is_attacked: bool) -> f64 {
    let mut pair = Pair::new(sockets, 0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        if is_attacked {
            scope.spawn(|| {
                let mut pair = Pair::new(sockets, 2);
                let own = pair.from.address;
                pair.from.connect(own);
                let end = &pair.from;
                let send = Send::write(&end.qp, &end.region, &end.region, PLACES);
                pair.exchange(&[send], false, &stop);
            });
            thread::sleep(TIME / 4);
        }
        let (begin, mut times) = (Instant::now(), Vec::new());
        while begin.elapsed() < TIME {
            let begin = Instant::now();
            let send = Send::message(&pair.to.qp, &pair.from.region, 64);
            pair.from.post(&send);
            for end in [&mut pair.from, &mut pair.to] {
                let completion = loop {
                    match end.poll() {
                        Some(completion) => break completion,
                        None => hint::spin_loop(),
                    }
                };
                assert_eq!(qp::status(&completion), CompStatus::Ok);
            }
            times.push(begin.elapsed());
            pair.receive(1);
        }
        stop.store(true, Ordering::Relaxed);
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    })
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let sockets = start(&folder, 8);
    let mut figures = Map::new();
    let write: fn(&Qp, &End, &End, u32) -> Send =
        |qp, from, to, length| Send::write(qp, &from.region, &to.region, length);
    let send: fn(&Qp, &End, &End, u32) -> Send = |qp, from, _, length| Send::message(qp, &from.region, length);
    figures.insert("memcpy".into(), json!([1, 2].map(|threads| best(|| (memcpy(&sockets, threads), 0.0)).0)));
    for (name, length, operation) in [
        ("write_64", 64, write),
        ("write_4096", 4096, write),
        ("write_1048576", LARGE, write),
        ("send_64", 64, send),
        ("send_4096", 4096, send),
    ] {
        let [one, four] = [1, 4].map(|pairs| best(|| messages(&sockets, pairs, length, operation)));
        let row = json!({"one": one.0, "four": four.0, "allocations": one.1});
        figures.insert(name.into(), row);
    }
    for (name, is_attacked) in [("alone_us", false), ("attacked_us", true)] {
        figures.insert(name.into(), json!(latency(&sockets, is_attacked)));
    }
    println!("{}", Value::Object(figures));
}
