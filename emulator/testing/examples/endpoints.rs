// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Measures how an emulator scales with its endpoints, and how much one endpoint slows down others.
//!
//! Prints JSON:
//!
//! - bytes a second that 1 and 4 pairs of endpoints move by RDMA writes of 1 MiB, with the same amount of memory overall;
//! - the median latency of a message of 64 bytes between two endpoints, in microseconds: alone, and while a third endpoint
//!   writes to itself as fast as it can.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_testing::{
    machine::{Emulator, End},
    qp::Send,
};
use serde_json::json;

/// Receive work requests that are posted in advance.
const RECEIVES: usize = 64;

/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(3);

/// Bytes of a write.
const LENGTH: u32 = 1 << 20;

/// Buffers that all pairs together use in turn: four of a single pair, or one of each of four. So the same amount of memory is in
/// the processor's caches.
const PLACES: usize = 4;

/// Limit on writes in flight for each endpoint. Half of them are posted at a time, with one doorbell.
const UNDER_WAY: usize = 32;

fn pair(emulator: &Emulator, first: usize) -> [End; 2] {
    let mut ends = [first, first + 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    let [a, b] = &mut ends;
    End::introduce(a, b);
    ends
}

/// Executes these writes in turn until `stop`; returns how many have completed.
fn write(from: &mut End, sends: &[Send], stop: &AtomicBool) -> u64 {
    let (mut under_way, mut done) = (0, 0);
    let mut sends = sends.iter().cycle();
    loop {
        if stop.load(Ordering::Relaxed) && under_way == 0 {
            return done;
        }
        if !stop.load(Ordering::Relaxed) && under_way <= UNDER_WAY / 2 {
            while under_way < UNDER_WAY {
                let send = sends.next().expect("a cycle of at least one");
                from.put(send);
                under_way += 1;
            }
            from.ring();
        }
        match from.poll() {
            Some(completion) => {
                assert_eq!(completion.status, u8::from(CompStatus::Ok));
                under_way -= 1;
                done += 1;
            }
            None => thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// Returns the throughput of `pairs` pairs, in bytes a second.
fn rate(pairs: usize) -> f64 {
    let emulator = Emulator::start(2 * pairs, &[]);
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(pairs + 1);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..pairs)
            .map(|index| {
                let (emulator, stop, ready) = (&emulator, &stop, &ready);
                scope.spawn(move || {
                    let [mut a, b] = pair(emulator, 2 * index);
                    let whole = Send::write(&b.qp, &a.region, &b.region, LENGTH);
                    let sends: Vec<_> = (0..PLACES / pairs)
                        .map(|place| whole.moved(place as u64 * u64::from(LENGTH)))
                        .collect();
                    ready.wait();
                    write(&mut a, &sends, stop)
                })
            })
            .collect();
        ready.wait();
        let start = Instant::now();
        thread::sleep(TIME);
        stop.store(true, Ordering::Relaxed);
        let writes: u64 = writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer"))
            .sum();
        // CAST: precise enough.
        writes as f64 * f64::from(LENGTH) / start.elapsed().as_secs_f64()
    })
}

/// Returns the median latency of a message between two endpoints in microseconds, under the load of a third one or without.
fn latency(attack: bool) -> f64 {
    let emulator = Emulator::start(3, &[]);
    let [mut a, mut b] = pair(&emulator, 0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        if attack {
            scope.spawn(|| {
                let mut end = End::new(&emulator.device(2), QpType::Srd);
                let own = end.address;
                end.connect(own);
                let send = Send::write(&end.qp, &end.region, &end.region, 4 << 20);
                write(&mut end, &[send], &stop);
            });
            thread::sleep(Duration::from_millis(500));
        }
        // No message waits for its receive work request.
        for _ in 0..RECEIVES {
            b.receive(0, 64);
        }
        let start = Instant::now();
        let mut times = Vec::new();
        while start.elapsed() < TIME {
            let begin = Instant::now();
            assert_eq!(a.run(&Send::message(&b.qp, &a.region, 64)), CompStatus::Ok);
            times.push(begin.elapsed());
            assert_eq!(b.wait(), CompStatus::Ok);
            b.receive(0, 64);
        }
        stop.store(true, Ordering::Relaxed);
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    })
}

fn main() {
    let [one, four] = [1, 4].map(rate);
    let [alone, attacked] = [false, true].map(latency);
    let figures = json!({
        "one_pair": one,
        "four_pairs": four,
        "alone_us": alone,
        "attacked_us": attacked,
    });
    println!("{figures}");
}
