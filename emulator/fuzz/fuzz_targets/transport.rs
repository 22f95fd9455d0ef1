// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver that writes arbitrary data while deliveries and work requests are in flight.

#![no_main]

use efa_testing::attack::transport;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| transport::play(data));
