// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Warnings, where the kernel would `WARN`. The machine continues, and tests check the list.

use std::cell::RefCell;

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Adds a warning.
pub fn warn(what: String) {
    sim::log(format_args!("WARNING: {what}\n"));
    WARNINGS.with(|warnings| warnings.borrow_mut().push(what));
}

/// Returns the warnings since the last call.
pub fn take_warnings() -> Vec<String> {
    WARNINGS.with(|warnings| std::mem::take(&mut *warnings.borrow_mut()))
}
