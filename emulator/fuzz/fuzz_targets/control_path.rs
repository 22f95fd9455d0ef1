// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver that writes anything to the registers, the doorbells and the admin queue: see `model/tests/attack`.

#![no_main]

#[path = "../../model/tests/attack/mod.rs"]
mod attack;
#[path = "../../model/tests/input/mod.rs"]
mod input;
#[path = "../../model/tests/mock/mod.rs"]
mod mock;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| attack::play(data));
