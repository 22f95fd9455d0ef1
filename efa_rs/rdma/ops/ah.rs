// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of address handles.

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::Ops;
use crate::{
    ffi,
    rdma::{
        ah::{
            AddressHandle,
            AhInitAttr, //
        },
        object,
        provider::Provider,
        udata::Udata, //
    },
};

/// An address handle with the provider's data.
pub(super) type Object<P> = ObjectOf<<P as Provider>::Ah<'static>>;

/// An address handle with the data `T`.
type ObjectOf<T> = object::Object<ffi::ib_ah, (), T>;

impl<P: Provider> Ops<P> {
    pub(super) extern "C" fn create_ah(
        ah: *mut ffi::ib_ah,
        init_attr: *mut ffi::rdma_ah_init_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered and the domain created. It has
            // allocated the object for this call, of the size that the table gives.
            unsafe {
                let device = Self::device((*ah).device);
                let attr = AhInitAttr::from_raw(&*(*init_attr).ah_attr, (*init_attr).flags);
                let udata = Udata::from_raw(udata);
                let pd = Self::pd((*ah).pd);
                let init = <P::Ah<'_> as AddressHandle<_, _>>::create(device, pd, &attr, &udata);
                ObjectOf::init(ah, init)?;
            }
            Ok(0)
        })
    }

    pub(super) extern "C" fn destroy_ah(ah: *mut ffi::ib_ah, flags: u32) -> c_int {
        from_result(|| {
            if flags & ffi::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE == 0 {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: By the core's promise the object was created by `create_ah`, and is not used after this
            // call.
            unsafe {
                let device = Self::device((*ah).device);
                ObjectOf::<P::Ah<'_>>::data(ah).destroy(device, Self::pd((*ah).pd));
                ObjectOf::<P::Ah<'_>>::drop_data(ah);
            }
            Ok(0)
        })
    }
}
