// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of the control socket that sends arbitrary data: see `testing/src/attack/control.rs`.

#![no_main]

use std::{sync::Arc, time::Instant};

use efa_emu::Emulator;
use efa_fabric::Settings;
use efa_model::{Config, Profile};
use efa_testing::attack::control::play;
use efa_vfio::Runtime;
use libfuzzer_sys::fuzz_target;

fn emulator() -> Option<Emulator> {
    let runtime = Runtime::new(Settings::default(), 1, Instant::now());
    let mut emulator = Emulator::new(Arc::new(runtime));
    for (number, profile) in (0..).zip([Profile::Efa0, Profile::Efa4]) {
        let config = Config::new(profile, number);
        emulator.add("socket".into(), config, None).ok()?;
    }
    Some(emulator)
}

fuzz_target!(|data: &[u8]| {
    if let Some(emulator) = emulator() {
        play(data, |request| emulator.reply(request));
    }
});
