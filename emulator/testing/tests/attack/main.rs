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
    env, hint,
    io::{self, Read, Write},
    net::{Ipv6Addr, TcpStream},
    num::NonZero,
    os::unix::net::UnixStream,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use efa_testing::prelude::*;
use rustix::{
    thread::set_current_timer_slack,
    time::{ClockId, clock_gettime},
};
use serde_json::{Value, json};

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

/// The guide, which has the limits on the memory of the process.
const GUIDE: &str = include_str!("../../../../Documentation/emulator.md");

/// Numbers of the users of a process's memory.
#[derive(Clone, Copy, Default)]
struct Bound {
    devices: u64,
    /// Devices of them with the maximum of registered pages.
    all_pages: u64,
    /// Emulators that have joined.
    peers: u64,
    /// Clients of the control socket.
    clients: u64,
}

impl Bound {
    /// Returns the bound of `devices` devices with few registered pages.
    fn of_devices(devices: u64) -> Self {
        Self { devices, ..Self::default() }
    }

    /// Returns the limit on the process's memory, in bytes.
    fn bytes(&self) -> u64 {
        let limit = |(user, count): (&str, u64)| {
            let row = GUIDE.split(&format!("\n| {user} | ")).nth(1);
            let mib = row.and_then(|row| row.split_once(" MiB |")).expect(user).0;
            count * mib.parse::<u64>().expect(user)
        };
        let users = [
            ("the program itself", 1),
            ("each device", self.devices),
            ("all pages of the memory regions of a device", self.all_pages),
            ("each emulator that joins", self.peers),
            ("each client of the control socket", self.clients),
        ];
        users.map(limit).iter().sum::<u64>() << 20
    }
}

#[test]
fn the_guide_has_the_bounds() {
    assert_eq!(Bound::of_devices(2).bytes(), 896 << 20);
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
    let mut seen = Seen { rounds: 0, longest_command: Duration::ZERO };
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
    let tasks = [emulator.proc("task"), "/proc/self/task".into()];
    let all = || tasks.iter().flat_map(|task| runnable(task));
    let (start, before) = (Instant::now(), BTreeMap::from_iter(all()));
    thread::scope(|scope| {
        for index in 0..threads {
            let stop = &stop;
            scope.spawn(move || work(index, stop));
        }
        let named = thread::Builder::new().name(BYSTANDER.into());
        let bystander = named.spawn_scoped(scope, || run_bystanders(a, b, &stop)).unwrap();
        let most = most_memory(emulator, || start.elapsed() < duration() / 2 && !bystander.is_finished());
        let others = all().filter(|(thread, _)| !OF_BYSTANDERS.contains(&&*thread.name));
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
fn under(emulator: &Emulator, bound: &Bound, attack: impl Fn(usize, &AtomicBool) + Sync, threads: usize) {
    let _alone = ALONE.lock();
    let [mut a, mut b] = End::pair([0, 1].map(|at| emulator.device(at)), QpType::Srd);
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
    assert!(is_harmless, "an attack delays bystanders more than other work does");
}

/// Starts an emulator that others may join.
fn listening() -> Emulator {
    Emulator::listening(DEVICES, 0, free_address(), &[])
}

/// Starts an emulator that others may join, and runs an attack on it in some threads; returns it.
fn run(bound: Bound, threads: usize, attack: impl Fn(&Emulator, usize, &AtomicBool) + Sync) -> Emulator {
    let emulator = listening();
    let attack = |index, stop: &AtomicBool| attack(&emulator, index, stop);
    under(&emulator, &bound, attack, threads);
    emulator
}

/// Checks that a machine writes to itself, so its device works.
fn check(end: &mut End) {
    end.connect(end.address);
    let write = Send::write(&end.qp, &end.region, &end.region, 8);
    assert_eq!(end.run(&write), CompStatus::Ok);
}

/// Derives the address of the device with an index from that of another one: they differ in their numbers.
fn address_like(other: [u8; 16], device: u8) -> [u8; 16] {
    let mut address = other;
    address[15] = device;
    address
}
