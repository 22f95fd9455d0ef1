// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of the control socket that sends arbitrary data: see `testing/src/attack/control.rs`.

#![no_main]

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Instant,
};

use efa_emu::Emulator;
use efa_fabric::Settings;
use efa_model::{Config, Profile};
use efa_testing::attack::control::play;
use efa_vfio::Runtime;
use libfuzzer_sys::fuzz_target;

/// Limit on the threads that drop emulators. Each device has a context of asynchronous I/O, which `fs.aio-max-nr` limits.
const MAX_DROPS: usize = 64;

/// Threads that drop emulators, the oldest first. The kernel takes tens of milliseconds to end a context, without use of the CPU.
static DROPS: Mutex<VecDeque<JoinHandle<()>>> = Mutex::new(VecDeque::new());

fn emulator() -> io::Result<Emulator> {
    let runtime = Runtime::new(Settings::default(), 1, Instant::now());
    let mut emulator = Emulator::new(Arc::new(runtime));
    for (number, profile) in (0..).zip([Profile::Efa0, Profile::Efa4]) {
        let config = Config::new(profile, number);
        emulator.add("socket".into(), config, None)?;
    }
    Ok(emulator)
}

fuzz_target!(|data: &[u8]| {
    let emulator = emulator().expect("cannot create a device");
    play(data, |request| emulator.reply(request));
    let mut drops = DROPS.lock().expect("one thread runs inputs");
    drops.push_back(thread::spawn(|| drop(emulator)));
    if drops.len() > MAX_DROPS {
        let oldest = drops.pop_front().map(JoinHandle::join);
        assert!(oldest.is_some_and(|result| result.is_ok()));
    }
});
