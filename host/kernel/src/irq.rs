// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interrupts.

use core::marker::PhantomData;

/// What a handler with a thread returns.
#[derive(Clone, Copy)]
pub enum ThreadedIrqReturn {
    /// The interrupt was not its device's.
    None = 0,
    /// The interrupt was handled.
    Handled = 1,
    /// The thread is to run.
    WakeThread = 2,
}

/// An interrupt that may be requested.
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
