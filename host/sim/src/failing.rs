// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Injected failures of allocations, and the number of bytes in use.

use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static FAIL_AT: Cell<u64> = const { Cell::new(u64::MAX) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Counts an allocation, and returns whether it may succeed.
pub fn may_allocate() -> bool {
    let number = ALLOCATIONS.get();
    ALLOCATIONS.set(number + 1);
    if number == FAIL_AT.get() {
        FAILED.set(true);
    }
    number != FAIL_AT.get()
}

/// Restarts the count. The allocation with this number will fail.
pub fn fail_allocation(number: Option<u64>) {
    ALLOCATIONS.set(0);
    FAIL_AT.set(number.unwrap_or(u64::MAX));
}

/// Returns whether an allocation has failed since [`take_failed`].
pub fn has_failed() -> bool {
    FAILED.get()
}

/// Returns whether an allocation has failed, and clears that.
pub fn take_failed() -> bool {
    FAILED.replace(false)
}

/// Returns the number of allocations since [`fail_allocation`].
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Adds allocated bytes to those in use.
pub fn count_allocated(bytes: usize) {
    LIVE.set(LIVE.get() + bytes as i64);
}

/// Removes freed bytes from those in use.
pub fn count_freed(bytes: usize) {
    LIVE.set(LIVE.get() - bytes as i64);
}

/// Returns the number of bytes in use by this thread.
pub fn live() -> i64 {
    LIVE.get()
}
