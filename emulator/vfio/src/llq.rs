// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device's memory, shared with the VMM: its low-latency queues.

use std::{fs::File, io, sync::Arc};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Memory of the device for one VMM.
///
/// A VMM may keep its mapping after another VMM has claimed the function. So each VMM gets memory of its own.
#[derive(Debug)]
pub(crate) struct Llq {
    file: Arc<File>,
    memory: MmapRegion,
}

impl Llq {
    /// # Errors
    ///
    /// No memory is available.
    pub(crate) fn new(size: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = Arc::new(File::from(memfd_create("efa-llq", flags)?));
        file.set_len(size)?;
        // If a VMM could shrink the file, the next access here would raise SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let memory = MmapRegion::from_file(FileOffset::from_arc(Arc::clone(&file), 0), size)
            .map_err(io::Error::other)?;
        Ok(Self { file, memory })
    }

    /// Clears all of the memory to zero, also in existing mappings. The VMM can block this for ever, by the lock of the file's
    /// inode. So only its own thread may call this, and must not hold a lock.
    ///
    /// # Errors
    ///
    /// The file can't be changed.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, 0, self.memory.size() as u64)?)
    }

    /// Returns a part of the memory, if it is not beyond the end.
    pub(crate) fn slice(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.memory
            .get_slice(usize::try_from(offset).ok()?, len)
            .ok()
    }

    /// Returns the file through which the memory is shared.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }
}
