// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers, reset and the admin queue.

mod admin_queue;
mod events;
mod registers;

use std::time::Duration;

use efa_testing::mock::Driver;

const MS: Duration = Duration::from_millis(1);

/// Changes attributes, given as JSON.
fn set(driver: &mut Driver, overrides: &str) {
    driver.device.set(serde_json::from_str(overrides).unwrap());
}

fn post_event(driver: &mut Driver, group: u16, syndrome: u16) {
    let (world, now) = (&mut driver.world, driver.now);
    driver.device.post_event(world, now, group, syndrome);
}

fn protocol_errors(driver: &Driver) -> u64 {
    driver.device.state().protocol_errors
}
