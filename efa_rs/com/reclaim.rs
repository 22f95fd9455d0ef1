// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Revocation of memory from the device, and the keys of revoked memory.

use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    admin_queue::AdminQueue,
    error::CommandError,
    health::Cause, //
};
use crate::{
    hw::admin::{
        mr::DeregMr,
        Status, //
    },
    sys::atomic::{
        Acquire,
        AtomicU32,
        Relaxed,
        Release, //
    }, //
};

/// Limit on regions that are set aside during a registration because they got revoked keys.
const MAX_ASIDE: usize = 64;

#[pin_data]
pub(crate) struct Reclaim<'bound> {
    admin: Arc<AdminQueue<'bound>>,
    /// The remote keys of revoked regions that programs have not deregistered yet.
    #[pin]
    keys: Mutex<RBTree<u32, ()>>,
    /// Number of these keys, which changes with the lock held.
    revoked: AtomicU32,
}

/// Preallocated memory for the key of a revoked region.
pub(crate) type KeyPlace = RBTreeNodeReservation<u32, ()>;

impl<'bound> Reclaim<'bound> {
    /// Creates the state for a session without revoked regions.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(admin: &Arc<AdminQueue<'bound>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                admin: admin.clone(),
                keys <- new_mutex!(RBTree::new()),
                revoked: AtomicU32::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Deregisters a region, and returns whether the device released it. If not, halts the device.
    pub(crate) fn deregister(&self, l_key: u32) -> bool {
        let is_released = self.admin.execute(&DeregMr { l_key }).is_ok();
        if !is_released {
            self.halt_device();
        }
        is_released
    }

    /// Revokes all memory from the device by halting it.
    pub(crate) fn halt_device(&self) {
        self.admin.epoch.halt(Cause::MemoryHeld);
    }

    /// Bars the remote key of a revoked region from reuse until [`Self::forget`].
    pub(crate) fn keep(&self, r_key: u32, place: KeyPlace) {
        let mut keys = self.keys.lock();
        let before = keys.insert(place.into_node(r_key, ()));
        if before.is_none() {
            self.revoked.store(self.revoked.load(Relaxed) + 1, Release);
        }
        drop(keys);
        drop(before);
    }

    /// Allows reuse of this remote key: the program has deregistered the revoked region.
    pub(crate) fn forget(&self, r_key: u32) {
        let mut keys = self.keys.lock();
        if keys.remove(&r_key).is_some() {
            self.revoked.store(self.revoked.load(Relaxed) - 1, Release);
        }
    }

    /// Registers a region by `register`, and ensures that its key is not that of a revoked region,
    /// which peers may still use. `keys` returns the local and the remote key.
    ///
    /// For the device, a revoked key is free. A region that gets such a key is set aside, and
    /// deregistered after another registration got a new key.
    ///
    /// # Errors
    ///
    /// - Those of `register`.
    /// - That of a device without free regions if it returns only revoked keys.
    /// - [`CommandError::InvalidResponse`] if the device does not release a region with such a key.
    ///   It is halted.
    pub(crate) fn with_new_key<R>(
        &self,
        register: impl Fn() -> Result<R, CommandError>,
        keys: impl Fn(&R) -> (u32, u32),
    ) -> Result<R, CommandError> {
        let mut registered = register()?;
        // Before the device can return a revoked key, its revocation has counted it.
        if self.revoked.load(Acquire) != 0 {
            self.find_new_key(keys(&registered), &mut || {
                registered = register()?;
                Ok(keys(&registered))
            })?;
        }
        Ok(registered)
    }

    // One copy for all commands.
    #[cold]
    #[inline(never)]
    fn find_new_key(
        &self,
        first: (u32, u32),
        register: &mut dyn FnMut() -> Result<(u32, u32), CommandError>,
    ) -> Result<(), CommandError> {
        let mut aside = KVec::new();
        let mut last = Ok(first);
        let result = loop {
            let (l_key, r_key) = match last {
                Ok(keys) => keys,
                Err(error) => break Err(error),
            };
            if self.keys.lock().get(&r_key).is_none() {
                break Ok(());
            }
            let is_kept = aside.len() < MAX_ASIDE && aside.push(l_key, GFP_KERNEL).is_ok();
            if !is_kept {
                let status = if self.deregister(l_key) {
                    CommandError::Status(Status::ResourceAllocationFailure.into())
                } else {
                    CommandError::InvalidResponse
                };
                break Err(status);
            }
            last = register();
        };
        for l_key in aside {
            if !self.deregister(l_key) {
                return Err(CommandError::InvalidResponse);
            }
        }
        result
    }
}
