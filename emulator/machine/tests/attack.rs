// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Machines, peers and control clients that do their worst to an emulator, which serves others meanwhile.
//!
//! Each attack runs for `EFA_SECONDS` (default: 1) beside two bystanders, which send each other messages and read registers. All
//! contents are right. If `EFA_SECONDS` is set, as `make attack` does on a host that has nothing else to do and without sanitizers, no
//! read takes longer than [`COMMAND`] besides what the host itself stalls, and the memory of the process stays below [`MEMORY`].

use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use efa_hw::{
    admin::{
        mr::{RegMr, RegMrFlags},
        pd::AllocPd,
        qp::QpType,
    },
    io::CompStatus,
    regs::Register,
};
use efa_machine::{Emulator, End, Machine, Send, pattern};

/// How long a command of a bystander may take.
const COMMAND: Duration = Duration::from_millis(50);

/// Memory of the process under attack: its own, and what the guide says that each device may take.
const MEMORY: u64 = 192 << 20;

/// Devices 0 and 1 are those of bystanders, the others the attackers'.
const DEVICES: usize = 6;

fn duration() -> Duration {
    let seconds = env::var("EFA_SECONDS").map_or(1, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Whether time and memory are held against their limits.
fn is_alone() -> bool {
    env::var_os("EFA_SECONDS").is_some()
}

/// What bystanders have seen.
struct Seen {
    pings: u32,
    longest_command: Duration,
}

/// How long it takes at most on this host, which may have other things to do, until a thread gets the CPU that works for as long as a
/// command does, and has another one answer.
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

/// Two machines go about their business until `stop`.
fn bystand(a: &mut End, b: &mut End, stop: &AtomicBool) -> Seen {
    let mut seen = Seen {
        pings: 0,
        longest_command: Duration::ZERO,
    };
    while !stop.load(Ordering::Relaxed) {
        let bytes = pattern(64, seen.pings.into());
        a.region.fill(&a.machine, &bytes);
        b.qp.receive(&mut b.machine, &b.region, 0, 64);
        assert_eq!(a.run(&Send::message(&b.qp, &a.region, 64)), CompStatus::Ok);
        assert_eq!(b.qp.wait(&b.machine), CompStatus::Ok);
        assert!(b.region.content(&b.machine, 0, 64) == bytes);
        seen.pings += 1;
        let start = Instant::now();
        let _ = a.machine.read(Register::DevSts);
        seen.longest_command = seen.longest_command.max(start.elapsed());
    }
    seen
}

/// One attack at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs an attack in some threads, beside bystanders.
fn under(emulator: &Emulator, attack: impl Fn(usize, &AtomicBool) + Sync, threads: usize) {
    let _alone = ALONE.lock();
    let [mut a, mut b] = [0, 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    End::introduce(&mut a, &mut b);
    let stop = AtomicBool::new(false);
    let (seen, stall) = thread::scope(|scope| {
        for index in 0..threads {
            let (attack, stop) = (&attack, &stop);
            scope.spawn(move || attack(index, stop));
        }
        let sleeper = scope.spawn(|| stall(&stop));
        let bystanders = scope.spawn(|| bystand(&mut a, &mut b, &stop));
        let start = Instant::now();
        let mut most = 0;
        while start.elapsed() < duration() && !bystanders.is_finished() {
            most = most.max(emulator.memory());
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(!is_alone() || most < MEMORY, "{} MiB", most >> 20);
        (bystanders.join().unwrap(), sleeper.join().unwrap())
    });
    let Seen {
        pings,
        longest_command,
    } = seen;
    println!("{pings} pings, longest command {longest_command:?}, host stalls {stall:?}");
    assert!(pings > 0);
    assert!(
        !is_alone() || longest_command < COMMAND + stall,
        "{longest_command:?}"
    );
}

/// An attacker's machine, which knows bystander 1.
fn attacker(emulator: &Emulator, index: usize, qp_type: QpType) -> End {
    let mut end = End::new(&emulator.device(2 + index), qp_type);
    let victim = address_like(&end, 1);
    end.qp.connect(&mut end.machine, victim);
    end
}

/// The address of the device with another index: they differ in their numbers.
fn address_like(end: &End, device: u8) -> [u8; 16] {
    let mut address = end.machine.address();
    address[15] = device;
    address
}

/// Posts as fast as the queue takes it.
fn flood(end: &mut End, sends: &[Send], stop: &AtomicBool) {
    let mut outstanding = 0;
    let mut next = sends.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        while outstanding < 200 {
            end.qp.put(&end.machine, next.next().unwrap());
            outstanding += 1;
        }
        end.qp.ring(&mut end.machine);
        while end.qp.poll(&end.machine).is_some() {
            outstanding -= 1;
        }
    }
}

#[test]
fn datagrams_without_end() {
    let emulator = Emulator::start(DEVICES, &[]);
    let attack = |index, stop: &AtomicBool| {
        let mut end = attacker(&emulator, index, QpType::Ud);
        let peer = end.qp.clone();
        let send = Send::message(&peer, &end.region, 8800);
        flood(&mut end, &[send], stop);
    };
    under(&emulator, attack, 2);
}

#[test]
fn datagrams_on_a_slow_network() {
    let emulator = Emulator::start(DEVICES, &["--fabric", "delay_us=500000"]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut end = attacker(&emulator, 0, QpType::Ud);
            let peer = end.qp.clone();
            let send = Send::message(&peer, &end.region, 8800);
            flood(&mut end, &[send], &stop);
        });
        let start = Instant::now();
        while start.elapsed() < duration() {
            assert!(
                !is_alone() || emulator.memory() < MEMORY,
                "{} MiB",
                emulator.memory() >> 20
            );
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn writes_and_reads_of_the_largest_size() {
    let emulator = Emulator::start(DEVICES, &[]);
    let attack = |index, stop: &AtomicBool| {
        let mut end = attacker(&emulator, index, QpType::Srd);
        let own = end.machine.address();
        end.qp.connect(&mut end.machine, own);
        let (peer, region) = (end.qp.clone(), end.region);
        let sends = [
            Send::write(&peer, &region, &region, 4 << 20),
            Send::read(&peer, &region, &region, 4 << 20),
        ];
        flood(&mut end, &sends, stop);
    };
    under(&emulator, attack, 2);
}

#[test]
fn messages_that_nobody_receives() {
    let emulator = Emulator::start(DEVICES, &[]);
    let attack = |index, stop: &AtomicBool| {
        let mut end = attacker(&emulator, index, QpType::Srd);
        // The bystander's queue pair has no receive work request to spare, or does not exist.
        let mut peer = end.qp.clone();
        let sends: Vec<_> = (1..5)
            .map(|number| {
                peer.number = number;
                Send::message(&peer, &end.region, 0)
            })
            .collect();
        let own = end.machine.address();
        end.qp.connect(&mut end.machine, own);
        flood(&mut end, &sends, stop);
    };
    under(&emulator, attack, 2);
}

#[test]
fn long_page_lists_that_end_badly() {
    const PAGES: u64 = 1 << 20;
    let emulator = Emulator::start(DEVICES, &[]);
    let attack = |index: usize, stop: &AtomicBool| {
        let mut machine = Machine::start(&emulator.device(2 + index), PAGES * 8 + (4 << 20));
        let pd = machine.execute(&AllocPd::default()).pd;
        let (length, address) = machine.page_list(PAGES);
        let mut command = RegMr {
            pd,
            mr_length: PAGES * 4096,
            flags: RegMrFlags {
                phys_page_size_shift: 12,
                mem_addr_phy_mode_en: false,
            },
            iova: 4096,
            ..RegMr::default()
        };
        command.set_page_list(efa_hw::admin::mr::PageList::Direct(
            efa_hw::admin::CtrlBuffInfo { length, address },
        ));
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..16 {
                machine.submit(&command);
            }
            machine.ring();
            for _ in 0..16 {
                assert_ne!(machine.completion().0, 0);
            }
        }
    };
    under(&emulator, attack, 2);
}

#[test]
fn doorbells_and_registers_at_random() {
    let emulator = Emulator::start(DEVICES, &[]);
    let attack = |index, stop: &AtomicBool| {
        let mut end = attacker(&emulator, index, QpType::Srd);
        let mut values = pattern(1 << 16, index as u64).into_iter().cycle();
        let mut value = || values.next().unwrap();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..64 {
                let offset = (u64::from(value()) << 8) | u64::from(value() & 0xfc);
                end.machine.doorbell(offset, value().into());
            }
            end.machine.write(Register::AqProdDb, value().into());
        }
    };
    under(&emulator, attack, 2);
}

#[test]
fn connections_that_say_nothing() {
    let emulator = Emulator::listening(DEVICES, 0);
    let attack = |_, stop: &AtomicBool| {
        let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            kept.extend(UnixStream::connect(emulator.control()).map(|s| Box::new(s) as _));
            kept.extend(UnixStream::connect(emulator.device(5)).map(|s| Box::new(s) as _));
            kept.extend(TcpStream::connect(emulator.address()).map(|s| Box::new(s) as _));
            if kept.len() > 600 {
                kept.clear();
            }
            thread::sleep(Duration::from_millis(1));
        }
    };
    under(&emulator, attack, 1);
    // Who has something to say is served as soon as they are gone.
    let mut end = End::new(&emulator.device(5), QpType::Srd);
    let own = end.machine.address();
    end.qp.connect(&mut end.machine, own);
    let peer = end.qp.clone();
    let write = Send::write(&peer, &end.region, &end.region, 8);
    assert_eq!(end.run(&write), CompStatus::Ok);
    emulator.ask(&serde_json::json!({"command": "devices"}));
}

#[test]
fn bytes_that_mean_nothing() {
    let emulator = Emulator::listening(DEVICES, 0);
    let attack = |index: usize, stop: &AtomicBool| {
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            let bytes = pattern(5000, round * 10 + index as u64);
            let mut answer = [0; 100];
            if let Ok(mut stream) = UnixStream::connect(emulator.control()) {
                let _ = stream.write_all(&bytes);
                let _ = stream.write_all(b"\n{\"command\":\"state\",\"device\":99999999999}\n");
                let _ = stream.read(&mut answer);
            }
            if let Ok(mut stream) = UnixStream::connect(emulator.device(5)) {
                let _ = stream.write_all(&bytes);
            }
            if let Ok(mut stream) = TcpStream::connect(emulator.address()) {
                let _ = stream.write_all(&bytes);
            }
        }
    };
    under(&emulator, attack, 2);
}
