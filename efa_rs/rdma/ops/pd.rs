// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of protection domains.

use kernel::{
    error::from_result,
    ffi::c_int, //
};

use super::Ops;
use crate::{
    ffi,
    rdma::{
        object,
        pd::ProtectionDomain,
        provider::Provider,
        udata::Udata, //
    },
};

/// A protection domain with the provider's data.
pub(super) type Object<P> = ObjectOf<<P as Provider>::Pd<'static>>;

/// A protection domain with the data `T`.
type ObjectOf<T> = object::Object<ffi::ib_pd, (), T>;

impl<P: Provider> Ops<P> {
    /// Returns the provider's data of a protection domain.
    ///
    /// # Safety
    ///
    /// `pd` must be one of a device that is registered with the provider `P`, and not be destroyed for
    /// `'o`.
    pub(super) unsafe fn pd<'o, 'a>(pd: *mut ffi::ib_pd) -> &'o P::Pd<'a>
    where
        'a: 'o,
    {
        // SAFETY: The caller guarantees that `alloc_pd` has initialized the data.
        unsafe { ObjectOf::<P::Pd<'a>>::data(pd) }
    }

    pub(super) extern "C" fn alloc_pd(pd: *mut ffi::ib_pd, udata: *mut ffi::ib_udata) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered. It has allocated the object for
            // this call, of the size that the table gives.
            unsafe {
                let device = Self::device((*pd).device);
                let udata = Udata::from_raw(udata);
                let init = <P::Pd<'_> as ProtectionDomain<_>>::alloc(device, &udata);
                ObjectOf::init(pd, init)?;
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn dealloc_pd(pd: *mut ffi::ib_pd, _udata: *mut ffi::ib_udata) -> c_int {
        // SAFETY: By the core's promise the object was created by `alloc_pd`, and is not used after this call.
        unsafe {
            Self::pd(pd).dealloc(Self::device((*pd).device));
            ObjectOf::<P::Pd<'_>>::drop_data(pd);
        }
        0
    }
}
