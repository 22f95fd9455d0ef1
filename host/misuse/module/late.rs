// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver that attaches a value to its device, and disables an interrupt, while the device is unbound. It leaks a
//! health reporter.

use core::pin::Pin;
use std::{
    cell::Cell,
    sync::OnceLock, //
};

use kernel::{
    device::Core,
    irq::ThreadedIrqReturn,
    pci::{
        self,
        IrqType,
        IrqTypes, //
    },
    prelude::*,
    sync::Arc, //
};

use crate::sys::{
    self,
    attach::{
        Attached,
        Binding, //
    },
    devlink::{
        Health,
        Reporter,
        Value, //
    },
    irq,
    pci_driver::Wakers, //
};

std::thread_local! {
    /// Number of attached values that were dropped.
    static DROPPED: Cell<u32> = const { Cell::new(0) };
    /// Error of attaching a value to a device that is being unbound.
    static LATE: Cell<Option<Error>> = const { Cell::new(None) };
}

/// Returns the number of attached values that were dropped.
pub fn dropped() -> u32 {
    DROPPED.get()
}

/// Returns the error of attaching a value to a device that is being unbound.
pub fn late_error() -> Option<Error> {
    LATE.get()
}

/// The device id.
pub const DEVICE: u32 = 1;

kernel::pci_device_table!(
    PCI_TABLE,
    (),
    [(pci::DeviceId::from_id(pci::Vendor::AMAZON, DEVICE), ())]
);

/// A value that counts its drop.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + 1);
    }
}

/// A handler of interrupts.
struct Handler;

#[vtable]
impl irq::Handler for Handler {
    fn handle(&self) -> ThreadedIrqReturn {
        ThreadedIrqReturn::Handled
    }
}

/// A device without values.
struct Silent;

impl Health for Silent {
    const NAME: &'static CStr = c"silent";
    const DIAGNOSIS: usize = 0;

    fn values(&self) -> impl IntoIterator<Item = (&'static CStr, Value)> {
        None
    }
}

/// A value whose drop attaches another one, and disables an interrupt that was released before.
struct Rebinding<'bound>(
    Binding<'bound>,
    Arc<OnceLock<irq::Registration<'bound>>>,
    Counted,
);

impl Drop for Rebinding<'_> {
    fn drop(&mut self) {
        let line = self.1.get().expect("an interrupt");
        line.disable();
        assert!(!line.check(Some(1), || unreachable!("a lost interrupt")));
        assert!(line.check(Some(1), || unreachable!("the line is released")));
        let attached = Attached::new(self.0, Ok::<_, Error>(Counted));
        LATE.set(attached.map(Attached::leave).err());
    }
}

/// The driver.
pub(crate) struct Late;

impl sys::sysfs::File for Late {
    const NAME: &'static CStr = c"late";
    const TEXT: &'static CStr = c"late";
}

impl sys::pci_driver::Driver for Late {
    type Data<'bound> = ();
    type File = Self;
    const ID_TABLE: pci::IdTable<()> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        binding: Binding<'bound>,
        wakers: Wakers,
    ) -> impl PinInit<(), Error> + 'bound {
        let probe = move || {
            let silent = Arc::new(Silent, GFP_KERNEL)?;
            core::mem::forget(Reporter::new(binding, silent, &wakers.work)?);
            let line = Arc::new(OnceLock::new(), GFP_KERNEL)?;
            let value = Rebinding(binding, line.clone(), Counted);
            Attached::new(binding, Ok::<_, Error>(value))?.leave();
            let types = IrqTypes::default().with(IrqType::MsiX);
            let vectors = Arc::new(pdev.alloc_irq_vectors(1, 1, types)?, GFP_KERNEL)?;
            let name = fmt!("late");
            let registration = irq::Registration::new(binding, &vectors, 0, name, 0, Handler)?;
            let _ = line.set(registration);
            Ok(())
        };
        probe()
    }

    fn start(_this: Pin<&()>) -> Result {
        Ok(())
    }

    fn work(_this: Pin<&()>) {}

    fn monitor(_this: Pin<&()>) {}

    fn unbind(_this: Pin<&()>, end_work: &dyn Fn()) {
        end_work();
    }

    fn shutdown(_this: Pin<&()>) {}

    fn quiesce(_this: Pin<&()>) {}

    fn restart(_this: Pin<&()>) {}

    fn lost(_this: Pin<&()>) {}
}
