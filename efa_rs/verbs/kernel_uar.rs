// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The user access region of doorbells that all clients in the kernel share.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::{
    com::AdminQueue,
    hw::admin::uar::AllocUar, //
};

/// The user access region of the kernel, allocated when a client first needs it.
#[pin_data]
pub(super) struct KernelUar {
    #[pin]
    uar: Mutex<Option<u16>>,
}

impl KernelUar {
    /// Creates the state without a user access region.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                uar <- new_mutex!(None, "efa_kernel_uar"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the region's number; allocates it on first use. It remains until the session ends.
    ///
    /// # Errors
    ///
    /// Those of the admin command.
    pub(super) fn get(&self, admin: &AdminQueue<'_>) -> Result<u16> {
        let mut uar = self.uar.lock();
        if let Some(uar) = *uar {
            return Ok(uar);
        }
        let new = admin.execute(&AllocUar {})?.uar;
        *uar = Some(new);
        Ok(new)
    }
}
