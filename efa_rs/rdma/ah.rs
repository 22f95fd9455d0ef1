// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    attr::Gid,
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

/// Attributes of a new address handle.
pub(crate) struct AhInitAttr {
    /// GID of the peer; zeroes unless the caller specifies a global route.
    pub(crate) dgid: Gid,
    /// Whether the caller may sleep.
    pub(crate) sleepable: bool,
}

impl AhInitAttr {
    fn from_raw(attr: &ffi::rdma_ah_attr, flags: u32) -> Self {
        let dgid = (&raw const attr.grh.dgid).cast::<Gid>();
        // SAFETY: All variants of `ib_gid` are 16 bytes, as is `Gid`.
        let dgid = unsafe { dgid.read() };
        Self {
            dgid,
            sleepable: flags & ffi::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0,
        }
    }
}

/// An address handle in a protection domain of the provider `P`.
#[vtable]
pub(crate) trait AddressHandle<'a, P: Provider>: Sized + Send + Sync {
    /// Creates an address handle.
    fn create(
        _device: &Device<P::Data<'a>>,
        _pd: &P::Pd<'a>,
        _attr: &AhInitAttr,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the address handle. The caller may sleep.
    fn destroy(&self, _device: &Device<P::Data<'a>>) {}
}

core_object!(ib_ah, AddressHandle, P::Ah<'a>, ());

/// Adds the callbacks of address handles to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.size_ib_ah = ObjectOf::<P, ffi::ib_ah>::SIZE;
    if P::Ah::HAS_CREATE {
        ops.create_user_ah = Some(Ops::<P>::create_ah);
        ops.destroy_ah = Some(Ops::<P>::destroy_ah);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Creates an address handle.
    ///
    /// `udata` may be null.
    unsafe extern "C" fn create_ah(
        ah: *mut ffi::ib_ah,
        init_attr: *mut ffi::rdma_ah_init_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the core has set the domain of the new handle.
            let pd = unsafe { (*ah).pd };
            // SAFETY: By the contract, `alloc_pd` has created the domain.
            let (pd, device) = unsafe { Self::object(pd) };
            // SAFETY: By the contract, the attributes are valid.
            let init_attr = unsafe { &*init_attr };
            // SAFETY: The core sets the pointer to attributes that are valid during the call.
            let attr = AhInitAttr::from_raw(unsafe { &*init_attr.ah_attr }, init_attr.flags);
            // SAFETY: By the contract, `udata` is null or valid during the call.
            let udata = unsafe { Udata::from_raw(udata) };
            let init = P::Ah::create(device, pd, &attr, &udata);
            // SAFETY: By the contract, the handle is new.
            unsafe { Self::create(ah, init) }
        })
    }

    /// Destroys an address handle, unless the caller can't sleep.
    unsafe extern "C" fn destroy_ah(ah: *mut ffi::ib_ah, flags: u32) -> c_int {
        if flags & ffi::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE == 0 {
            return EOPNOTSUPP.to_errno();
        }
        // SAFETY: By the contract, `create_ah` has created the handle.
        let (handle, device) = unsafe { Self::object(ah) };
        handle.destroy(device);
        // SAFETY: By the contract, the handle is not used any more.
        unsafe { Self::destroy(ah) }
    }
}
