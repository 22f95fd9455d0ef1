// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks that the findings of `known.toml` reproduce, and that no other tests are ignored.

use std::{collections::BTreeSet, env, ffi::OsStr, process::Command};

use driver::known::findings;

/// Runs a program that suppresses no findings. Returns whether it succeeds, and its output.
fn run(program: impl AsRef<OsStr>, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    let output = command.args(arguments).env("KNOWN", "0").output();
    let output = output.expect("a process");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

/// Runs ignored tests of this program.
fn run_tests(arguments: &[&str]) -> (bool, String) {
    let fixed = ["--exact", "--test-threads=1", "--nocapture", "--ignored"];
    let program = env::current_exe().expect("this program");
    run(program, &[&fixed, arguments].concat())
}

#[test]
fn each_reproduces() {
    for finding in findings() {
        let (passed, text) = match &finding.test {
            Some(test) => run_tests(&[test]),
            None => {
                let seed = finding.seed.expect("a test or a seed").to_string();
                run(env!("CARGO_BIN_EXE_lives"), &["seeds", &seed, "1"])
            }
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
    let (_, text) = run_tests(&["--list"]);
    let listed = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let known: BTreeSet<_> = findings()
        .into_iter()
        .filter_map(|finding| finding.test)
        .collect();
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), known);
}
