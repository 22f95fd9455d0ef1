// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Machines, peers and control clients that attack an emulator, which serves others meanwhile.
//!
//! Each attack runs for a third of `EFA_SECONDS` (default: 1) beside two bystanders, which send each other messages, execute commands
//! and read registers. All data must be correct. In another third, a control takes as much of the processors as attackers and
//! emulator have, and does not touch the emulator. If `EFA_SECONDS` is set, as by tests/test_emulator.py, there are limits:
//! bystanders have at least [`RATE`] of the messages that they have beside the control, their longest command takes at most
//! [`COMMANDS`] times as long, and the memory of the process stays below its [`Bound`].
//!
//! Attacks are ignored except by tests/test_emulator.py (`--include-ignored`), as their subject is time.

mod control;
mod devices;
mod peers;
mod strangers;

use std::{
    env, fs, hint,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use efa_hw::{admin::qp::QpType, features::NetworkAttr, io::CompStatus, regs::Register};
use efa_testing::{
    machine::{BOUNDS, Bound, Emulator, End, cpu_of},
    qp::Send,
    region::pattern,
};
use rustix::time::{ClockId, clock_gettime};

/// Least part of the messages beside the control that bystanders have beside an attack.
const RATE: f64 = 0.8;

/// Most of the duration of the longest command, likewise.
const COMMANDS: f64 = 3.0;

/// Attempts to stay within both, as the host may stall one.
const ATTEMPTS: usize = 3;

/// Threads of the emulator, at most, that do the work of attackers beside their own.
const WORKERS: usize = 2;

/// Devices 0 and 1 are those of bystanders, the others the attackers'.
const DEVICES: usize = 6;

fn duration() -> Duration {
    let seconds = env::var("EFA_SECONDS").map_or(1, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Whether the limits on time and memory are enforced.
fn is_alone() -> bool {
    env::var_os("EFA_SECONDS").is_some()
}

#[test]
fn the_guide_has_the_bounds() {
    let guide = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../Documentation/emulator.md"
    );
    let guide = fs::read_to_string(guide).unwrap();
    for (what, mib) in BOUNDS {
        let line = format!("\n| {what} | {mib} MiB |");
        assert!(guide.contains(&line), "{line}");
    }
}

/// Results of the bystanders.
#[derive(Debug)]
struct Seen {
    pings: u32,
    longest_command: Duration,
    /// Time of a processor that they have used.
    cpu: Duration,
}

/// Returns the time of a processor that the calling thread has used.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // CAST: it is positive.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Takes a part of a processor until `stop`.
fn burn(part: f64, stop: &AtomicBool) {
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match own_cpu() < start.elapsed().mul_f64(part) {
            true => (0..1000).for_each(|_| hint::spin_loop()),
            false => thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// Exchanges messages and executes commands, between two machines, until `stop`.
fn run_bystanders(a: &mut End, b: &mut End, stop: &AtomicBool) -> Seen {
    let mut seen = Seen {
        pings: 0,
        longest_command: Duration::ZERO,
        cpu: own_cpu(),
    };
    while !stop.load(Ordering::Relaxed) {
        let bytes = pattern(64, seen.pings.into());
        a.fill(&bytes);
        b.receive(0, 64);
        assert_eq!(a.run(&Send::message(&b.qp, &a.region, 64)), CompStatus::Ok);
        assert_eq!(b.wait(), CompStatus::Ok);
        assert!(b.content(0, 64) == bytes);
        seen.pings += 1;
        let start = Instant::now();
        let network: NetworkAttr = a.machine.feature().unwrap();
        seen.longest_command = seen.longest_command.max(start.elapsed());
        assert_eq!(network.addr, a.address);
        let start = Instant::now();
        let _ = a.machine.read(Register::DevSts);
        seen.longest_command = seen.longest_command.max(start.elapsed());
    }
    seen.cpu = own_cpu() - seen.cpu;
    seen
}

/// Serializes the attacks.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the peak memory of the emulator in bytes, while `is_running` returns true.
fn most_memory(emulator: &Emulator, is_running: impl Fn() -> bool) -> u64 {
    let mut most = 0;
    while is_running() {
        most = most.max(emulator.memory());
        thread::sleep(Duration::from_millis(20));
    }
    most
}

/// Checks memory against its bound.
fn check_memory(most: u64, bound: &Bound) {
    let allowed = bound.bytes();
    println!("at most {} MiB of {}", most >> 20, allowed >> 20);
    assert!(!is_alone() || most < allowed, "{} MiB", most >> 20);
}

/// Runs `work` in some threads, beside bystanders, for a third of the time. Returns what these have seen, the peak memory of the
/// emulator in bytes, and the time of processors that emulator and work have used.
fn beside(
    emulator: &Emulator,
    (a, b): (&mut End, &mut End),
    work: &(impl Fn(usize, &AtomicBool) + Sync),
    threads: usize,
) -> (Seen, u64, Duration) {
    let stop = AtomicBool::new(false);
    let cpu = || emulator.cpu() + cpu_of("self");
    let before = cpu();
    let (most, seen) = thread::scope(|scope| {
        for index in 0..threads {
            let stop = &stop;
            scope.spawn(move || work(index, stop));
        }
        let bystanders = scope.spawn(|| run_bystanders(a, b, &stop));
        let start = Instant::now();
        let most = most_memory(emulator, || {
            start.elapsed() < duration() / 3 && !bystanders.is_finished()
        });
        stop.store(true, Ordering::Relaxed);
        (most, bystanders.join().unwrap())
    });
    assert!(seen.pings > 0);
    let used = (cpu() - before).saturating_sub(seen.cpu);
    (seen, most, used)
}

/// Runs an attack in some threads, and a control, beside bystanders.
fn under(
    emulator: &Emulator,
    bound: &Bound,
    attack: impl Fn(usize, &AtomicBool) + Sync,
    threads: usize,
) {
    let _alone = ALONE.lock();
    let [mut a, mut b] = [0, 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    End::introduce(&mut a, &mut b);
    let is_harmless = (0..ATTEMPTS).any(|_| {
        let (quiet, _, own) = beside(emulator, (&mut a, &mut b), &|_, _: &_| {}, 0);
        let (seen, most, used) = beside(emulator, (&mut a, &mut b), &attack, threads);
        check_memory(most, bound);
        let threads = threads + WORKERS;
        let own = own.mul_f64(f64::from(seen.pings) / f64::from(quiet.pings));
        let part = used.saturating_sub(own).div_duration_f64(duration() / 3);
        let control = |_: usize, stop: &AtomicBool| burn(part / threads as f64, stop);
        let (normal, ..) = beside(emulator, (&mut a, &mut b), &control, threads);
        let rate = f64::from(seen.pings) / f64::from(normal.pings);
        let longest = seen
            .longest_command
            .div_duration_f64(normal.longest_command);
        println!("{rate:.2} of {} pings; longest command {:?}, {longest:.1} times as long; {part:.2} processors",
            normal.pings, seen.longest_command);
        !is_alone() || rate >= RATE && longest <= COMMANDS
    });
    assert!(
        is_harmless,
        "an attack delays bystanders more than other work does"
    );
}

/// Derives the address of the device with an index from that of another one: they differ in their numbers.
fn address_like(other: [u8; 16], device: u8) -> [u8; 16] {
    let mut address = other;
    address[15] = device;
    address
}
