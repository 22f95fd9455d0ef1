// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A program that writes arbitrary data to its queues and doorbells: see `testing/src/attack/programs.rs`.

#![no_main]

use efa_testing::attack::programs;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| programs::play(data));
