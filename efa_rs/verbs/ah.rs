// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.

use kernel::prelude::*;

use super::{
    abi::CreateAhResp,
    pd::Pd,
    Efa, //
};
use crate::{
    rdma::{
        self,
        AhInitAttr,
        Udata, //
    },
    sys::errno::eopnotsupp,
};

/// An address handle.
pub(crate) struct Ah {
    /// The number that the device has given it.
    ah: u16,
}

#[vtable]
impl<'a> rdma::AddressHandle<Efa<'a>, Pd> for Ah {
    fn create(
        device: &rdma::Device<Efa<'a>>,
        pd: &Pd,
        attr: &AhInitAttr,
        udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::create_at(efa, pd, attr, udata).inspect_err(|_| efa.errors.create_ah_err.increment())
    }

    /// A device that refuses keeps a number that no one uses.
    fn destroy(&self, device: &rdma::Device<Efa<'a>>, pd: &Pd) -> Result {
        let _ = device.data().admin().destroy_ah(pd.pdn, self.ah);
        Ok(())
    }
}

impl Ah {
    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the caller may not sleep, which admin commands do.
    /// - Those of the admin command and of [`Udata`].
    fn create_at(efa: &Efa<'_>, pd: &Pd, attr: &AhInitAttr, udata: &Udata<'_>) -> Result<Self> {
        if !attr.sleepable {
            return Err(eopnotsupp());
        }
        udata.expect_no_input()?;

        let ah = efa.admin().create_ah(pd.pdn, attr.dgid)?;

        if udata.wants_output() {
            let response = CreateAhResp {
                efa_address_handle: ah,
                ..CreateAhResp::default()
            };
            udata.respond(&response.encode()).inspect_err(|_| {
                // The error to return is the first one.
                let _ = efa.admin().destroy_ah(pd.pdn, ah);
            })?;
        }

        Ok(Self { ah })
    }
}
