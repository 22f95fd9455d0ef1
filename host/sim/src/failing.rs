// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Allocations that fail, and a count of those that live.

use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static FAIL_AT: Cell<u64> = const { Cell::new(u64::MAX) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Counts an allocation, and returns whether it is to succeed.
pub fn may_allocate() -> bool {
    let number = ALLOCATIONS.get();
    ALLOCATIONS.set(number + 1);
    if number == FAIL_AT.get() {
        FAILED.set(true);
    }
    number != FAIL_AT.get()
}

/// Restarts the count, and has the allocation with this number fail.
pub fn fail_allocation(number: Option<u64>) {
    ALLOCATIONS.set(0);
    FAIL_AT.set(number.unwrap_or(u64::MAX));
}

/// Returns whether an allocation has failed since [`take_failed`].
pub fn has_failed() -> bool {
    FAILED.get()
}

/// Returns whether an allocation has failed, and forgets it.
pub fn take_failed() -> bool {
    FAILED.replace(false)
}

/// Returns the number of allocations since [`fail_allocation`].
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Counts what was allocated, or freed if `by` is negative.
pub fn count_live(by: i64) {
    LIVE.set(LIVE.get() + by);
}

/// Returns how many allocations of this thread have not been freed.
pub fn live() -> i64 {
    LIVE.get()
}
