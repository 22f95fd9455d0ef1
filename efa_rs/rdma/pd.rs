// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    device::Device,
    object::{
        core_object,
        ObjectOf, //
    },
    ops::Ops,
    provider::Provider,
    udata::Udata, //
};
use crate::ffi;

/// A protection domain of a device of the provider `P`.
///
/// # Examples
///
/// A domain with a number, for a device whose data is a counter:
///
/// ```
/// use kernel::rdma::{Device, Provider, ProtectionDomain, Udata};
/// use kernel::sync::atomic::{Atomic, Relaxed};
///
/// struct Pd(u32);
///
/// #[vtable]
/// impl<'a, P: Provider<Data<'a> = Atomic<u32>>> ProtectionDomain<'a, P> for Pd {
///     fn alloc(device: &Device<P::Data<'a>>, udata: &Udata<'_>) -> impl PinInit<Self, Error> {
///         udata.expect_no_input()?;
///         let number = device.data().fetch_add(1, Relaxed);
///         udata.respond(&number.to_ne_bytes())?;
///         Ok(Self(number))
///     }
/// }
/// ```
#[vtable]
pub(crate) trait ProtectionDomain<'a, P: Provider>: Sized + Send + Sync {
    /// Creates a protection domain.
    fn alloc(_device: &Device<P::Data<'a>>, _udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the protection domain.
    fn dealloc(&self, _device: &Device<P::Data<'a>>) {}
}

core_object!(ib_pd, ProtectionDomain, P::Pd<'a>, ());

/// Adds the callbacks of protection domains to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.size_ib_pd = ObjectOf::<P, ffi::ib_pd>::SIZE;
    if P::Pd::HAS_ALLOC {
        ops.alloc_pd = Some(Ops::<P>::alloc_pd);
        ops.dealloc_pd = Some(Ops::<P>::dealloc_pd);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Creates a protection domain.
    ///
    /// `udata` may be null.
    unsafe extern "C" fn alloc_pd(pd: *mut ffi::ib_pd, udata: *mut ffi::ib_udata) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the core has set the device of the new domain.
            let device = unsafe { Self::device_of(pd) };
            // SAFETY: By the contract, `udata` is null or valid during the call.
            let udata = unsafe { Udata::from_raw(udata) };
            let init = P::Pd::alloc(device, &udata);
            // SAFETY: By the contract, the domain is new.
            unsafe { Self::create(pd, init) }
        })
    }

    /// Destroys a protection domain.
    unsafe extern "C" fn dealloc_pd(pd: *mut ffi::ib_pd, _udata: *mut ffi::ib_udata) -> c_int {
        // SAFETY: By the contract, `alloc_pd` has created the domain.
        let (domain, device) = unsafe { Self::object(pd) };
        domain.dealloc(device);
        // SAFETY: By the contract, the domain is not used any more.
        unsafe { Self::destroy(pd) }
    }
}
