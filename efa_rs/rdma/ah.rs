// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.

use kernel::prelude::*;

use super::{
    attr::Gid,
    device::Device,
    udata::Udata, //
};
use crate::{
    ffi, //
};

/// Where an address handle is to lead.
pub(crate) struct AhInitAttr {
    /// Address of the peer; zeroes unless the caller gives a global route.
    pub(crate) dgid: Gid,
    /// Whether the caller may sleep.
    pub(crate) sleepable: bool,
}

impl AhInitAttr {
    /// Takes what the core passes.
    pub(super) fn from_raw(attr: &ffi::rdma_ah_attr, flags: u32) -> Self {
        // SAFETY: A GID is 16 bytes, however they are looked at.
        let dgid = unsafe { *attr.grh.dgid.raw.as_ref() };
        Self {
            dgid,
            sleepable: flags & ffi::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0,
        }
    }
}

/// An address handle in a protection domain `Pd` of a device with data `D`.
#[vtable]
pub(crate) trait AddressHandle<D, Pd>: Sized + Send + Sync {
    /// Creates an address handle.
    fn create(
        _device: &Device<D>,
        _pd: &Pd,
        _attr: &AhInitAttr,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the address handle. The caller may sleep.
    fn destroy(&self, _device: &Device<D>, _pd: &Pd) {}
}
