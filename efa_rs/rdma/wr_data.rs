// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What work requests refer to: buffers, inline data, and a region to register.

use core::{
    ptr::NonNull,
    slice, //
};

use kernel::ffi::c_int;

use super::mr_attr::Access;
use crate::ffi;

/// A buffer of a work request.
#[repr(transparent)]
pub(crate) struct Sge(ffi::ib_sge);

impl Sge {
    /// Returns the address: an IOVA of the memory region or, for inline data, a kernel address.
    pub(crate) fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> u32 {
        self.0.length
    }

    /// Returns the local key of the memory region.
    pub(crate) fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// Converts the buffers of a work request.
    ///
    /// # Safety
    ///
    /// `list` must point to `count` buffers that are valid for `'w`, unless there are none.
    pub(super) unsafe fn list<'w>(list: *const ffi::ib_sge, count: c_int) -> &'w [Self] {
        match usize::try_from(count) {
            Ok(count) if count > 0 => {
                // SAFETY: The caller guarantees that the buffers are valid. `Sge` has their layout.
                unsafe { slice::from_raw_parts(list.cast(), count) }
            }
            _ => &[],
        }
    }
}

/// The data of a send work request.
pub(crate) enum SendData<'w> {
    /// Data in memory regions.
    Sges(&'w [Sge]),
    /// Data in kernel memory, which must be copied before the work request is accepted.
    Inline(InlineData<'w>),
}

impl SendData<'_> {
    /// Returns the length in bytes, or `None` if it exceeds 32 bits.
    #[inline]
    pub(crate) fn length(&self) -> Option<u32> {
        let (Self::Sges(sges) | Self::Inline(InlineData(sges))) = self;
        match sges {
            [sge] => Some(sge.length()),
            _ => sges.iter().map(Sge::length).try_fold(0, u32::checked_add),
        }
    }
}

/// Inline data.
///
/// # Invariants
///
/// Addresses and lengths are of memory of the kernel that is valid for `'w`.
pub(crate) struct InlineData<'w>(pub(super) &'w [Sge]);

impl InlineData<'_> {
    /// Copies the data, and returns its length in bytes, or `None` if it does not fit.
    pub(crate) fn copy_to(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut length = 0;
        for sge in self.0 {
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            let (addr, bytes) = (sge.addr() as *const u8, sge.length() as usize);
            let place = buffer.get_mut(length..)?.get_mut(..bytes)?;
            // SAFETY: By the type invariant the data is valid.
            unsafe { addr.copy_to_nonoverlapping(place.as_mut_ptr(), bytes) };
            // It is at most the size of the buffer.
            length = length.wrapping_add(bytes);
        }
        Some(length)
    }
}

/// Function that returns the provider's data of a memory region.
pub(super) type MrOf<'w, Mr> = unsafe fn(*mut ffi::ib_mr) -> &'w Mr;

/// A registration of memory.
///
/// # Invariants
///
/// `mr_of` can be called with the region, which is valid for `'w`.
pub(crate) struct MrRegistration<'w, Mr> {
    pub(super) wr: &'w ffi::ib_reg_wr,
    // No reference, as the core may use other fields of the region at the same time.
    pub(super) region: NonNull<ffi::ib_mr>,
    pub(super) mr_of: MrOf<'w, Mr>,
}

impl<'w, Mr> MrRegistration<'w, Mr> {
    /// Returns the region, which has the pages to register.
    pub(crate) fn mr(&self) -> &'w Mr {
        // SAFETY: By the type invariant the function can be called with this region.
        unsafe { (self.mr_of)(self.wr.mr) }
    }

    /// Returns the local key of the region after the registration, which the client has changed. So it
    /// may be any key.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: By the type invariant the region is valid, and its client does not change it now.
        unsafe { (*self.region.as_ptr()).lkey }
    }

    /// Returns the address by which work requests refer to the first byte.
    pub(crate) fn iova(&self) -> u64 {
        // SAFETY: By the type invariant the region is valid, and its client does not change it now.
        unsafe { (*self.region.as_ptr()).iova }
    }

    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> u64 {
        // SAFETY: By the type invariant the region is valid, and its client does not change it now.
        unsafe { (*self.region.as_ptr()).length }
    }

    /// Returns the allowed uses of the region.
    pub(crate) fn access(&self) -> Access {
        Access::from_raw(self.wr.access)
    }
}
