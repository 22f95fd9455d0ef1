// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device while it is present, and a client's objects on it.

use core::{
    mem::ManuallyDrop,
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    bindings,
    device::Bound,
    error::to_result,
    ffi::c_char,
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
    handler::Gate,
    object::{
        Object,
        Raw, //
    }, //
};
use crate::{
    ffi,
    rdma::Gid, //
};

/// A device of the RDMA core, from the client's add callback until its remove callback.
///
/// Objects that the client creates on it borrow from this. Each is destroyed with its owner or, if
/// safe code has leaked the owner, when the device is removed.
///
/// # Invariants
///
/// `raw` is registered, and its parent bound, as long as this exists.
#[pin_data]
pub(crate) struct Device {
    raw: NonNull<ffi::ib_device>,
    client: &'static CStr,
    #[pin]
    objects: Mutex<Objects>,
}

/// The client's existing objects, in the order of their creation.
struct Objects {
    next: u64,
    alive: RBTree<u64, Object>,
}

// SAFETY: The core's functions for devices may be called by any task.
unsafe impl Send for Device {}

// SAFETY: The objects are under a lock; the rest does not change.
unsafe impl Sync for Device {}

impl Device {
    /// Wraps a device.
    ///
    /// # Safety
    ///
    /// `raw` must be registered, and its parent bound, until the value is dropped.
    pub(super) unsafe fn new(
        raw: NonNull<ffi::ib_device>,
        client: &'static CStr,
    ) -> impl PinInit<Self> {
        let objects = Objects {
            next: 0,
            alive: RBTree::new(),
        };
        // INVARIANT: The caller guarantees it.
        pin_init!(Self {
            raw,
            client,
            objects <- new_mutex!(objects, "rdma_client_objects"),
        })
    }

    /// Returns the core's structure.
    pub(super) fn as_raw(&self) -> *mut ffi::ib_device {
        self.raw.as_ptr()
    }

    /// Returns the table of the provider's functions. A registration that fails late writes to
    /// `dealloc_driver`, so that there can't be a reference to the table.
    pub(super) fn ops(&self) -> *const ffi::ib_device_ops {
        // SAFETY: By the type invariant the device is registered.
        unsafe { &raw const (*self.as_raw()).ops }
    }

    /// Returns the static name that the core records as the owner of objects.
    pub(super) fn owner_name(&self) -> *const c_char {
        self.client.as_char_ptr()
    }

    /// Returns the device that performs the DMA, if there is one.
    pub(super) fn dma_device(&self) -> Option<&kernel::device::Device<Bound>> {
        // SAFETY: By the type invariant the device is registered, so this does not change.
        let parent = unsafe { (*self.as_raw()).dma_device };
        if parent.is_null() {
            return None;
        }
        // SAFETY: By the type invariant the parent exists, and is bound.
        unsafe { Some(kernel::device::Device::<Bound>::from_raw(parent)) }
    }

    /// Returns the number of completion vectors.
    pub(crate) fn num_comp_vectors(&self) -> u32 {
        // SAFETY: By the type invariant the device is registered, so this does not change.
        let vectors = unsafe { (*self.as_raw()).num_comp_vectors };
        vectors.try_into().unwrap_or(0)
    }

    /// Returns a port's GID. `port` is counted from 1, `index` from 0.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such port, or the index is too large.
    /// - [`ENOENT`] if there is no GID at that index.
    pub(crate) fn gid(&self, port: u32, index: u32) -> Result<Gid> {
        let mut gid = ffi::ib_gid::default();
        let index = index.try_into().map_err(|_| EINVAL)?;
        // SAFETY: By the type invariant the device is registered; there is room for a GID.
        to_result(unsafe { ffi::rdma_query_gid(self.as_raw(), port, index, &mut gid) })?;
        // SAFETY: All variants of `ib_gid` are 16 bytes, as is `Gid`.
        Ok(unsafe { (&raw const gid).cast::<Gid>().read() })
    }

    /// Adds an object, to be destroyed when the device is removed, or earlier. Returns its number.
    fn keep(&self, place: RBTreeNodeReservation<u64, Object>, object: Object) -> u64 {
        let mut objects = self.objects.lock();
        let number = objects.next;
        // A 64-bit number does not wrap during the uptime of a machine.
        objects.next = number.wrapping_add(1);
        objects.alive.insert(place.into_node(number, object));
        number
    }

