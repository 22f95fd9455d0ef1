// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device's memory, shared with the VMM: its low-latency queues.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes that are read and that are written at once, to clear the memory.
const CHUNK: usize = 256 << 10;
const PAGE: usize = 4096;

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
        let memory =
            MmapRegion::from_file(FileOffset::from_arc(Arc::clone(&file), 0), size).map_err(io::Error::other)?;
        Ok(Self { file, memory })
    }

    /// Clears all of the memory to zero, also in existing mappings. This reads all of it, so the caller must not hold a lock.
    ///
    /// `fallocate` would wait for the lock of the file's inode, which the VMM can hold for ever.
    ///
    /// # Errors
    ///
    /// The file can't be read.
    pub(crate) fn clear(&self) -> io::Result<()> {
        const ZERO: [u8; PAGE] = [0; PAGE];
        let mut chunk = vec![0; CHUNK];
        for at in (0..self.memory.size()).step_by(CHUNK) {
            let length = CHUNK.min(self.memory.size() - at);
            // Unlike a load, this allocates no page. A page that the driver has not used is zero.
            self.file.read_exact_at(&mut chunk[..length], at as u64)?;
            let pages = (at..).step_by(PAGE).zip(chunk[..length].chunks(PAGE));
            for (at, _) in pages.filter(|(_, page)| *page != ZERO) {
                let slice = self.memory.get_slice(at, PAGE);
                slice.map_err(io::Error::other)?.copy_from(&ZERO);
            }
        }
        Ok(())
    }

    /// Returns a part of the memory, if it is not beyond the end.
    pub(crate) fn slice(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.memory.get_slice(usize::try_from(offset).ok()?, len).ok()
    }

    /// Returns the file through which the memory is shared.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn it_is_cleared_by_stores() {
        let llq = Llq::new(4 * CHUNK as u64 + 4096).unwrap();
        let places = [CHUNK - 3, 3 * CHUNK, 4 * CHUNK];
        let slice = |at: usize| llq.slice(at as u64, 6).unwrap();
        places.map(|at| slice(at).copy_from(b"secret"));
        let pages = || llq.file().metadata().unwrap().blocks();
        let before = pages();
        llq.clear().unwrap();
        // Nothing was freed, which waits for the lock of the inode, and nothing was allocated.
        assert_eq!(pages(), before);
        for at in places {
            let mut found = [1_u8; 6];
            slice(at).copy_to(&mut found);
            assert_eq!(found, [0; 6]);
        }
    }
}
