// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver that attaches a value to its device while the device is unbound.

use core::pin::Pin;
use std::cell::Cell;

use kernel::{
    device::Core,
    pci,
    prelude::*, //
};

use crate::sys::{
    self,
    attach::{
        Attached,
        Binding, //
    },
    pci::Wakers, //
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

/// A value whose drop attaches another one.
struct Rebinding<'bound>(Binding<'bound>, Counted);

impl Drop for Rebinding<'_> {
    fn drop(&mut self) {
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

impl sys::pci::Driver for Late {
    type Data<'bound> = ();
    type File = Self;
    const ID_TABLE: pci::IdTable<()> = &PCI_TABLE;

    fn probe<'bound>(
        _pdev: &'bound pci::Device<Core<'_>>,
        binding: Binding<'bound>,
        _wakers: Wakers,
    ) -> impl PinInit<(), Error> + 'bound {
        let value = Rebinding(binding, Counted);
        Attached::new(binding, Ok::<_, Error>(value)).map(Attached::leave)
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
