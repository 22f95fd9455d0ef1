// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.

use kernel::{
    error::from_result,
    ffi::c_int, //
};

use super::{
    attr::Gid,
    device::provider,
    object::Object,
    ops::{
        Ops,
        Pd, //
    },
    provider::Provider,
    udata::Udata, //
};
use crate::{
    ffi,
    sys::errno::eopnotsupp, //
};

/// An address handle with its provider's data.
pub(super) type Ah<T> = Object<ffi::ib_ah, <T as Provider>::Ah>;

/// Where an address handle is to lead.
pub(crate) struct AhAttr {
    /// Address of the peer.
    pub(crate) dgid: Gid,
    /// Whether the caller may sleep.
    pub(crate) sleepable: bool,
}

impl<T: Provider> Ops<T> {
    pub(super) extern "C" fn create_user_ah(
        ah: *mut ffi::ib_ah,
        init_attr: *mut ffi::rdma_ah_init_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: See the documentation of `ops`. The core has allocated the object for this
            // call, of the size that the table gives.
            unsafe {
                let attr = AhAttr {
                    dgid: *(*(*init_attr).ah_attr).grh.dgid.raw.as_ref(),
                    sleepable: (*init_attr).flags
                        & ffi::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE
                        != 0,
                };
                let data = provider::<T>((*ah).device).create_ah(
                    Pd::<T>::data((*ah).pd),
                    &attr,
                    &Udata::from_raw(udata),
                )?;
                Ah::<T>::init(ah, data);
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn destroy_ah(ah: *mut ffi::ib_ah, flags: u32) -> c_int {
        from_result(|| {
            if flags & ffi::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE == 0 {
                return Err(eopnotsupp());
            }
            // SAFETY: See the documentation of `ops`. The object was created by `create_user_ah`,
            // and the core frees it after this call.
            unsafe {
                provider::<T>((*ah).device).destroy_ah(Pd::<T>::data((*ah).pd), Ah::<T>::take(ah));
            }
            Ok(0)
        })
    }
}
