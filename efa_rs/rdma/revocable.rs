// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of programs that its exporter may revoke.
//!
//! A dma-buf belongs to its exporter, such as the driver of another device. The exporter may revoke it while
//! programs have memory regions of it: when that device is reset, unbound or hot-unplugged.

use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    new_mutex,
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::{
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};

use super::{
    device::dma_bufs,
    dma_bufs::DmaBufs,
    umem::{
        Pages,
        Umem, //
    },
};
use crate::ffi;

/// A device's registration of memory that may be revoked.
pub(crate) trait Hold: Send + Unpin {
    /// Revokes the device's access to the memory. The access must have ended when this returns.
    ///
    /// Called at most once, at the latest when the memory is unpinned. The reservation lock of the
    /// DMA buffer is held. May sleep.
    fn revoke(&mut self);
}

/// Pinned memory of a DMA buffer, with the device's registration of it, `H`.
///
/// It is unpinned at the latest when the device is unregistered, even if this is leaked.
pub(crate) struct Revocable<'a, H: Hold> {
    pinned: Arc<Pinned<'a, H>>,
    /// List of the device's DMA buffers, which has an entry for the memory.
    dma_bufs: Arc<DmaBufs>,
}

/// Pinned memory to which the core may have pointers.
#[pin_data]
struct Pinned<'a, H> {
    #[pin]
    state: Mutex<State<'a, H>>,
}

/// The state of the memory.
struct State<'a, H> {
    /// The memory, from when it is pinned until it is unpinned.
    umem: Option<Umem<'a>>,
    hold: H,
    is_revoked: bool,
}

impl<'a, H: Hold + 'a> Revocable<'a, H> {
    /// Pins `length` bytes at `offset` of a DMA buffer.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of pinning memory.
    ///
    /// # Safety
    ///
    /// `device` must be valid, and of a registration whose data is valid for `'a`.
    pub(super) unsafe fn pin(
        device: *mut ffi::ib_device,
        fd: c_int,
        offset: u64,
        length: u64,
        access: c_int,
        hold: H,
    ) -> Result<Self> {
        let pinned = Pinned::new(hold)?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let revoked = Pinned::<'a, H>::revoked;
        let this = Arc::as_ptr(&pinned).cast_mut().cast();
        // SAFETY: The caller guarantees that the device is valid, and for how long. `revoked` is called before the memory is
        // unpinned, which `Pinned::end` does. The entry of the registration has a reference until then.
        let umem = unsafe { Umem::get_dmabuf(device, fd, offset, length, access, revoked, this) }?;
        pinned.state.lock().umem = Some(umem);

        // SAFETY: The caller guarantees that the device is registered.
        let dma_bufs = unsafe { dma_bufs(device) };
        let reference = Arc::into_raw(pinned.clone()).cast();
        // SAFETY: This is the function for the reference.
        unsafe { dma_bufs.add(node, reference, Pinned::<'a, H>::end) };
        Ok(Self { pinned, dma_bufs })
    }

    /// Prevents a revocation as long as the returned value is kept.
    pub(crate) fn keep(&self) -> Kept<'_, 'a, H> {
        Kept(self.pinned.state.lock())
    }
}

impl<H: Hold> Drop for Revocable<'_, H> {
    fn drop(&mut self) {
        self.dma_bufs.end(Arc::as_ptr(&self.pinned).addr());
    }
}

impl<'a, H: Hold> Pinned<'a, H> {
    fn new(hold: H) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                state <- new_mutex!(State {
                    umem: None,
                    hold,
                    is_revoked: false,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Unpins the memory, and drops the reference `this`.
    ///
    /// # Safety
    ///
    /// `this` must be a reference of [`Arc::into_raw`] to a `Self`, which is not used afterwards.
    unsafe fn end(this: *const c_void) {
        // SAFETY: The caller guarantees that this is such a reference.
        let this = unsafe { Arc::from_raw(this.cast::<Self>()) };
        // Unpinned without this lock: revocation, also by unpinning, takes it after the exporter's.
        let umem = this.state.lock().umem.take();
        drop(umem);
    }

    /// Called by the core when the memory is revoked.
    ///
    /// # Safety
    ///
    /// `this` must be a valid `Self`.
    unsafe extern "C" fn revoked(this: *mut c_void) {
        // SAFETY: The caller guarantees that it is valid.
        let this = unsafe { &*this.cast::<Self>() };
        let mut state = this.state.lock();
        state.is_revoked = true;
        state.hold.revoke();
    }
}

/// Memory that can't be revoked while this exists. An exporter that revokes it waits.
pub(crate) struct Kept<'m, 'a, H: Hold>(MutexGuard<'m, State<'a, H>>);

impl<H: Hold> Kept<'_, '_, H> {
    /// Returns the device's registration of the memory.
    pub(crate) fn hold(&mut self) -> &mut H {
        &mut self.0.hold
    }

    /// Divides the memory into pages of the largest size in the bit mask `page_sizes` that fits.
    /// `iova` is the device's address of the first byte. Returns `None` if no size fits.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the memory was revoked.
    pub(crate) fn divide(&mut self, page_sizes: u64, iova: u64) -> Result<Option<Pages<'_>>> {
        let umem = match &self.0.umem {
            Some(umem) if !self.0.is_revoked => umem,
            _ => return Err(ENODEV),
        };
        // SAFETY: The lock is held, so that nothing else divides the memory. It was not revoked, and
        // is not before the lock is released, which the pages borrow.
        Ok(unsafe { umem.divide(page_sizes, iova) })
    }
}
