// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Revoking memory from the device, and the keys of what was revoked.

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
    health::Cause,
    lent::Epoch, //
};
use crate::hw::admin::{
    mr::DeregMr,
    Status, //
};

/// The most regions with keys of revoked ones that are put aside while another one is registered.
const MAX_ASIDE: usize = 64;

/// What revokes memory in one session.
#[pin_data]
pub(crate) struct Reclaim<'bound> {
    admin: Arc<AdminQueue<'bound>>,
    epoch: Arc<Epoch<'bound>>,
    /// The remote keys of revoked regions that programs still have.
    #[pin]
    keys: Mutex<RBTree<u32, ()>>,
}

/// Memory for the key of a revoked region.
pub(crate) type KeyPlace = RBTreeNodeReservation<u32, ()>;

impl<'bound> Reclaim<'bound> {
    /// Makes what revokes memory in a session.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        admin: &Arc<AdminQueue<'bound>>,
        epoch: &Arc<Epoch<'bound>>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                admin: admin.clone(),
                epoch: epoch.clone(),
                keys <- new_mutex!(RBTree::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Has the device release a region, and returns whether it has. If it does not, it is halted.
    pub(crate) fn deregister(&self, l_key: u32) -> bool {
        let is_released = self.admin.execute(&DeregMr { l_key }).is_ok();
        if !is_released {
            self.by_force();
        }
        is_released
    }

    /// Halts the device.
    pub(crate) fn by_force(&self) {
        self.epoch.halt(Cause::MemoryHeld);
    }

    /// Keeps the remote key of a revoked region from being used until [`Self::forget`].
    pub(crate) fn keep(&self, r_key: u32, place: KeyPlace) {
        let before = self.keys.lock().insert(place.into_node(r_key, ()));
        drop(before);
    }

    /// Says that no program has the revoked region with this remote key any more.
    pub(crate) fn forget(&self, r_key: u32) {
        self.keys.lock().remove(&r_key);
    }

    /// Registers a region by `register`, and ensures that it has no key of a revoked region: peers may still use that.
    /// `keys` returns the local and the remote key.
    ///
    /// For the device, a revoked key is free. A region that gets such a key is deregistered, after the next one has another
    /// key.
    ///
    /// # Errors
    ///
    /// - Those of `register`.
    /// - That of a device without a region left if it gives no other key.
    /// - [`CommandError::Nonsense`] if it does not release a region with such a key; it is halted.
    pub(crate) fn with_new_key<R>(
        &self,
        register: impl Fn() -> Result<R, CommandError>,
        keys: impl Fn(&R) -> (u32, u32),
    ) -> Result<R, CommandError> {
        let mut aside = KVec::new();
        let result = loop {
            let registered = match register() {
                Ok(registered) => registered,
                error => break error,
            };
            let (l_key, r_key) = keys(&registered);
            if self.keys.lock().get(&r_key).is_none() {
                break Ok(registered);
            }
            let is_kept = aside.len() < MAX_ASIDE && aside.push(l_key, GFP_KERNEL).is_ok();
            if !is_kept {
                let status = if self.deregister(l_key) {
                    CommandError::Status(Status::ResourceAllocationFailure.into())
                } else {
                    CommandError::Nonsense
                };
                break Err(status);
            }
        };
        for l_key in aside {
            if !self.deregister(l_key) {
                return Err(CommandError::Nonsense);
            }
        }
        result
    }
}
