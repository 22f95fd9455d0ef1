// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Emulators that are killed and started again: the other one keeps working, and reaches the new one.

use std::env;

use efa_testing::prelude::*;

/// Number of kills, unless `EFA_ROUNDS` is set.
const ROUNDS: u64 = 6;

/// The first emulator: two machines that exchange data, and one that exchanges data with the second emulator's.
struct First {
    emulator: Emulator,
    far: End,
    near: [End; 2],
}

impl First {
    fn new(emulator: Emulator) -> Self {
        Self {
            far: End::new(&emulator.device(0), QpType::Srd),
            near: End::pair([1, 2].map(|at| emulator.device(at)), QpType::Srd),
            emulator,
        }
    }
}

/// Posts writes and reads that are in flight when an emulator is killed.
fn load(from: &mut End, to: &End) {
    for _ in 0..8 {
        let write = Send::write(&to.qp, &from.region, &to.region, 1 << 20);
        let read = Send::read(&to.qp, &from.region, &to.region, 1 << 20);
        from.put(&write);
        from.put(&read);
    }
    from.ring();
}

/// Waits until each of them ends: with success, or as the peer does not respond or can't be reached.
fn ends(end: &mut End) {
    for _ in 0..16 {
        let status = end.wait();
        let expected = [CompStatus::Ok, CompStatus::LocalUnrespRemote, CompStatus::LocalUnreachRemote];
        assert!(expected.contains(&status), "{status:?}");
    }
}

#[test]
fn emulators_that_are_killed_at_random() {
    let rounds = env::var("EFA_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let address = free_address();
    let mut first = First::new(Emulator::listening(3, 1, address, &[]));
    let mut second = Emulator::joining(1, 11, &first.emulator, &[]);
    let mut there = End::new(&second.device(0), QpType::Srd);
    for (round, random) in (0..rounds).zip(pattern(rounds as usize, 1)) {
        first.emulator.wait_for_peers(1);
        second.wait_for_peers(3);
        End::introduce(&mut first.far, &mut there);
        let bytes = pattern(100_000, round);
        first.far.write_to(&there, &bytes);
        there.write_to(&first.far, &bytes);
        load(&mut first.far, &there);
        load(&mut there, &first.far);
        if random % 2 == 0 {
            drop(second);
            let [a, b] = &mut first.near;
            a.write_to(b, &bytes);
            second = Emulator::joining(1, 11, &first.emulator, &[]);
            there = End::new(&second.device(0), QpType::Srd);
            ends(&mut first.far);
        } else {
            drop(first.emulator);
            first = First::new(Emulator::listening(3, 1, address, &[]));
            ends(&mut there);
        }
    }
}
