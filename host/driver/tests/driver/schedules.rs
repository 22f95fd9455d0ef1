// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lives of seeds and of the fuzzer's corpus. tests/test_lives.py runs others.

use std::process::Command;

use driver::life;

/// Runs the program `lives`, which must complete at least `least` lives.
fn hold(arguments: &[&str], least: u64) {
    let output = Command::new(env!("CARGO_BIN_EXE_lives"))
        .args(arguments)
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let last = text.lines().last().expect("a line");
    let count = last.split(' ').next().and_then(|count| count.parse().ok());
    assert!(count.is_some_and(|count: u64| count >= least), "{text}");
}

#[test]
fn of_seeds_hold() {
    hold(&["seeds", "0", "2000"], 2000);
}

/// tests/test_lives.py writes the corpus.
#[test]
fn of_the_corpus_hold() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/driver/corpus.txt");
    hold(&["inputs", corpus], 100);
}

/// A seed determines the life completely.
#[test]
fn are_the_same_each_time() {
    let run = |seed| {
        life::schedule(seed);
        life::take_switches()
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
