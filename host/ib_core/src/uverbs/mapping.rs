// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Mappings of programs, and accesses through them.

use std::rc::Rc;

use kernel::{
    bindings,
    error::{code::EFAULT, Result},
    sim,
};

use super::File;
use crate::{ffi, mmap};

/// An area that a program has mapped.
pub(crate) struct Vma {
    /// Distinguishes mappings of one file.
    pub(crate) number: u64,
    /// Its start: a physical address in a BAR, or an address of host memory.
    pub(crate) start: u64,
    pub(crate) length: usize,
    /// The entry of a BAR mapping, which has a reference to it. A mapping of pages has references
    /// to the pages instead.
    pub(crate) entry: Option<*mut ffi::rdma_user_mmap_entry>,
}

impl Vma {
    /// Ends the mapping.
    pub(crate) fn end(self) {
        match self.entry {
            // SAFETY: The mapping gives up its reference to the entry.
            Some(entry) => unsafe { mmap::rdma_user_mmap_entry_put(entry) },
            // SAFETY: The mapping gives up its reference to the pages, at whose first byte it starts.
            None => unsafe { bindings::put_pages(self.start as *mut _) },
        }
    }
}

/// A mapping of a program. Its drop unmaps it.
///
/// Accesses fail with `EFAULT` where the kernel would send SIGBUS: after the removal of the device.
pub struct Mapping {
    pub(super) file: Rc<File>,
    pub(super) number: u64,
}

impl Mapping {
    /// Returns the address of `length` bytes at an offset.
    fn place(&self, offset: usize, length: usize) -> Result<u64> {
        let vmas = self.file.vmas.borrow();
        let vma = vmas
            .iter()
            .find(|vma| vma.number == self.number)
            .ok_or(EFAULT)?;
        match offset.checked_add(length) {
            Some(end) if end <= vma.length => Ok(vma.start + offset as u64),
            _ => Err(EFAULT),
        }
    }

    /// Writes 32 bits, such as a doorbell.
    ///
    /// # Errors
    ///
    /// - [`EFAULT`] if the offset is not mapped, or not any more.
    pub fn write32(&self, offset: usize, value: u32) -> Result {
        let place = self.place(offset, 4)?;
        let Some((bar, place)) = bindings::bar_of(place) else {
            return self.write(offset, &value.to_le_bytes());
        };
        bindings::write_bar_of_user(bar, place, value);
        Ok(())
    }

    /// Copies bytes to memory of the host, or to a BAR that is memory.
    ///
    /// # Errors
    ///
    /// As [`Mapping::write32`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        sim::point();
        let memory = self.memory(offset, bytes.len())?;
        // SAFETY: `memory` has checked that the bytes are mapped, and the mapping keeps them.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
        Ok(())
    }

    /// Copies bytes from memory of the host, or from a BAR that is memory.
    ///
    /// # Errors
    ///
    /// As [`Mapping::write32`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result {
        sim::point();
        let memory = self.memory(offset, bytes.len())?;
        // SAFETY: `memory` has checked that the bytes are mapped, and the mapping keeps them.
        unsafe { core::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn memory(&self, offset: usize, length: usize) -> Result<*mut u8> {
        let place = self.place(offset, length)?;
        let Some((bar, offset)) = bindings::bar_of(place) else {
            return Ok(place as *mut u8);
        };
        let memory = sim::device(|device| device.memory(bar)).flatten();
        memory
            .map(|memory| memory.wrapping_add(offset as usize))
            .ok_or(EFAULT)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let found = {
            let mut vmas = self.file.vmas.borrow_mut();
            let place = vmas.iter().position(|vma| vma.number == self.number);
            place.map(|place| vmas.remove(place))
        };
        if let Some(vma) = found {
            vma.end();
        }
    }
}
