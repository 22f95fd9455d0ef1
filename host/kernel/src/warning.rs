// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Warnings, where the kernel would `WARN`. The machine continues, and tests check the list.

use std::cell::{Cell, RefCell};

/// Time in which messages are counted, in nanoseconds: that of the limit of each kind of message.
const WINDOW: u64 = 5_000_000_000;

/// Limit on the messages of a driver in that time: twenty of each of ten kinds, as a limit may begin anew within it.
const MOST: u32 = 200;

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static MESSAGES: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Adds a warning.
pub fn warn(what: String) {
    sim::log(format_args!("WARNING: {what}\n"));
    WARNINGS.with(|warnings| warnings.borrow_mut().push(what));
}

/// Counts a message of a driver, and warns of a flood.
pub(crate) fn count_message() {
    let (now, (start, count)) = (sim::now(), MESSAGES.get());
    let (start, count) = if now.wrapping_sub(start) < WINDOW {
        (start, count + 1)
    } else {
        (now, 1)
    };
    MESSAGES.set((start, count));
    if count == MOST + 1 {
        warn("the log is flooded".into());
    }
}

/// Counts messages anew, as each binding has limits of its own.
pub(crate) fn count_anew() {
    MESSAGES.set((sim::now(), 0));
}

/// Returns the warnings since the last call, from which messages are counted anew.
pub fn take_warnings() -> Vec<String> {
    count_anew();
    WARNINGS.with(|warnings| std::mem::take(&mut *warnings.borrow_mut()))
}
