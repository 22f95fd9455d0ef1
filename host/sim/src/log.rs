// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages of the kernel and of the device.

use std::{cell::RefCell, fmt};

use crate::machine::now;

thread_local! {
    static LOG: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Keeps messages from now on, or discards them. `SIM_LOG` in the environment prints kept ones.
pub fn keep_log(on: bool) {
    LOG.with(|log| *log.borrow_mut() = on.then(Vec::new));
}

/// Adds a message. It is always formatted, as an error of formatting is an error of the driver.
pub fn log(message: fmt::Arguments<'_>) {
    struct Nowhere;

    impl fmt::Write for Nowhere {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            Ok(())
        }
    }

    LOG.with(|log| match log.borrow_mut().as_mut() {
        Some(log) => {
            let micros = now() / 1000;
            let line = format!(
                "[{}.{:06}] {message}",
                micros / 1_000_000,
                micros % 1_000_000
            );
            if std::env::var_os("SIM_LOG").is_some() {
                eprint!("{line}");
            }
            log.push(line);
        }
        None => {
            let _ = fmt::write(&mut Nowhere, message);
        }
    });
}

/// Returns the messages that were kept.
pub fn take_log() -> Vec<String> {
    LOG.with(|log| {
        log.borrow_mut()
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    })
}
