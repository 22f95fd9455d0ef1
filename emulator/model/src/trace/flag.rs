// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What commands and work requests have in common.

/// A flag, by its name if it is set.
pub(super) fn flag(name: &'static str, set: bool) -> &'static str {
    if set { name } else { "" }
}
