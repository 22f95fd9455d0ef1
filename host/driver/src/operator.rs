// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An operator, who uses the health reporter of the device.

use kernel::{devlink, error::code::*, sim};

use crate::{
    choices::Choices,
    rig::{Rig, SECOND},
};

/// Limit on a request to recover the device: the driver's own, and the time until its task runs.
pub const LIMIT: u64 = 11 * SECOND;

/// Makes one request, which may fail for known reasons only.
pub fn act(choices: &mut dyn Choices) {
    let start = sim::now();
    let result = match choices.below(6) {
        0 | 1 => devlink::recover(),
        2 => devlink::diagnose().map(drop),
        3 => devlink::dump().map(drop),
        4 => devlink::clear_dump(),
        _ => {
            let grace_period = choices.pick(&[0, 1_000, 60_000]);
            devlink::set(choices.below(4) != 3, grace_period)
        }
    };
    let known = [EAGAIN, EBUSY, EIO, ENODEV, ETIMEDOUT];
    let is_known = result.map_or_else(|error| known.contains(&error), |()| true);
    assert!(is_known || sim::has_failed(), "{result:?} of devlink");
    // Another operator may wait with devlink's lock held.
    let took = sim::now() - start;
    assert!(
        took < 2 * LIMIT || sim::hurries(),
        "devlink takes {took} ns"
    );
}

impl Rig {
    /// Returns a value that `devlink health diagnose` prints.
    pub fn diagnosis(&self, what: &str) -> Option<String> {
        value(devlink::diagnose().ok()?, what)
    }

    /// Returns a value that `devlink health dump show` prints.
    pub fn dumped(&self, what: &str) -> Option<String> {
        value(devlink::dump().ok()?, what)
    }
}

fn value(pairs: Vec<(String, String)>, what: &str) -> Option<String> {
    let found = pairs.into_iter().find(|(name, _)| name == what);
    found.map(|(_, value)| value)
}
