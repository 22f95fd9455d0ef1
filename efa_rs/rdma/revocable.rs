// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of programs that whoever it belongs to may take back.
//!
//! A DMA buffer belongs to its exporter, such as the driver of another device, which may need its
//! memory back while programs have regions of it: when that device is reset, unbound or unplugged.

use core::ops::Deref;

use kernel::{
    ffi::c_void,
    new_mutex,
    prelude::*,
    sync::{
        Mutex,
        MutexGuard, //
    }, //
};

use super::umem::{
    Pages,
    Umem, //
};
use crate::sys::attach::{
    Attached,
    Attachment, //
};

/// What a device has of memory that may be taken back.
pub(crate) trait Hold: Send + Unpin {
    /// Takes the memory away from the device, which must not use it any more when this returns.
    ///
    /// Called at most once, also when the memory is unpinned, with the reservation lock of the DMA
    /// buffer held; it may sleep.
    fn revoke(&mut self);
}

/// Pinned memory, with what the device has of it, `H`.
///
/// What is of a DMA buffer ends with the binding of the device, even if this is leaked.
pub(crate) struct Revocable<'a, H: Hold>(Place<'a, H>);

/// Where it is.
enum Place<'a, H: Hold> {
    /// Nobody takes it back.
    Process(Pin<KBox<Pinned<'a, H>>>),
    /// It is taken back by [`Pinned::revoked`].
    DmaBuf(Attached<'a, Pinned<'a, H>>),
}

/// Pinned memory in its place.
#[pin_data]
struct Pinned<'a, H> {
    // Goes first: its end is the end of calls of `revoked`.
    umem: Umem<'a>,
    #[pin]
    state: Mutex<State<H>>,
}

/// What there is to know of it.
struct State<H> {
    hold: H,
    is_revoked: bool,
}

impl<'a, H: Hold + 'a> Revocable<'a, H> {
    /// Takes memory that nobody takes back.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn of_process(umem: Umem<'a>, hold: H) -> Result<Self> {
        let pinned = KBox::pin_init(Pinned::new(umem, hold), GFP_KERNEL)?;
        Ok(Self(Place::Process(pinned)))
    }

    /// Takes memory of a DMA buffer.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if it was taken back meanwhile.
    /// - [`ENOMEM`] if there is no memory.
    ///
    /// # Safety
    ///
    /// The memory must be of [`Umem::get_dmabuf`].
    pub(super) unsafe fn of_dmabuf(
        umem: Umem<'a>,
        hold: H,
        host: Attachment<'a, 'a>,
    ) -> Result<Self> {
        let pinned = Attached::new(host, Pinned::new(umem, hold))?;
        let this: *const Pinned<'a, H> = &*pinned;
        let revoked = Pinned::<'a, H>::revoked;
        // SAFETY: The caller guarantees where the memory is from. `pinned` does not move, and drops the
        // memory before all that `revoked` uses, at the latest when the device is unbound, until
        // when that is valid.
        unsafe { pinned.umem.on_revocation(revoked, this.cast_mut().cast()) }?;
        Ok(Self(Place::DmaBuf(pinned)))
    }

    /// Has nobody take the memory back as long as this is kept.
    pub(crate) fn keep(&self) -> Kept<'_, 'a, H> {
        let pinned = match &self.0 {
            Place::Process(pinned) => pinned,
            Place::DmaBuf(pinned) => pinned.deref(),
        };
        Kept {
            state: pinned.state.lock(),
            umem: &pinned.umem,
            can_be_revoked: matches!(self.0, Place::DmaBuf(_)),
        }
    }
}

impl<'a, H: Hold> Pinned<'a, H> {
    fn new(umem: Umem<'a>, hold: H) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            umem,
            state <- new_mutex!(State {
                hold,
                is_revoked: false,
            }),
        }? Error)
    }

    /// Called by the core when the memory is taken back.
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

/// Memory that is not taken back for now. Who wants it back waits.
pub(crate) struct Kept<'m, 'a, H: Hold> {
    state: MutexGuard<'m, State<H>>,
    umem: &'m Umem<'a>,
    can_be_revoked: bool,
}

impl<H: Hold> Kept<'_, '_, H> {
    /// Returns what the device has of the memory.
    pub(crate) fn hold(&mut self) -> &mut H {
        &mut self.state.hold
    }

    /// Returns whether someone may take the memory back.
    pub(crate) fn can_be_revoked(&self) -> bool {
        self.can_be_revoked
    }

    /// Divides the memory into pages of the largest of `page_sizes`, of which each is a bit, that it can
    /// be divided into if the device refers to its first byte as `iova`. `None` if there is none.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the memory was taken back.
    pub(crate) fn divide(&mut self, page_sizes: u64, iova: u64) -> Result<Option<Pages<'_>>> {
        if self.state.is_revoked {
            return Err(ENODEV);
        }
        // SAFETY: The lock is held, so that nobody else divides the memory. It was not taken back, and
        // is not before the lock is released, which the pages borrow.
        Ok(unsafe { self.umem.divide(page_sizes, iova) })
    }
}
