// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Experiments with the emulated devices and their transport under a simulated clock, so that results do not depend on the
//! machine. TCP runs on the same network, for comparison with SRD.
//!
//! `simulation [incast|persistent|racks|all-to-all [DEVICES]]` prints JSON; without arguments, the first three.

#![forbid(unsafe_code)]

mod devices;
mod experiments;
mod tcp;
mod traffic;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let results = match arguments[..] {
        [] => experiments::all(),
        ["incast"] => experiments::incast(),
        ["persistent"] => experiments::persistent(),
        ["racks"] => experiments::racks(),
        ["all-to-all"] => experiments::all_to_all(1024),
        ["all-to-all", devices] => match devices.parse() {
            Ok(devices) => experiments::all_to_all(devices),
            Err(_) => return usage(),
        },
        _ => return usage(),
    };
    println!("{results:#}");
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: simulation [incast|persistent|racks|all-to-all [DEVICES]]");
    ExitCode::from(2)
}
