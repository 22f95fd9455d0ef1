// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Formatting of flags in commands and work requests.

/// Returns the name of a flag if it is set, or an empty string.
pub(super) fn flag(name: &'static str, set: bool) -> &'static str {
    if set { name } else { "" }
}
