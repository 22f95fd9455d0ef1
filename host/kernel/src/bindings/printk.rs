// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rate limits of messages.

use core::cell::Cell;

use crate::ffi::{c_char, c_int};

pub struct ratelimit_state {
    begin: Cell<u64>,
    count: Cell<u32>,
}

pub unsafe fn ratelimit_init(slot: *mut ratelimit_state) {
    let state = ratelimit_state {
        begin: Cell::new(0),
        count: Cell::new(0),
    };
    // SAFETY: The caller guarantees that there is room.
    unsafe { slot.write(state) };
}

pub unsafe fn ___ratelimit(state: *mut ratelimit_state, _: *const c_char) -> c_int {
    // SAFETY: The caller guarantees that the state is initialized.
    let state = unsafe { &*state };
    let now = sim::now();
    if now >= state.begin.get() + 5_000_000_000 {
        state.begin.set(now);
        state.count.set(0);
    }
    state.count.set(state.count.get().saturating_add(1));
    (state.count.get() <= 10).into()
}
