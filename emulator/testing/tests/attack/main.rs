// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Machines, peers and control clients that attack an emulator, which serves others meanwhile.
//!
//! Each attack runs for `EFA_SECONDS` (default: 1) beside two bystanders, which send each other messages, execute commands and
//! read registers. All data must be correct. If `EFA_SECONDS` is set, as by tests/test_emulator.py, there are two
//! limits. No command or read takes longer than [`COMMAND`], and the memory of the process stays below its [`Bound`]. Stalls of
//! the host are measured, and may make the first one inconclusive.
//!
//! Attacks are ignored except by tests/test_emulator.py (`--include-ignored`), as their subject is time.

mod control;
mod devices;
mod peers;
mod strangers;

use std::{
    env, fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use efa_hw::{admin::qp::QpType, features::NetworkAttr, io::CompStatus, regs::Register};
use efa_testing::{
    machine::{BOUNDS, Bound, Emulator, End},
    qp::Send,
    region::pattern,
};

/// Limit on the duration of a bystander's command.
const COMMAND: Duration = Duration::from_millis(50);

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
struct Seen {
    pings: u32,
    longest_command: Duration,
}

/// Returns the longest round trip between two threads of this host, which may be busy. It shows how long the host may delay a
/// command.
fn stall(stop: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    let (mut near, mut far) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
        });
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            near.write_all(&[0]).unwrap();
            near.read_exact(&mut [0]).unwrap();
            longest = longest.max(start.elapsed());
            thread::sleep(Duration::from_micros(100));
        }
        drop(near);
    });
    longest
}

/// Exchanges messages and executes commands, between two machines, until `stop`.
fn run_bystanders(a: &mut End, b: &mut End, stop: &AtomicBool) -> Seen {
    let mut seen = Seen {
        pings: 0,
        longest_command: Duration::ZERO,
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

/// Runs an attack in some threads, beside bystanders.
fn under(
    emulator: &Emulator,
    bound: &Bound,
    attack: impl Fn(usize, &AtomicBool) + Sync,
    threads: usize,
) {
    let _alone = ALONE.lock();
    let [mut a, mut b] = [0, 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    End::introduce(&mut a, &mut b);
    let stop = AtomicBool::new(false);
    let (most, seen, stall) = thread::scope(|scope| {
        for index in 0..threads {
            let (attack, stop) = (&attack, &stop);
            scope.spawn(move || attack(index, stop));
        }
        let sleeper = scope.spawn(|| stall(&stop));
        let bystanders = scope.spawn(|| run_bystanders(&mut a, &mut b, &stop));
        let start = Instant::now();
        let most = most_memory(emulator, || {
            start.elapsed() < duration() && !bystanders.is_finished()
        });
        stop.store(true, Ordering::Relaxed);
        (most, bystanders.join().unwrap(), sleeper.join().unwrap())
    });
    check_memory(most, bound);
    let Seen {
        pings,
        longest_command,
    } = seen;
    println!("{pings} pings, longest command {longest_command:?}, host stalls {stall:?}");
    assert!(pings > 0);
    if is_alone() && longest_command >= COMMAND {
        // A command involves several threads, each of which may be stalled.
        let is_stalled = stall >= COMMAND || longest_command < COMMAND + 2 * stall;
        assert!(is_stalled, "{longest_command:?}");
        println!("inconclusive: the host stalls too long");
    }
}

/// Derives the address of the device with an index from that of another one: they differ in their numbers.
fn address_like(other: [u8; 16], device: u8) -> [u8; 16] {
    let mut address = other;
    address[15] = device;
    address
}
