// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The verbs: the driver's operations for the RDMA core and, through it, for userspace.

mod abi;
mod ah;
#[cfg(kverbs)]
mod attached;
mod bars;
mod comp_cntr;
mod counters;
mod cq;
mod device;
mod dma_buf;
mod errors;
#[cfg(kverbs)]
mod kernel_cq;
#[cfg(kverbs)]
mod kernel_mr;
#[cfg(kverbs)]
mod kernel_qp;
#[cfg(kverbs)]
mod kernel_qp_create;
#[cfg(kverbs)]
mod kernel_qp_sizes;
#[cfg(kverbs)]
mod kernel_uar;
#[cfg(kverbs)]
mod kernel_wqe;
mod mr;
mod mr_request;
mod pd;
mod port;
mod qp;
mod qp_state;
mod ucontext;

use kernel::{
    pci,
    prelude::*,
    sync::Arc, //
};

use crate::com::{
    AdminQueue,
    Attributes,
    Session, //
};

#[cfg(kverbs)]
use self::kernel_uar::KernelUar;

pub(crate) use self::{
    bars::Bars,
    errors::Errors, //
};

/// The provider of EFA devices.
pub(crate) struct Verbs;

/// An EFA device as the RDMA core sees it, for one session.
pub(crate) struct Efa<'bound> {
    session: Arc<Session<'bound>>,
    ids: PciIds,
    bars: Bars<'bound>,
    errors: Arc<Errors>,
    #[cfg(kverbs)]
    kernel_uar: Arc<KernelUar>,
}

/// The PCI ids that the device's attributes report to userspace.
struct PciIds {
    vendor: u16,
    device: u16,
    subsystem_device: u16,
}

impl<'bound> Efa<'bound> {
    /// Creates the verbs of a device. `errors` counts those that fail.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(
        session: Arc<Session<'bound>>,
        bars: Bars<'bound>,
        errors: Arc<Errors>,
    ) -> Result<Self> {
        let pdev: &pci::Device = session.device().pdev;
        Ok(Self {
            ids: PciIds {
                vendor: pdev.vendor_id().as_raw(),
                device: pdev.device_id(),
                subsystem_device: pdev.subsystem_device_id(),
            },
            session,
            bars,
            errors,
            #[cfg(kverbs)]
            kernel_uar: KernelUar::new()?,
        })
    }

    /// Returns the admin queue.
    fn admin(&self) -> &AdminQueue<'bound> {
        self.session.admin()
    }

    /// Returns the attributes of the device.
    fn attributes(&self) -> &Attributes {
        self.session.attributes()
    }
}
