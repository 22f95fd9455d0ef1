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
        AhAttr,
        Udata, //
    },
    sys::errno::eopnotsupp,
};

/// An address handle.
pub(crate) struct Ah {
    /// The number that the device has given it.
    ah: u16,
}

/// Creates an address handle.
///
/// # Errors
///
/// - `EOPNOTSUPP` if the caller may not sleep, which admin commands do.
/// - Those of the admin command and of [`Udata`].
pub(super) fn create(efa: &Efa, pd: &Pd, attr: &AhAttr, udata: &Udata<'_>) -> Result<Ah> {
    if !attr.sleepable {
        return Err(eopnotsupp());
    }
    udata.expect_no_input()?;

    let ah = efa.admin.create_ah(pd.pdn, attr.dgid)?;

    if udata.wants_output() {
        let response = CreateAhResp {
            efa_address_handle: ah,
            ..CreateAhResp::default()
        };
        udata.respond(&response.encode()).inspect_err(|_| {
            // The error to return is the first one.
            let _ = efa.admin.destroy_ah(pd.pdn, ah);
        })?;
    }

    Ok(Ah { ah })
}

/// Destroys an address handle. A device that refuses keeps a number that no one uses.
pub(super) fn destroy(efa: &Efa, pd: &Pd, ah: Ah) {
    let _ = efa.admin.destroy_ah(pd.pdn, ah.ah);
}
