// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interrupts.

use core::marker::PhantomData;

/// Return value of a handler with a thread.
#[derive(Clone, Copy)]
pub enum ThreadedIrqReturn {
    /// The interrupt is not from the device.
    None = 0,
    /// The interrupt was handled.
    Handled = 1,
    /// The thread must run.
    WakeThread = 2,
}

/// An interrupt that a driver may request.
pub struct IrqRequest<'a> {
    pub(crate) irq: u32,
    pub(crate) device: PhantomData<&'a ()>,
}

impl IrqRequest<'_> {
    /// Returns the number of the interrupt.
    pub fn irq(&self) -> u32 {
        self.irq
    }
}
