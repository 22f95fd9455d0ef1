// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver that writes arbitrary data to the registers, the doorbells and the admin queue, also while deliveries and work
//! requests are in flight.

#![no_main]

use efa_testing::attack::control_path;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| control_path::play(data));
