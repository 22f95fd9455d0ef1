// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! DMA buffers whose memory a registered device uses.

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

/// The pinned memory of DMA buffers that the device of a registration uses.
#[pin_data]
pub(super) struct DmaBufs {
    /// Entries by the address in `Entry::pinned`.
    #[pin]
    list: Mutex<RBTree<usize, Entry>>,
}

/// A reference to pinned memory of any type.
///
/// # Invariants
///
/// `pinned` is an owned reference from [`Arc::into_raw`], of the type that `end` expects.
pub(super) struct Entry {
    pinned: *const c_void,
    end: End,
}

/// Function that unpins the memory of a reference, and drops the reference.
type End = unsafe fn(*const c_void);

// SAFETY: The pinned memory is behind a lock, and `Send`.
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

    /// Adds pinned memory, whose node was allocated as `room`.
    ///
    /// # Safety
    ///
    /// `pinned` must be a reference from [`Arc::into_raw`], whose ownership passes to the list.
    /// `end` must be the function for its type.
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
        // The lock is released first, as unpinning waits for the exporter.
        let entry = self.list.lock().remove(&key);
        if let Some(entry) = entry {
            entry.end();
        }
    }

    /// Unpins all memory that was leaked, or whose regions the device has not deregistered.
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
