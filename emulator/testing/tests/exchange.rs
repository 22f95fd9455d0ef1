// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The [cases](efa_testing::cases) over vfio-user sockets, with one or two emulators. The fabric's tests run them in process.

use std::path::PathBuf;

use efa_testing::prelude::*;

fn exchange(sockets: [PathBuf; 2]) {
    cases::all(&mut End::pair(sockets, QpType::Srd));
}

#[test]
fn two_machines_of_one_emulator() {
    let emulator = Emulator::start(2, &[]);
    exchange([0, 1].map(|at| emulator.device(at)));
}

#[test]
fn a_network_that_loses_and_reorders() {
    let emulator = Emulator::start(2, &["--fabric", "loss=0.05,jitter_us=200"]);
    exchange([0, 1].map(|at| emulator.device(at)));
}

#[test]
fn machines_of_two_emulators() {
    let emulators = Emulator::pair(&[]);
    exchange(emulators.each_ref().map(|emulator| emulator.device(0)));
}
