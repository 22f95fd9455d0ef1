// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages of panics that end the process. The test harness captures messages, and would lose these.

use std::{
    cell::RefCell,
    io::{stderr, Write},
    panic,
    process::abort as end,
    sync::Once,
    thread,
};

thread_local! {
    /// The messages of panics that unwind.
    static MESSAGES: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Has a second panic during the unwinding of the first print both: it aborts the process, as does a panic that reaches C.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_second = MESSAGES.with(|messages| {
                let mut messages = messages.borrow_mut();
                let is_second = !messages.is_empty();
                let name = thread::current().name().unwrap_or("a thread").to_owned();
                messages.push_str(&format!("{name}: {info}\n"));
                is_second
            });
            if is_second {
                print();
            }
            next(info);
        }));
    });
}

/// Discards the message of a panic that was caught.
pub(crate) fn clear() {
    MESSAGES.take();
}

fn print() {
    let _ = stderr().write_all(MESSAGES.take().as_bytes());
}

/// Ends the process.
pub(crate) fn abort(why: &str) -> ! {
    print();
    let _ = writeln!(stderr(), "{why}");
    end();
}
