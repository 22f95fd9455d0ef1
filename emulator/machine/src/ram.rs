// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of a machine, shared with the emulator.

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes in a page.
pub(crate) const PAGE: u64 = 4096;

/// Where it begins, as bus addresses have it.
const BASE: u64 = 0x1_0000_0000;

/// Memory, of which pages are given out and never taken back.
#[derive(Debug)]
pub(crate) struct Ram {
    pub(crate) file: File,
    memory: MmapRegion,
    next: u64,
}

impl Ram {
    pub(crate) fn new(size: u64) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("ram", flags).expect("memory"));
        file.set_len(size).expect("memory");
        let shared = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
        // CAST: a machine has less than the host.
        let memory = MmapRegion::from_file(shared, size as usize).expect("memory");
        Self {
            file,
            memory,
            next: 0,
        }
    }

    /// Its first address and its size.
    pub(crate) fn range(&self) -> (u64, u64) {
        (BASE, self.memory.size() as u64)
    }

    /// Gives out contiguous pages for so many bytes, which are zero.
    pub(crate) fn allocate(&mut self, size: u64) -> u64 {
        let address = BASE + self.next;
        self.next += size.div_ceil(PAGE) * PAGE;
        assert!(
            self.next <= self.range().1,
            "the machine has too little memory"
        );
        address
    }

    fn slice(&self, address: u64, length: usize) -> VolatileSlice<'_> {
        // CAST: it is in the machine's memory.
        let offset = (address - BASE) as usize;
        self.memory
            .get_slice(offset, length)
            .expect("an address of the machine's memory")
    }

    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) {
        self.slice(address, bytes.len()).copy_to(bytes);
    }

    pub(crate) fn load<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(address, &mut bytes);
        bytes
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.slice(address, bytes.len()).copy_from(bytes);
    }
}
