// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Prints [sequences](driver::sequence) and the results of the driver, one line of JSON per seed.
//!
//! ```text
//! sequences FIRST COUNT
//! ```

use std::{env, process::ExitCode};

use driver::sequence::record;

fn main() -> ExitCode {
    let numbers: Vec<u64> = env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok())
        .collect();
    let [first, count] = numbers[..] else {
        eprintln!("usage: sequences FIRST COUNT");
        return ExitCode::from(2);
    };
    for seed in first..first + count {
        println!("{}", record(seed));
    }
    ExitCode::SUCCESS
}