    /// Destroys an object, and returns whether this has succeeded.
    ///
    /// # Safety
    ///
    /// The object must not be used any more.
    unsafe fn destroy(&self, number: u64) -> bool {
        let (object, node) = {
            let mut objects = self.objects.lock();
            // It is removed first, so that it is destroyed once.
            let object = objects.alive.get(&number).cloned();
            (object, objects.alive.remove_node(&number))
        };
        let (Some(object), Some(node)) = (object, node) else {
            return false;
        };
        // SAFETY: Objects in the tree exist. The caller guarantees that this is the last use.
        if let Err(error) = unsafe { object.destroy() } {
            pr_err!(
                "Failed to destroy an object ({error:?}), will retry when its device is removed\n"
            );
            self.objects.lock().alive.insert(node);
            return false;
        }
        true
    }

    /// Destroys objects that safe code has leaked, or whose destruction has failed before. Queue
    /// pairs are destroyed first, as their work requests need other objects. The others follow from
    /// the newest to the oldest, as objects only depend on older ones.
    ///
    /// Leaked completion handlers may refer to leaked objects. They are no longer called, nor
    /// dropped.
    ///
    /// # Safety
    ///
    /// Only completion handlers may still use the objects.
    pub(super) unsafe fn end(&self) {
        // Handlers that are running may create and destroy objects.
        while let Some(gate) = self.open_gate() {
            gate.close();
        }
        let left = self.objects.lock().alive.keys().count();
        if left > 0 {
            pr_err!("Destroying {left} leaked objects of the RDMA core\n");
        }
        let turns: [fn(&Object) -> bool; 2] = [Object::is_queue_pair, |_| true];
        for is_turn in turns {
            let mut before = u64::MAX;
            while let Some(number) = self.youngest(before, is_turn) {
                // SAFETY: No handler is called any more. The caller excludes other users.
                if !unsafe { self.destroy(number) } {
                    // It may need any older object, and the core does not check that. So they are leaked.
                    return;
                }
                before = number;
            }
        }
    }

    /// Returns the gate of a handler that may be called.
    fn open_gate(&self) -> Option<Arc<Gate>> {
        let objects = self.objects.lock();
        let mut gates = objects.alive.values().filter_map(Object::gate);
        gates.find(|gate| gate.is_open()).cloned()
    }

    /// Returns the number of the newest object below `before` that `is_wanted` accepts.
    fn youngest(&self, before: u64, is_wanted: impl Fn(&Object) -> bool) -> Option<u64> {
        let objects = self.objects.lock();
        let older = objects
            .alive
            .iter()
            .take_while(|(number, _)| **number < before);
        let youngest = older.filter(|(_, object)| is_wanted(object)).last();
        youngest.map(|(number, _)| *number)
    }
}

/// An object of the core, and its dependencies `D`. They are dropped after the object was
/// destroyed, and leaked if its destruction fails.
///
/// # Invariants
///
/// The object exists and has this number. Nothing else destroys it as long as the device is present.
pub(super) struct Owned<'a, T, D = ()> {
    device: &'a Device,
    raw: Raw<T>,
    number: u64,
    needs: ManuallyDrop<D>,
}

impl<'a, T, D> Owned<'a, T, D> {
    /// Creates an object. `object` wraps it for its destruction.
    ///
    /// # Safety
    ///
    /// `create` must return a new object that only depends on `needs`, and matches `object`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of `create`.
    pub(super) unsafe fn new(
        device: &'a Device,
        needs: D,
        object: impl FnOnce(Raw<T>) -> Object,
        create: impl FnOnce(&D) -> Result<Raw<T>>,
    ) -> Result<Self> {
        let place = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let raw = create(&needs)?;

        // INVARIANT: The object is new, and nothing else uses its number.
        Ok(Self {
            device,
            raw,
            number: device.keep(place, object(raw)),
            needs: ManuallyDrop::new(needs),
        })
    }

    /// Returns the object.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &'a Device {
        self.device
    }
}

impl<T, D> Deref for Owned<'_, T, D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.needs
    }
}

impl<T, D> Drop for Owned<'_, T, D> {
    fn drop(&mut self) {
        // SAFETY: All users borrow from `self`. By the invariant, nothing else destroys the object.
        let is_destroyed = unsafe { self.device.destroy(self.number) };
        if is_destroyed {
            // SAFETY: The object was destroyed, and this is the last use of its dependencies.
            unsafe { ManuallyDrop::drop(&mut self.needs) };
        }
    }
}
