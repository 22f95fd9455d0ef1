// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use kernel::prelude::*;

use super::{
    abi::AllocPdResp,
    Efa,
    Verbs, //
};
use crate::{
    hw::admin::pd::{
        AllocPd,
        DeallocPd, //
    },
    rdma::{
        self,
        Udata, //
    }, //
};

/// A protection domain.
pub(crate) struct Pd {
    /// The number that the device has assigned to the domain.
    pub(super) pdn: u16,
}

#[vtable]
impl<'a> rdma::ProtectionDomain<'a, Verbs> for Pd {
    fn alloc(device: &rdma::Device<Efa<'a>>, udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::alloc_at(efa, udata).inspect_err(|_| efa.errors.alloc_pd_err.increment())
    }

    /// Frees the domain. If the device refuses, its number stays allocated, but unused.
    fn dealloc(&self, device: &rdma::Device<Efa<'a>>) {
        let efa = device.data();
        efa.session.ah_cache().forget(self.pdn);
        let command = DeallocPd { pd: self.pdn };
        efa.session.epoch().settle(efa.admin().execute(&command));
    }
}

impl Pd {
    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// Those of the admin command and of [`Udata`].
    fn alloc_at(efa: &Efa<'_>, udata: &Udata<'_>) -> Result<Self> {
        udata.expect_no_input()?;

        let pdn = efa.admin().execute(&AllocPd {})?.pd;

        let response = AllocPdResp {
            pdn,
            ..AllocPdResp::default()
        };
        udata.respond(&response).inspect_err(|_| {
            let result = efa.admin().execute(&DeallocPd { pd: pdn });
            efa.session.epoch().settle(result);
        })?;

        Ok(Self { pdn })
    }
}
