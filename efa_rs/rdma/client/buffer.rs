// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of work requests.

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
/// The device, or a peer of it, may write to it at any time, so its content is only copied. Every posted work
/// request keeps its buffer, and so does every region.
pub(crate) struct Buffer<'a> {
    memory: Coherent<[u8]>,
    pd: Arc<Pd<'a>>,
}

impl<'a> Buffer<'a> {
    /// Allocates zeroed memory, from the start of a page on.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if `size` is 0, or more than a work request can name.
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

    /// Copies bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`ERANGE`] if they end behind the buffer.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result {
        let end = offset.checked_add(bytes.len()).ok_or(ERANGE)?;
        io_project!(&self.memory, [try: offset..end]).copy_to_slice(bytes);
        Ok(())
    }

    /// Copies bytes to it, from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`ERANGE`] if they end behind the buffer.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        let end = offset.checked_add(bytes.len()).ok_or(ERANGE)?;
        io_project!(&self.memory, [try: offset..end]).copy_from_slice(bytes);
        Ok(())
    }

    /// Returns the protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd<'a>> {
        &self.pd
    }

    /// Returns the first address, as the device sees it.
    pub(super) fn dma_address(&self) -> u64 {
        self.memory.dma_address()
    }
}

/// Part of a buffer.
///
/// # Invariants
///
/// It is within the buffer.
#[derive(Clone, Copy)]
pub(crate) struct Slice<'w, 'a> {
    buffer: &'w Arc<Buffer<'a>>,
    offset: usize,
    length: u32,
}

impl<'w, 'a> Slice<'w, 'a> {
    /// Takes `length` bytes of a buffer from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`ERANGE`] if they end behind the buffer.
    pub(crate) fn new(buffer: &'w Arc<Buffer<'a>>, offset: usize, length: u32) -> Result<Self> {
        match offset.checked_add(length as usize) {
            // INVARIANT: The condition of this branch.
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

    /// Returns the first address, as the device sees it, and the length.
    pub(super) fn range(&self) -> (u64, u32) {
        // CAST: An address has 64 bits on every architecture that has RDMA.
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
