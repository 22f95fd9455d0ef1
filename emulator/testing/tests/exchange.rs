// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The [cases](efa_testing::cases) over vfio-user sockets, with one or two emulators. The fabric's tests run them in process.

use efa_hw::admin::qp::QpType;
use efa_testing::{
    cases,
    machine::{Emulator, End},
};

/// Runs all cases between two devices of one or two emulators.
fn exchange([a, b]: [(&Emulator, usize); 2]) {
    let mut ends = [a, b].map(|(emulator, device)| End::new(&emulator.device(device), QpType::Srd));
    let [a, b] = &mut ends;
    End::introduce(a, b);
    cases::all(&mut ends);
}

#[test]
fn two_machines_of_one_emulator() {
    let emulator = Emulator::start(2, &[]);
    exchange([(&emulator, 0), (&emulator, 1)]);
}

#[test]
fn a_network_that_loses_and_reorders() {
    let emulator = Emulator::start(2, &["--fabric", "loss=0.05,jitter_us=200"]);
    exchange([(&emulator, 0), (&emulator, 1)]);
}

#[test]
fn machines_of_two_emulators() {
    let [a, b] = Emulator::pair(&[]);
    exchange([(&a, 0), (&b, 0)]);
}
