// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Machines, peers and control clients that attack an emulator, which serves others meanwhile.
//!
//! Each attack runs for half of `EFA_SECONDS` (default: 1) beside two bystanders, which send each other messages, execute commands
//! and read registers. All data must be correct. In the other half, a control has as many threads that run or wait for a
//! processor as attackers and emulator had, and does not touch the emulator. If `EFA_SECONDS` is set, as by tests/test_emulator.py, there are limits:
//! bystanders have at least [`RATE`] of the messages that they have beside the control, their longest command takes at most
//! [`COMMANDS`] times as long, and the memory of the process stays below its [`Bound`].
//!
//! Attacks are ignored except by tests/test_emulator.py (`--include-ignored`), as their subject is time.

mod control;
mod devices;
mod peers;
mod strangers;

use std::{
    collections::BTreeMap,
    env, fs, hint,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use efa_hw::{admin::qp::QpType, features::NetworkAttr, io::CompStatus, regs::Register};
use efa_testing::{
    machine::{BOUNDS, Bound, Emulator, End, Thread, runnable_of},
    qp::Send,
    region::pattern,
};
use rustix::{
    thread::set_current_timer_slack,
    time::{ClockId, clock_gettime},
};

/// Least part of the messages beside the control that bystanders have beside an attack.
const RATE: f64 = 0.8;

/// Most of the duration of the longest command, likewise.
const COMMANDS: f64 = 3.0;

/// Attempts to stay within both, as the host may stall one.
const ATTEMPTS: usize = 3;

/// Writes that bystanders have in flight in a round, and the bytes of each.
const AT_ONCE: u32 = 200;
const LENGTH: u32 = 8192;

/// Time for which a thread of the control runs at once.
const CHUNK: Duration = Duration::from_micros(100);

/// Bytes of a copy of the control.
const PIECE: usize = 64 << 10;

/// Part of the time below which a thread has no share in an attack.
const LEAST: f64 = 0.02;

/// The names of a bystander's thread, and of the emulator's threads that serve only bystanders.
const BYSTANDER: &str = "bystander";
const OF_BYSTANDERS: [&str; 3] = [BYSTANDER, "device 0", "device 1"];

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
    rounds: u32,
    longest_command: Duration,
}

/// Returns the time for which the calling thread has run.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // CAST: it is positive.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Copies memory, as emulator and attackers do, or waits for a processor, for a part of the time until `stop`.
fn burn(part: f64, stop: &AtomicBool) {
    set_current_timer_slack(NonZero::new(1)).unwrap();
    let mut memory = vec![1; 8 << 20];
    let (from, to) = memory.split_at_mut(4 << 20);
    let mut pieces = (0..from.len()).step_by(PIECE).cycle();
    while !stop.load(Ordering::Relaxed) {
        let (start, before) = (Instant::now(), own_cpu());
        while own_cpu() < before + CHUNK {
            let piece = pieces.next().unwrap();
            let to = hint::black_box(&mut to[piece..][..PIECE]);
            to.copy_from_slice(&from[piece..][..PIECE]);
        }
        thread::sleep(start.elapsed().mul_f64(1.0 / part - 1.0));
    }
}

/// Exchanges messages and executes commands, between two machines, until `stop`.
fn run_bystanders(a: &mut End, b: &mut End, stop: &AtomicBool) -> Seen {
    let mut seen = Seen {
        rounds: 0,
        longest_command: Duration::ZERO,
    };
    while !stop.load(Ordering::Relaxed) {
        let bytes = pattern(AT_ONCE as usize * LENGTH as usize, seen.rounds.into());
        a.fill(&bytes);
        b.receive(0, 64);
        a.put(&Send::message(&b.qp, &a.region, 64));
        let write = Send::write(&b.qp, &a.region, &b.region, LENGTH);
        for number in 0..AT_ONCE {
            a.put(&write.moved(u64::from(number * LENGTH)));
        }
        a.ring();
        assert_eq!(b.wait(), CompStatus::Ok);
        assert!((0..=AT_ONCE).all(|_| a.wait() == CompStatus::Ok));
        assert!(b.content(0, bytes.len()) == bytes);
        seen.rounds += 1;
        let start = Instant::now();
        let network: NetworkAttr = a.machine.feature().unwrap();
        seen.longest_command = seen.longest_command.max(start.elapsed());
        assert_eq!(network.addr, a.address);
        let start = Instant::now();
        let _ = a.machine.read(Register::DevSts);
        seen.longest_command = seen.longest_command.max(start.elapsed());
    }
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

/// Runs `work` in some threads, beside bystanders, for half of the time. Returns what these have seen, the peak memory of the
/// emulator in bytes, and for each other thread the part of the time in which it ran or waited for a processor.
fn beside(
    emulator: &Emulator,
    (a, b): (&mut End, &mut End),
    work: &(impl Fn(usize, &AtomicBool) + Sync),
    threads: usize,
) -> (Seen, u64, Vec<f64>) {
    let stop = AtomicBool::new(false);
    let runnable = || emulator.runnable().into_iter().chain(runnable_of("self"));
    let (start, before) = (Instant::now(), BTreeMap::from_iter(runnable()));
    thread::scope(|scope| {
        for index in 0..threads {
            let stop = &stop;
            scope.spawn(move || work(index, stop));
        }
        let named = thread::Builder::new().name(BYSTANDER.into());
        let bystander = named
            .spawn_scoped(scope, || run_bystanders(a, b, &stop))
            .unwrap();
        let most = most_memory(emulator, || {
            start.elapsed() < duration() / 2 && !bystander.is_finished()
        });
        let others = runnable().filter(|(thread, _)| !OF_BYSTANDERS.contains(&&*thread.name));
        let part = |(thread, time): (Thread, Duration)| {
            let before = before.get(&thread).copied().unwrap_or_default();
            (time - before).div_duration_f64(start.elapsed())
        };
        let parts = others.map(part).filter(|part| *part > LEAST).collect();
        stop.store(true, Ordering::Relaxed);
        let seen = bystander.join().unwrap();
        assert!(seen.rounds > 0);
        (seen, most, parts)
    })
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
        let (seen, most, parts) = beside(emulator, (&mut a, &mut b), &attack, threads);
        check_memory(most, bound);
        let control = |index: usize, stop: &AtomicBool| burn(parts[index], stop);
        let (normal, ..) = beside(emulator, (&mut a, &mut b), &control, parts.len());
        let rate = f64::from(seen.rounds) / f64::from(normal.rounds);
        let longest = seen.longest_command.div_duration_f64(normal.longest_command);
        println!(
            "{rate:.2} of {} rounds; longest command {:?}, {longest:.1} times as long; threads are runnable for {parts:.2?}",
            normal.rounds, seen.longest_command
        );
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
