// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of the control socket that sends arbitrary data: see `testing/src/attack/control.rs`.

#![no_main]

use std::{
    io,
    sync::{
        Arc, LazyLock, Mutex,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Instant,
};

use efa_emu::Emulator;
use efa_fabric::Settings;
use efa_model::{Config, Profile};
use efa_testing::attack::control::play;
use efa_vfio::Runtime;
use libfuzzer_sys::fuzz_target;

/// Number of threads that drop emulators.
const DROPPERS: usize = 64;

/// Where emulators are dropped, at most [`DROPPERS`] at once. With each device the kernel ends a context of asynchronous I/O,
/// which takes tens of milliseconds without a use of the CPU.
static ENDED: LazyLock<SyncSender<Emulator>> = LazyLock::new(|| {
    let (sender, receiver) = sync_channel::<Emulator>(0);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..DROPPERS {
        let receiver = Arc::clone(&receiver);
        let next = move || receiver.lock().ok()?.recv().ok();
        thread::spawn(move || while next().map(drop).is_some() {});
    }
    sender
});

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
    ENDED.send(emulator).expect("emulators are dropped");
});
