// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attackers that have devices.

use super::*;

/// Returns an attacker's machine, with an address handle of bystander 1.
fn attacker(emulator: &Emulator, index: usize, qp_type: QpType) -> End {
    let mut end = End::new(&emulator.device(2 + index), qp_type);
    end.connect(address_like(end.address, 1));
    end
}

/// Posts work requests as fast as the queue accepts them.
pub(super) fn flood(end: &mut End, sends: &[Send], stop: &AtomicBool) {
    let mut outstanding = 0;
    let mut next = sends.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        while outstanding < 200 {
            end.put(next.next().unwrap());
            outstanding += 1;
        }
        end.ring();
        while end.poll().is_some() {
            outstanding -= 1;
        }
    }
}

/// Runs an attack by two machines, each of which has a device.
fn two_attack(attack: impl Fn(&Emulator, usize, &AtomicBool) + Sync) {
    run(Bound::of_devices(2), 2, attack);
}

/// Runs an attack by two machines that post work requests as fast as possible.
fn two_flood(qp_type: QpType, sends: fn(&mut End) -> Vec<Send>) {
    two_attack(|emulator, index, stop| {
        let mut end = attacker(emulator, index, qp_type);
        let sends = sends(&mut end);
        flood(&mut end, &sends, stop);
    });
}

#[test]
#[ignore = "an attack"]
fn endless_datagrams() {
    two_flood(QpType::Ud, |end| vec![Send::message(&end.qp, &end.region, 8800)]);
}

#[test]
#[ignore = "an attack"]
fn datagrams_on_a_slow_network() {
    let emulator = Emulator::start(DEVICES, &["--fabric", "ideal,delay_us=10000000"]);
    let stop = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        for (index, length) in [8800, 0, 1].into_iter().enumerate() {
            let (emulator, stop) = (&emulator, &stop);
            scope.spawn(move || {
                let mut end = attacker(emulator, index, QpType::Ud);
                let send = Send::message(&end.qp, &end.region, length);
                flood(&mut end, &[send], stop);
            });
        }
        let start = Instant::now();
        let most = most_memory(&emulator, || start.elapsed() < duration());
        stop.store(true, Ordering::Relaxed);
        most
    });
    check_memory(most, &Bound::of_devices(3));
}

#[test]
#[ignore = "an attack"]
fn writes_and_reads_of_the_largest_size() {
    two_flood(QpType::Srd, |end| {
        end.connect(end.address);
        vec![
            Send::write(&end.qp, &end.region, &end.region, 4 << 20),
            Send::read(&end.qp, &end.region, &end.region, 4 << 20),
        ]
    });
}

#[test]
#[ignore = "an attack"]
fn messages_without_a_receive() {
    two_flood(QpType::Srd, |end| {
        end.connect(end.address);
        // The destination queue pair has no receive work request, or does not exist.
        let to = |peer_qp| Send { peer_qp, ..Send::message(&end.qp, &end.region, 0) };
        (1..=4).map(to).collect()
    });
}

/// Reads that are not answered before the reset of their queue pair.
#[test]
#[ignore = "an attack"]
fn queue_pairs_that_are_reset() {
    two_attack(|emulator, index, stop| {
        let mut end = attacker(emulator, index, QpType::Srd);
        end.connect(end.address);
        let attackers = [2, 3].map(|device| Ipv6Addr::from(address_like(end.address, device)));
        let denied = attackers.map(|own| json!({"from": own, "to": own}));
        emulator.ask(&json!({"command": "fabric", "set": {"deny": denied}}));
        let read = Send::read(&end.qp, &end.region, &end.region, 64);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..256 {
                end.put(&read);
            }
            end.ring();
            end.qp.modify(&mut end.machine, QpState::Reset).unwrap();
            end.qp.start(&mut end.machine);
        }
    });
}

/// Pages of the largest region.
const PAGES: u64 = 1 << 20;

/// Returns an attacker's machine with a list of [`PAGES`] pages, and the command that registers them.
fn with_list(emulator: &Emulator, index: usize, last: u64) -> (Machine, RegMr) {
    let mut machine = Machine::start(&emulator.device(2 + index), PAGES * 8 + (4 << 20));
    let command = registration(&mut machine, PAGES, last);
    (machine, command)
}

