// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Scenarios: files of requests.

use std::{fs, path::Path};

use crate::control::{emulator::Emulator, scope::Scope};

/// Applies the requests in a file. Empty lines and those that begin with `#` are comments.
///
/// # Errors
///
/// The file can't be read, or a request in it fails; the message says where.
pub(crate) fn play(scenario: &Path, emulator: &Emulator) -> Result<(), String> {
    let text = fs::read_to_string(scenario)
        .map_err(|error| format!("cannot read the scenario {}: {error}", scenario.display()))?;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Err(error) = emulator.request(&Scope::default(), line.as_bytes()) {
            return Err(format!("{}:{number}: {error}", scenario.display()));
        }
    }
    Ok(())
}
