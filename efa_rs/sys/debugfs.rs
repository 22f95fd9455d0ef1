// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The driver's directory in debugfs, with a directory for each device.
//!
//! [`kernel::debugfs`] has directories, but no module-wide one that devices can find. To be
//! replaced by such a directory in the kernel crate.

use kernel::{
    debugfs::Dir,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        global_lock, //
    }, //
};

global_lock! {
    // SAFETY: `Root::new` initializes it, and `subdir` does not use it before.
    unsafe(uninit) static ROOT: Mutex<Option<Dir>> = None;
}

/// State of [`ROOT`]: [`UNUSED`], [`BEING_MADE`] or [`READY`].
static PROGRESS: Atomic<u32> = Atomic::new(UNUSED);
const UNUSED: u32 = 0;
const BEING_MADE: u32 = 1;
const READY: u32 = 2;

/// The driver's directory; removed when dropped.
pub(crate) struct Root(());

impl Root {
    /// Creates the directory, when the module is loaded.
    pub(crate) fn new(name: &CStr) -> Self {
        if PROGRESS.cmpxchg(UNUSED, BEING_MADE, Acquire).is_ok() {
            // SAFETY: Only the first caller does this, and the lock is not used before.
            unsafe { ROOT.init() };
            PROGRESS.store(READY, Release);
            *ROOT.lock() = Some(Dir::new(name));
        }
        Self(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if PROGRESS.load(Acquire) == READY {
            *ROOT.lock() = None;
        }
    }
}

/// Creates a directory in that of the driver. Returns `None` without a [`Root`].
pub(crate) fn subdir(name: &CStr) -> Option<Dir> {
    if PROGRESS.load(Acquire) != READY {
        return None;
    }
    ROOT.lock().as_ref().map(|root| root.subdir(name))
}
