// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The memory of DMA buffers that a registered device has.

use kernel::{
    ffi::c_void,
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

/// The DMA buffers that the device of a registration has memory of.
#[pin_data]
pub(super) struct DmaBufs {
    /// By address.
    #[pin]
    list: Mutex<RBTree<usize, Entry>>,
}

/// A reference to pinned memory of any type.
///
/// # Invariants
///
/// `pinned` is a reference of [`Arc::into_raw`], which this owns, to what `end` takes.
pub(super) struct Entry {
    pinned: *const c_void,
    end: End,
}

/// Unpins the memory of a reference, and drops the reference.
type End = unsafe fn(*const c_void);

// SAFETY: What it refers to is pinned memory behind a lock, and `Send`.
unsafe impl Send for Entry {}

impl Entry {
    /// Unpins the memory.
    fn end(self) {
        // SAFETY: By the type invariant this is the function for the reference, which is not used any more.
        unsafe { (self.end)(self.pinned) }
    }
}

impl DmaBufs {
    /// Makes an empty list.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                list <- new_mutex!(RBTree::new(), "rdma_dma_bufs"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds pinned memory, with room for its node.
    ///
    /// # Safety
    ///
    /// `pinned` must be a reference of [`Arc::into_raw`], which is passed on, and `end` the function for it.
    pub(super) unsafe fn add(
        &self,
        room: RBTreeNodeReservation<usize, Entry>,
        pinned: *const c_void,
        end: End,
    ) {
        // INVARIANT: The caller guarantees it.
        let node = room.into_node(pinned.addr(), Entry { pinned, end });
        self.list.lock().insert(node);
    }

    /// Unpins the memory at an address, if it is still pinned.
    pub(super) fn end(&self, key: usize) {
        // Unpinning waits for the exporter, so it is done without the lock.
        let entry = self.list.lock().remove(&key);
        if let Some(entry) = entry {
            entry.end();
        }
    }

    /// Unpins what was leaked, or belongs to regions that the device has not given up.
    pub(super) fn end_all(&self) {
        loop {
            let key = self.list.lock().keys().next().copied();
            let Some(key) = key else {
                break;
            };
            self.end(key);
        }
    }
}
