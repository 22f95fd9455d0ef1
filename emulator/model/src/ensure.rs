// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks of conditions.

/// Fails with an error, such as the status of a command, unless a condition holds.
pub(crate) fn ensure<E>(holds: bool, error: E) -> Result<(), E> {
    if holds { Ok(()) } else { Err(error) }
}
