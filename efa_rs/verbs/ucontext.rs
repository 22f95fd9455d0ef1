// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Contexts: one for each process that has the device open.

use kernel::prelude::*;

use super::{
    abi,
    Efa,
    Verbs, //
};
use crate::{
    hw::admin::uar::{
        AllocUar,
        DeallocUar, //
    },
    rdma::{
        self,
        Udata, //
    }, //
};

/// A context.
pub(crate) struct Ucontext {
    /// Number of the user access region with the process's doorbells.
    pub(super) uar: u16,
}

#[vtable]
impl<'a> rdma::Ucontext<'a, Verbs> for Ucontext {
    fn alloc(device: &rdma::Device<Efa<'a>>, udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::alloc_at(efa, udata).inspect_err(|_| efa.errors.alloc_ucontext_err.increment())
    }

    /// Frees the user access region. If the device refuses, its number stays allocated, but unused.
    fn dealloc(&self, device: &rdma::Device<Efa<'a>>) {
        let efa = device.data();
        let command = DeallocUar { uar: self.uar };
        efa.session.epoch().settle(efa.admin().execute(&command));
    }
}

impl Ucontext {
    /// Creates a context.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the userspace library does not support limits that the device has.
    /// - Those of the admin command and of [`Udata`].
    fn alloc_at(efa: &Efa<'_>, udata: &Udata<'_>) -> Result<Self> {
        let queues = &efa.attributes().queues;

        // Other flags, of older or newer libraries, are ignored. The response has the driver's own.
        let supported = udata.input::<abi::AllocUcontextCmd>(0)?.supported_caps;
        if queues.max_tx_batch != 0 && supported & abi::SUPP_CAPS_TX_BATCH == 0
            || queues.min_sq_depth != 0 && supported & abi::SUPP_CAPS_MIN_SQ_WR == 0
        {
            return Err(EOPNOTSUPP);
        }

        let uar = efa.admin().execute(&AllocUar {})?.uar;

        let response = abi::AllocUcontextResp {
            cmds_supp_udata_mask: abi::UDATA_QUERY_DEVICE | abi::UDATA_CREATE_AH,
            sub_cqs_per_cq: queues.sub_cqs_per_cq,
            // CAST: At most `u16::MAX`, see `Attributes`.
            inline_buf_size: queues.inline_buf_size as u16,
            max_llq_size: queues.max_llq_size,
            max_tx_batch: queues.max_tx_batch,
            min_sq_wr: queues.min_sq_depth,
            inline_buf_size_ex: efa.attributes().more_queues.inline_buf_size_ex,
            ..abi::AllocUcontextResp::default()
        };
        udata.respond(&response).inspect_err(|_| {
            let result = efa.admin().execute(&DeallocUar { uar });
            efa.session.epoch().settle(result);
        })?;

        Ok(Self { uar })
    }
}
