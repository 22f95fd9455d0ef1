// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A monitor that shares descriptors of any kind: see `vfio/src/hostile.rs`.

#![no_main]

use efa_vfio::hostile::play;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| play(data));
