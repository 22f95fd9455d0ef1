// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attacks by guests, by other emulators and by clients of the control socket.

pub mod control;
pub mod control_path;
pub mod peers;
pub mod programs;
mod transport;
mod victims;

/// Bytes of an attack, read as integers. Zeroes follow the last byte.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Reads 32 bits.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte()))
    }

    /// Reads 64 bits.
    pub fn u64(&mut self) -> u64 {
        (u64::from(self.u32()) << 32) | u64::from(self.u32())
    }
}
