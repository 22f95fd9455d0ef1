// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The findings of `known.toml`: bugs that the driver still has.

use std::collections::BTreeMap;

/// A finding.
#[derive(Debug)]
pub struct Finding {
    /// Its identifier.
    pub id: String,
    /// Name of the test that reproduces it. Either this or `seed` is set.
    pub test: Option<String>,
    /// Seed of the life that reproduces it.
    pub seed: Option<u64>,
    /// Text that the message of that failure contains.
    pub oracle: String,
    /// Text of the warnings that it explains.
    pub warning: Option<String>,
}

/// Returns all findings.
///
/// # Panics
///
/// If the file is malformed, or has unknown keys.
pub fn findings() -> Vec<Finding> {
    let text = include_str!("../../known.toml");
    let tables = text.split("[[finding]]").skip(1);
    tables.map(finding).collect()
}

fn finding(table: &str) -> Finding {
    let lines = table.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut fields: BTreeMap<_, _> = lines
        .map(|line| line.split_once(" = ").expect("a key and a value"))
        .map(|(key, value)| (key, value.trim_matches('"').to_owned()))
        .collect();
    let finding = Finding {
        id: fields.remove("id").expect("an id"),
        test: fields.remove("test"),
        seed: fields
            .remove("seed")
            .map(|seed| seed.parse().expect("a number")),
        oracle: fields.remove("oracle").expect("an oracle"),
        warning: fields.remove("warning"),
    };
    assert!(fields.is_empty(), "unknown keys: {fields:?}");
    finding
}

thread_local! {
    static WARNINGS: Vec<String> = findings().into_iter().filter_map(|finding| finding.warning).collect();
}

/// Returns whether a finding explains a warning. With `KNOWN=0` in the environment, none does.
pub fn explains(warning: &str) -> bool {
    let counts = std::env::var("KNOWN").as_deref() != Ok("0");
    counts && WARNINGS.with(|known| known.iter().any(|part| warning.contains(part)))
}
