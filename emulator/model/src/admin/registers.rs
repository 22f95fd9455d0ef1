// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers that only hold a value that the driver wrote.

use efa_hw::regs::Register;

/// A bus address that is written in two halves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Address(u64);

impl Address {
    fn set_low(&mut self, half: u32) {
        self.0 = (self.0 & !u64::from(u32::MAX)) | u64::from(half);
    }

    fn set_high(&mut self, half: u32) {
        self.0 = (u64::from(half) << 32) | (self.0 & u64::from(u32::MAX));
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// Values of these registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) aq_base: Address,
    pub(crate) acq_base: Address,
    pub(crate) aenq_base: Address,
    pub(crate) mmio_resp: Address,
}

impl Registers {
    /// Stores half of an address. Returns false if the register does not hold one.
    pub(crate) fn write(&mut self, register: Register, value: u32) -> bool {
        match register {
            Register::AqBaseLo => self.aq_base.set_low(value),
            Register::AqBaseHi => self.aq_base.set_high(value),
            Register::AcqBaseLo => self.acq_base.set_low(value),
            Register::AcqBaseHi => self.acq_base.set_high(value),
            Register::AenqBaseLo => self.aenq_base.set_low(value),
            Register::AenqBaseHi => self.aenq_base.set_high(value),
            Register::MmioRespLo => self.mmio_resp.set_low(value),
            Register::MmioRespHi => self.mmio_resp.set_high(value),
            _ => return false,
        }
        true
    }
}
