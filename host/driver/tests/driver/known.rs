// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The findings of `known.toml` still reproduce, and all others are none.

use std::{collections::BTreeSet, env, process::Command};

use driver::known::findings;

/// Runs a test of this program, and returns whether it has passed, and what it has printed.
fn run(arguments: &[&str], seed: Option<u64>) -> (bool, String) {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command
        .args(["--exact", "--test-threads=1", "--nocapture"])
        .args(arguments)
        .env("KNOWN", "0");
    if let Some(seed) = seed {
        command.env("SEED", seed.to_string());
    }
    let output = command.output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn each_reproduces() {
    for finding in findings() {
        let (passed, text) = match &finding.test {
            Some(test) => run(&[test, "--ignored"], None),
            None => run(&["schedules::hold"], finding.seed),
        };
        assert!(
            !passed,
            "{finding:?} does not reproduce any more: remove it\n{text}"
        );
        assert!(
            text.contains(&finding.oracle),
            "{finding:?} fails in another way\n{text}"
        );
    }
}

#[test]
fn no_test_is_ignored_for_another_reason() {
    let (_, text) = run(&["--ignored", "--list"], None);
    let listed = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let known: BTreeSet<_> = findings()
        .into_iter()
        .filter_map(|finding| finding.test)
        .collect();
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), known);
}
