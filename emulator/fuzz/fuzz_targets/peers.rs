// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Another emulator that sends arbitrary data: see `testing/src/attack/peers.rs`.

#![no_main]

use std::io;

use efa_emu::peers::{greet, receive};
use efa_fabric::Frame;
use efa_testing::attack::peers::{Protocol, play};
use libfuzzer_sys::fuzz_target;

struct Tcp;

impl Protocol for Tcp {
    fn greet(mut bytes: &[u8]) -> Option<(u64, Vec<[u8; 16]>)> {
        let greeted = greet(&mut bytes, &mut io::sink(), 1, Vec::new());
        greeted.ok().flatten()
    }

    fn receive(mut bytes: &[u8], accept: &mut dyn FnMut(Frame)) {
        let _ = receive(&mut bytes, accept);
    }
}

fuzz_target!(|data: &[u8]| play::<Tcp>(data));
