// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Simulations of the emulated devices and their transport. They have a simulated clock, so that results do not depend on the
//! machine, and print JSON:
//!
//! - `simulation flows EXPERIMENT`: flows between devices. EXPERIMENT is a JSON object: see [`Experiment`].
//! - `simulation once MESSAGES`: each message arrives once, on a network with all faults.

#![forbid(unsafe_code)]

mod cluster;
mod flows;
mod once;

use std::{env, fs, process::ExitCode};

use crate::flows::Experiment;

/// Runs a simulation; returns its results.
fn run(arguments: &[String]) -> Result<String, String> {
    let [kind, argument] = arguments else {
        return Err("usage: simulation flows EXPERIMENT, or simulation once MESSAGES".into());
    };
    let text = |error: serde_json::Error| error.to_string();
    if kind == "once" {
        let messages = serde_json::from_str(argument).map_err(text)?;
        return Ok(once::once(messages).to_string());
    }
    let experiment: Experiment = serde_json::from_str(argument).map_err(text)?;
    serde_json::to_string(&experiment.run()?).map_err(text)
}

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(results) => println!("{results}"),
        Err(error) => {
            eprintln!("simulation: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns the number that follows `name` in a file of Linux, or 0.
fn proc_number(path: &str, name: &str) -> usize {
    let text = fs::read_to_string(path).unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let number = rest.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the CPU time of the program in seconds.
fn cpu_seconds() -> f64 {
    proc_number("/proc/self/schedstat", "") as f64 * 1e-9
}

/// Returns the peak memory of the program in MiB.
fn peak_mib() -> usize {
    proc_number("/proc/self/status", "VmHWM:") >> 10
}
