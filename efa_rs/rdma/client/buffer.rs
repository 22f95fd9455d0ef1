// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory buffers for work requests.

use kernel::{
    dma::Coherent,
    io::{
        io_project,
        Io, //
    },
    prelude::*,
    sync::Arc, //
};

use super::pd::Pd;
use crate::{
    ffi, //
};

/// Coherent memory that work requests of a protection domain may refer to.
///
/// The device, for itself or a peer, may write to it at any time, so its content is only copied.
/// Each posted work request and each region holds a reference to its buffer.
pub(crate) struct Buffer<'a> {
    memory: Coherent<[u8]>,
    pd: Arc<Pd<'a>>,
}

impl<'a> Buffer<'a> {
    /// Allocates zeroed memory that starts at a page boundary.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if `size` is 0, or exceeds the 32-bit length of a work request.
    /// - [`ENOMEM`] if there is no memory.
    /// - `EOPNOTSUPP` if the device does no DMA.
    pub(crate) fn new(pd: &Arc<Pd<'a>>, size: usize) -> Result<Arc<Self>> {
        let parent = pd.device().dma_device().ok_or(EOPNOTSUPP)?;
        if u32::try_from(size).is_err() {
            return Err(EINVAL);
        }
        let buffer = Self {
            memory: Coherent::zeroed_slice(parent, size, GFP_KERNEL)?,
            pd: pd.clone(),
        };
        Ok(Arc::new(buffer, GFP_KERNEL)?)
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.memory.len()
    }

    /// Copies bytes out of the buffer, from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`ERANGE`] if the range exceeds the buffer.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result {
        let end = offset.checked_add(bytes.len()).ok_or(ERANGE)?;
        io_project!(&self.memory, [try: offset..end]).copy_to_slice(bytes);
        Ok(())
    }

    /// Copies bytes into the buffer, from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`ERANGE`] if the range exceeds the buffer.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        let end = offset.checked_add(bytes.len()).ok_or(ERANGE)?;
        io_project!(&self.memory, [try: offset..end]).copy_from_slice(bytes);
        Ok(())
    }

    /// Returns the protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd<'a>> {
        &self.pd
    }

    /// Returns the DMA address of the first byte.
    pub(super) fn dma_address(&self) -> u64 {
        self.memory.dma_address()
    }
}

/// Part of a buffer.
///
/// # Invariants
///
/// The range is within the buffer.
#[derive(Clone, Copy)]
pub(crate) struct Slice<'w, 'a> {
    buffer: &'w Arc<Buffer<'a>>,
    offset: usize,
    length: u32,
}

impl<'w, 'a> Slice<'w, 'a> {
    /// Makes a slice of `length` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`ERANGE`] if the range exceeds the buffer.
    pub(crate) fn new(buffer: &'w Arc<Buffer<'a>>, offset: usize, length: u32) -> Result<Self> {
        match offset.checked_add(length as usize) {
            // INVARIANT: The guard has checked that the range is within the buffer.
            Some(end) if end <= buffer.size() => Ok(Self {
                buffer,
                offset,
                length,
            }),
            _ => Err(ERANGE),
        }
    }

    /// Returns the buffer.
    pub(super) fn buffer(&self) -> &'w Arc<Buffer<'a>> {
        self.buffer
    }

    /// Returns the DMA address of the first byte, and the length in bytes.
    pub(super) fn range(&self) -> (u64, u32) {
        // CAST: `usize` has at most 64 bits.
        (self.buffer.dma_address() + self.offset as u64, self.length)
    }

    /// Returns the scatter-gather element of a work request.
    pub(super) fn sge(&self) -> ffi::ib_sge {
        let (addr, length) = self.range();
        ffi::ib_sge {
            addr,
            length,
            lkey: self.buffer.pd.local_dma_lkey(),
        }
    }
}