/// Returns the command that registers `pages` pages at arbitrary addresses, the last of which is `last`.
fn registration(machine: &mut Machine, pages: u64, last: u64) -> RegMr {
    let pd = machine.execute(&AllocPd::default()).unwrap().pd;
    // No two pages are contiguous.
    let others = (1..pages).map(|page| BASE + 2 * page * PAGE);
    let list: Vec<u64> = others.chain([last]).collect();
    let list = page_list(&mut machine.world, &list);
    let mut command = reg_mr(pd, 4096, pages * PAGE);
    command.set_page_list(PageList::Direct(list));
    command
}

/// Submits a command `times` times with one doorbell.
fn submit(machine: &mut Machine, command: &RegMr, times: usize) {
    for _ in 0..times {
        let entry = machine.entry(&command.to_request());
        machine.put(&entry);
    }
    machine.ring();
}

/// Waits for `times` completions, which must have an error.
fn refused(machine: &mut Machine, times: usize) {
    for _ in 0..times {
        let (_, status, _) = machine.wait_for_completion();
        assert_ne!(status, 0);
    }
}

#[test]
#[ignore = "an attack"]
fn long_page_lists_with_an_invalid_end() {
    two_attack(|emulator, index, stop| {
        let (mut machine, command) = with_list(emulator, index, 1);
        while !stop.load(Ordering::Relaxed) {
            submit(&mut machine, &command, 16);
            refused(&mut machine, 16);
        }
    });
}

/// No two pages are contiguous, so that each takes memory of the process.
#[test]
#[ignore = "an attack"]
fn maximum_number_of_pages() {
    let bound = Bound { all_pages: 2, ..Bound::of_devices(2) };
    run(bound, 2, |emulator, index, stop| {
        let (mut machine, command) = with_list(emulator, index, 1 << 12);
        let mut registered = 0;
        while !stop.load(Ordering::Relaxed) {
            match machine.execute(&command) {
                Ok(_) => registered += 1,
                Err(status) => {
                    assert_eq!(status, Status::ResourceAllocationFailure);
                    assert_eq!(registered, 16);
                }
            }
        }
    });
}

/// More devices than the program has threads that move packets. Each executes long commands, while another one writes to it.
#[test]
#[ignore = "an attack"]
fn long_commands_of_many_devices_that_others_write_to() {
    const PAGES: u64 = 1 << 17;
    const LENGTH: u32 = 64 << 10;
    const COMMANDS: usize = 8;
    let threads = 2 * thread::available_parallelism().map_or(1, NonZero::get);
    let emulator = Emulator::start(2 + 2 * threads, &[]);
    let attack = |index: usize, stop: &AtomicBool| {
        let sockets = [2, 3].map(|first| emulator.device(first + 2 * index));
        let [mut busy, mut accomplice] = End::pair(sockets, QpType::Srd);
        let command = registration(&mut busy.machine, PAGES, 1);
        let write = Send::write(&busy.qp, &accomplice.region, &busy.region, LENGTH);
        let mut outstanding = 0;
        while !stop.load(Ordering::Relaxed) {
            submit(&mut busy.machine, &command, COMMANDS);
            while outstanding < 64 {
                accomplice.post(&write);
                outstanding += 1;
            }
            refused(&mut busy.machine, COMMANDS);
            while accomplice.poll().is_some() {
                outstanding -= 1;
            }
        }
    };
    // CAST: a small number.
    let bound = Bound::of_devices(2 * threads as u64);
    under(&emulator, &bound, attack, threads);
}

#[test]
#[ignore = "an attack"]
fn doorbells_and_registers_at_random() {
    two_attack(|emulator, index, stop| {
        let mut end = attacker(emulator, index, QpType::Srd);
        let mut values = pattern(1 << 16, index as u64).into_iter().cycle();
        let mut value = || values.next().unwrap();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..64 {
                let offset = (u64::from(value()) << 8) | u64::from(value() & 0xfc);
                end.machine.doorbell(offset, value().into());
            }
            end.machine.write(Register::AqProdDb, value().into());
        }
    });
}
