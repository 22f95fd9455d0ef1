// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Coherent memory for DMA.

use core::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crate::{
    alloc::{flags::Flags, AllocError, Counted},
    device::{Bound, Core},
    error::{
        code::{EINVAL, EIO},
        Result,
    },
    page::PAGE_SIZE,
};

/// An address in the address space of the device.
pub type DmaAddress = u64;

/// Attributes of mappings.
pub mod attrs {
    /// Attributes, which the shim ignores.
    #[derive(Clone, Copy)]
    pub struct Attrs(());

    /// Contiguous memory. That of the shim always is.
    pub const DMA_ATTR_FORCE_CONTIGUOUS: Attrs = Attrs(());
}

/// The addresses that a device can access. The shim does not check accesses against them.
#[derive(Clone, Copy)]
pub struct DmaMask(u64);

impl DmaMask {
    /// Returns the mask of `bits` bits.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] unless `bits` is between 1 and 64.
    pub fn try_new(bits: u32) -> Result<Self> {
        match bits {
            1..=63 => Ok(Self((1 << bits) - 1)),
            64 => Ok(Self(u64::MAX)),
            _ => Err(EINVAL),
        }
    }
}

/// A device that accesses memory.
pub trait Device {
    /// Sets the addresses that the device can access.
    ///
    /// # Safety
    ///
    /// The device's mappings must not be used meanwhile.
    ///
    /// # Errors
    ///
    /// - [`EIO`] if the mask has less than 32 bits.
    unsafe fn dma_set_mask_and_coherent(&self, mask: DmaMask) -> Result;

    /// Sets the maximum size of a segment. Does nothing.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn dma_set_max_seg_size(&self, size: u32);
}

impl Device for crate::pci::Device<Core<'_>> {
    unsafe fn dma_set_mask_and_coherent(&self, mask: DmaMask) -> Result {
        if mask.0 < u32::MAX.into() {
            return Err(EIO);
        }
        let dev: &crate::device::Device<Core<'_>> = self.as_ref();
        // SAFETY: The device is valid, and has a mask.
        unsafe { *(*dev.raw()).dma_mask = mask.0 };
        sim::memory::set_mask(mask.0);
        Ok(())
    }

    unsafe fn dma_set_max_seg_size(&self, _: u32) {}
}

/// Memory that device and CPU access coherently.
pub struct Coherent<T: ?Sized> {
    memory: NonNull<T>,
    dma_address: DmaAddress,
    size: usize,
    _counted: Counted,
}

// SAFETY: All tasks are in one thread.
unsafe impl<T: ?Sized> Send for Coherent<T> {}
// SAFETY: As above.
unsafe impl<T: ?Sized> Sync for Coherent<T> {}

impl<T> Coherent<T> {
    /// Allocates and maps zeroed memory.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory.
    pub fn zeroed_slice(
        _: &crate::device::Device<Bound>,
        count: usize,
        flags: Flags,
    ) -> Result<Coherent<[T]>> {
        flags.allow()?;
        let size = count.checked_mul(size_of::<T>()).ok_or(AllocError)?;
        let memory = NonNull::new(sim::memory::allocate(size, PAGE_SIZE)).ok_or(AllocError)?;
        Ok(Coherent {
            memory: NonNull::slice_from_raw_parts(memory.cast(), count),
            dma_address: sim::memory::map(memory.as_ptr(), size),
            size,
            _counted: Counted::new(size),
        })
    }

    /// As [`Coherent::zeroed_slice`], with attributes.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory.
    pub fn zeroed_slice_with_attrs(
        dev: &crate::device::Device<Bound>,
        count: usize,
        flags: Flags,
        _: attrs::Attrs,
    ) -> Result<Coherent<[T]>> {
        Self::zeroed_slice(dev, count, flags)
    }
}

impl<T: ?Sized> Coherent<T> {
    /// Returns the address for the device.
    pub fn dma_address(&self) -> DmaAddress {
        self.dma_address
    }

    /// Returns the address for the CPU.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.memory.as_ptr()
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl<T: ?Sized> crate::io::Io for Coherent<T> {
    fn place(&self) -> crate::io::Place {
        crate::io::Place::Memory(self.memory.as_ptr().cast(), self.size)
    }
}

impl<T: ?Sized> Drop for Coherent<T> {
    fn drop(&mut self) {
        sim::memory::unmap(self.dma_address);
        // SAFETY: The memory was allocated with this size and alignment.
        unsafe { sim::memory::free(self.memory.as_ptr().cast(), self.size, PAGE_SIZE) };
    }
}

/// Coherent memory whose address the device does not have yet.
pub struct CoherentBox<T: ?Sized>(Coherent<T>);

impl<T> CoherentBox<T> {
    /// As [`Coherent::zeroed_slice`].
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory.
    pub fn zeroed_slice(
        dev: &crate::device::Device<Bound>,
        count: usize,
        flags: Flags,
    ) -> Result<CoherentBox<[T]>> {
        Coherent::zeroed_slice(dev, count, flags).map(CoherentBox)
    }
}

impl<T: ?Sized> Deref for CoherentBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The box is the only owner; the memory is zeroed.
        unsafe { self.0.memory.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for CoherentBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: As above.
        unsafe { self.0.memory.as_mut() }
    }
}

impl<T: ?Sized> From<CoherentBox<T>> for Coherent<T> {
    fn from(memory: CoherentBox<T>) -> Self {
        memory.0
    }
}
