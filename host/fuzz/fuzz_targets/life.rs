// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fuzz target: bytes determine the actions of programs, clients, bus and device in one life.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driver::life::fuzz(data));
