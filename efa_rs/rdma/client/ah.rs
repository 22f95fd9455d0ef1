// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    device::{
        Device,
        Owned, //
    },
    object::{
        Object,
        Raw, //
    },
    pd::Pd,
};
use crate::{
    ffi,
    rdma::Gid, //
};

/// The address of a peer, in a protection domain.
pub(crate) struct AddressHandle<'a>(Owned<'a, ffi::ib_ah, Arc<Pd<'a>>>);

impl<'a> AddressHandle<'a> {
    /// Creates an address handle for a peer's GID, from a port's first GID. May sleep.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such port.
    /// - `EOPNOTSUPP` if the layer does not support the port's type of addresses.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the provider.
    pub(crate) fn new(pd: &Arc<Pd<'a>>, port: u32, dgid: &Gid) -> Result<Arc<Self>> {
        let device = pd.device();
        let attr = &mut ffi::rdma_ah_attr::default();
        attr.type_ = address_type(device, port)?;
        attr.port_num = port;
        // CAST: The flag fits in a `u8`.
        attr.ah_flags = ffi::ib_ah_flags_IB_AH_GRH as u8;
        attr.grh.hop_limit = 1;
        // SAFETY: All variants of `ib_gid` are 16 bytes, as is `Gid`.
        unsafe { (&raw mut attr.grh.dgid).cast::<Gid>().write(*dgid) };

        let create = |pd: &Arc<Pd<'a>>| {
            let flags = ffi::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE;
            // SAFETY: The domain exists, and the attributes are valid.
            let raw = unsafe { ffi::rdma_create_ah(pd.as_raw(), attr, flags) };
            Raw::created(raw)
        };
        // SAFETY: The handle is new, and needs nothing but the domain.
        let owned = unsafe { Owned::new(device, pd.clone(), Object::Ah, create) }?;
        Ok(Arc::new(Self(owned), GFP_KERNEL)?)
    }

    /// Returns the core's structure.
    pub(super) fn as_raw(&self) -> *mut ffi::ib_ah {
        self.0.as_ptr()
    }

    /// Returns the protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd<'a>> {
        &self.0
    }
}

/// Returns the type of a port's addresses, like the core's `rdma_ah_find_type`. Fails for types
/// whose attributes this layer can't fill.
fn address_type(device: &Device, port: u32) -> Result<ffi::rdma_ah_attr_type> {
    let raw = device.as_raw();
    // SAFETY: The device is registered, so its number of ports does not change.
    let ports = unsafe { (*raw).phys_port_cnt };
    if port == 0 || port > ports {
        return Err(EINVAL);
    }
    // SAFETY: The device is registered, so its port data exists.
    let port_data = unsafe { (*raw).port_data };
    // SAFETY: The port exists. Its number, counted from 1, is the index of its data.
    let data = unsafe { port_data.add(port as usize) };
    // SAFETY: The data is that of an existing port, whose capabilities do not change.
    let protocols = unsafe { (*data).immutable.core_cap_flags };
    match protocols
        & (ffi::RDMA_CORE_CAP_PROT_IB
            | ffi::RDMA_CORE_CAP_PROT_ROCE
            | ffi::RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP)
    {
        0 => Ok(ffi::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_UNDEFINED),
        ffi::RDMA_CORE_CAP_PROT_IB => Ok(ffi::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB),
        _ => Err(EOPNOTSUPP),
    }
}
