// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks that unsound uses of `rdma/` and `sys/` in safe code do not compile.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

/// Returns the lines of a file that are marked with an error, and the codes of the errors.
fn marked(file: &Path) -> BTreeSet<(u64, String)> {
    let text = fs::read_to_string(file).expect("the refused code");
    let marker = |(number, line): (usize, &str)| {
        let (_, code) = line.split_once("//~ ")?;
        Some((number as u64 + 1, code.to_owned()))
    };
    text.lines().enumerate().filter_map(marker).collect()
}

/// Compiles the module with a file. Returns the lines with an error, and the codes of the errors.
fn refused(file: &Path) -> BTreeSet<(u64, String)> {
    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--package", "misuse", "--lib"])
        .args(["--message-format", "json"])
        .env("MISUSE_REFUSED", file)
        .output()
        .expect("cargo");
    let text = String::from_utf8(output.stdout).expect("messages of cargo");
    let mut errors = BTreeSet::new();
    for line in text.lines() {
        let message: serde_json::Value = serde_json::from_str(line).expect("a message of cargo");
        let message = &message["message"];
        if message["level"] == "error" && message["code"].is_object() {
            let spans = message["spans"].as_array().expect("spans");
            let span = spans.iter().find(|span| span["is_primary"] == true);
            let line = span.expect("a place")["line_start"]
                .as_u64()
                .expect("a line");
            let code = message["code"]["code"].as_str().expect("a code");
            errors.insert((line, code.to_owned()));
        }
    }
    assert!(
        !output.status.success() && !errors.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    errors
}

#[test]
fn safe_code_that_would_be_unsound_does_not_compile() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("refused.rs");
    assert_eq!(refused(&file), marked(&file));
}
