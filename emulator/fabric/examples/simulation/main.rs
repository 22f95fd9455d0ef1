// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Experiments with the emulated devices and their transport under a simulated clock, so that results do not depend on the
//! machine. Each prints JSON:
//!
//! - `simulation incast|persistent|racks [SETTINGS]`: those of a paper. SETTINGS is a JSON object that changes the network.
//! - `simulation all-to-all DEVICES`: a message from each device to each other one.
//! - `simulation once MESSAGES`: each message arrives once, on a network with all faults.

#![forbid(unsafe_code)]

mod cluster;
mod experiments;
mod once;

use std::{env, process::ExitCode};

use serde_json::Value;

fn run(arguments: &[&str]) -> Result<Value, String> {
    let count = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| format!("{text} is no number"))
    };
    match arguments {
        ["all-to-all", devices] => experiments::all_to_all(count(devices)? as usize),
        ["once", messages] => Ok(once::once(count(messages)?)),
        [experiment, changes @ ..] if changes.len() < 2 => {
            let changes = changes.first().unwrap_or(&"{}");
            experiments::of_paper(experiment, &experiments::network(changes)?)
        }
        _ => Err("usage: simulation EXPERIMENT [ARGUMENT]".into()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(results) => println!("{results:#}"),
        Err(error) => {
            eprintln!("simulation: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
