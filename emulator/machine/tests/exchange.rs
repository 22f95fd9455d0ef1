// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Machines that exchange data, in one emulator and between two.

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_machine::{Emulator, End, Send, pattern};

/// Messages, writes and reads of all sizes, contents compared.
fn exchange(a: &mut End, b: &mut End) {
    for (round, length) in [1, 64, 4096, 8928].into_iter().enumerate() {
        let bytes = pattern(length as usize, round as u64);
        a.region.fill(&a.machine, &bytes);
        b.qp.receive(&mut b.machine, &b.region, 0, 8928);
        let send = Send::message(&b.qp, &a.region, length);
        assert_eq!(a.run(&send), CompStatus::Ok);
        assert_eq!(b.qp.wait(&b.machine), CompStatus::Ok);
        assert!(b.region.content(&b.machine, 0, bytes.len()) == bytes);
    }
    for (round, length) in [1, 4097, 100_000, 3_000_000].into_iter().enumerate() {
        let bytes = pattern(length as usize, 100 + round as u64);
        a.region.fill(&a.machine, &bytes);
        let write = Send::write(&b.qp, &a.region, &b.region, length);
        assert_eq!(a.run(&write), CompStatus::Ok);
        assert!(b.region.content(&b.machine, 0, bytes.len()) == bytes);
        a.region.fill(&a.machine, &vec![0; bytes.len()]);
        let read = Send::read(&b.qp, &a.region, &b.region, length);
        assert_eq!(a.run(&read), CompStatus::Ok);
        assert!(a.region.content(&a.machine, 0, bytes.len()) == bytes);
    }
}

#[test]
fn two_machines_of_one_emulator() {
    let emulator = Emulator::start(2, &[]);
    let [mut a, mut b] = [0, 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    End::introduce(&mut a, &mut b);
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
}

#[test]
fn a_network_that_loses_and_reorders() {
    let emulator = Emulator::start(2, &["--fabric", "loss=0.05,jitter_us=200"]);
    let [mut a, mut b] = [0, 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    End::introduce(&mut a, &mut b);
    exchange(&mut a, &mut b);
}

#[test]
fn machines_of_two_emulators() {
    let emulators = Emulator::pair(&[]);
    let [mut a, mut b] = emulators
        .each_ref()
        .map(|emulator| End::new(&emulator.device(0), QpType::Srd));
    End::introduce(&mut a, &mut b);
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
}
