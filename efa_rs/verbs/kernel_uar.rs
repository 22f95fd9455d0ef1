// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What clients in the kernel share: the user access region of their doorbells.

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

/// The user access region of the kernel, once a client needs it.
#[pin_data]
pub(super) struct KernelUar {
    #[pin]
    uar: Mutex<Option<u16>>,
}

impl KernelUar {
    /// Makes one that the device does not have yet.
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

    /// Returns its number. The device has it until the session ends.
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
