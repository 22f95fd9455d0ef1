// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Bytes say what programs, clients, the bus and the device do in one life.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driver::life::fuzz(data));
