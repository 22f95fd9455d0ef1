// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A program that writes anything to its queues and doorbells: see `fabric/tests/attack`.

#![no_main]

#[path = "../../fabric/tests/attack/mod.rs"]
mod attack;
#[path = "../../model/tests/input/mod.rs"]
mod input;
#[path = "../../fabric/tests/net/mod.rs"]
mod net;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| attack::play(data));
