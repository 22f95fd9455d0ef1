// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers that only hold a value that the driver wrote.

use efa_hw::regs::Register;

/// Values of these registers: bus addresses, each of which is written in two halves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) aq_base: u64,
    pub(crate) acq_base: u64,
    pub(crate) aenq_base: u64,
    pub(crate) mmio_resp: u64,
}

impl Registers {
    /// Stores half of an address, if the register holds one.
    pub(crate) fn write(&mut self, register: Register, value: u32) {
        let (address, shift) = match register {
            Register::AqBaseLo => (&mut self.aq_base, 0),
            Register::AqBaseHi => (&mut self.aq_base, 32),
            Register::AcqBaseLo => (&mut self.acq_base, 0),
            Register::AcqBaseHi => (&mut self.acq_base, 32),
            Register::AenqBaseLo => (&mut self.aenq_base, 0),
            Register::AenqBaseHi => (&mut self.aenq_base, 32),
            Register::MmioRespLo => (&mut self.mmio_resp, 0),
            Register::MmioRespHi => (&mut self.mmio_resp, 32),
            _ => return,
        };
        *address = (*address & !(u64::from(u32::MAX) << shift)) | (u64::from(value) << shift);
    }
}
