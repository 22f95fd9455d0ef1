// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi::CreateAhResp,
    pd::Pd,
    Efa,
    Verbs, //
};
use crate::{
    com::PeerAh,
    rdma::{
        self,
        AhInitAttr,
        Udata, //
    },
};

/// An address handle.
pub(crate) struct Ah {
    /// The device's address handle, which other address handles may share.
    ah: Arc<PeerAh>,
    #[cfg(kverbs)]
    number: u16,
}

#[vtable]
impl<'a> rdma::AddressHandle<'a, Verbs> for Ah {
    fn create(
        device: &rdma::Device<Efa<'a>>,
        pd: &Pd,
        attr: &AhInitAttr,
        udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::create_at(efa, pd, attr, udata).inspect_err(|_| efa.errors.create_ah_err.increment())
    }

    fn destroy(&self, device: &rdma::Device<Efa<'a>>) {
        let session = &device.data().session;
        session.epoch().settle(session.ah_cache().destroy(&self.ah));
    }
}

impl Ah {
    /// Returns the device's number of the address handle, for work requests.
    #[cfg(kverbs)]
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the caller may not sleep, which admin commands do.
    /// - Those of the admin command and of [`Udata`].
    fn create_at(efa: &Efa<'_>, pd: &Pd, attr: &AhInitAttr, udata: &Udata<'_>) -> Result<Self> {
        if !attr.sleepable {
            return Err(EOPNOTSUPP);
        }
        udata.expect_no_input()?;

        let ah_cache = efa.session.ah_cache();
        let (ah, number) = ah_cache.create(pd.pdn, attr.dgid)?;

        let response = CreateAhResp {
            efa_address_handle: number,
            ..CreateAhResp::default()
        };
        udata
            .respond(&response)
            .inspect_err(|_| efa.session.epoch().settle(ah_cache.destroy(&ah)))?;

        Ok(Self {
            ah,
            #[cfg(kverbs)]
            number,
        })
    }
}
