// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Protection domains.

use kernel::prelude::*;

use super::{
    abi::AllocPdResp,
    Efa, //
};
use crate::rdma::Udata;

/// A protection domain.
pub(crate) struct Pd {
    /// The number that the device has given it.
    pub(super) pdn: u16,
}

/// Creates a protection domain.
///
/// # Errors
///
/// Those of the admin command and of [`Udata`].
pub(super) fn alloc(efa: &Efa, udata: &Udata<'_>) -> Result<Pd> {
    udata.expect_no_input()?;

    let pdn = efa.admin.alloc_pd()?;

    let response = AllocPdResp {
        pdn,
        ..AllocPdResp::default()
    };
    udata.respond(&response.encode()).inspect_err(|_| {
        // The error to return is the first one.
        let _ = efa.admin.dealloc_pd(pdn);
    })?;

    Ok(Pd { pdn })
}

/// Destroys a protection domain. A device that refuses keeps a number that no one uses.
pub(super) fn dealloc(efa: &Efa, pd: Pd) {
    let _ = efa.admin.dealloc_pd(pd.pdn);
}
