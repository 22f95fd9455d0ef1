// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of a machine, shared with the emulator.

use std::fs::File;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vfio_user::RegionInfo;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::bus::{Memory, PAGE};

/// Bus address at which the memory begins.
pub const BASE: u64 = 0x1_0000_0000;

/// Memory with pages that are allocated and never freed, and the BAR of the send queues.
#[derive(Debug)]
pub struct Ram {
    file: File,
    memory: MmapRegion,
    next: u64,
    /// The BAR of the send queues, once it is mapped.
    llq: Option<MmapRegion>,
}

impl Ram {
    /// Allocates memory of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self::with(size, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
    }

    /// As [`Self::new`], in a memfd with other flags. It is sealed against shrinking if it can be, as by QEMU.
    pub fn with(size: u64, flags: MemfdFlags) -> Self {
        let file = File::from(memfd_create("ram", flags).expect("memory"));
        file.set_len(size).expect("memory");
        let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
        let memory = map(file.try_clone().expect("a descriptor"), size);
        Self { file, memory, next: 0, llq: None }
    }

    /// The memfd, to be shared.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its first address and its size.
    pub fn range(&self) -> (u64, u64) {
        (BASE, self.memory.size() as u64)
    }

    /// Maps the BAR with the send queues.
    pub fn map_llq(&mut self, region: RegionInfo) {
        let file = region.file.expect("a BAR that can be mapped");
        self.llq = Some(map(file, region.size));
    }

    /// Copies between two machines' memories.
    pub fn copy(&self, from: u64, target: &Self, to: u64, length: usize) {
        let slice = self.slice(from, length);
        slice.copy_to_volatile_slice(target.slice(to, length));
    }

    fn slice(&self, address: u64, length: usize) -> VolatileSlice<'_> {
        // CAST: it is in the machine's memory.
        let offset = (address - BASE) as usize;
        self.memory.get_slice(offset, length).expect("an address of the machine's memory")
    }
}

fn map(file: File, size: u64) -> MmapRegion {
    // CAST: a machine's memory and a BAR are smaller than the host's memory.
    MmapRegion::from_file(FileOffset::new(file, 0), size as usize).expect("a mapping")
}

impl Memory for Ram {
    fn allocate(&mut self, pages: u64) -> u64 {
        let address = BASE + self.next;
        self.next += pages * PAGE;
        assert!(self.next <= self.range().1, "the machine has too little memory");
        address
    }

    fn load(&self, address: u64, bytes: &mut [u8]) {
        self.slice(address, bytes.len()).copy_to(bytes);
    }

    fn store(&self, address: u64, bytes: &[u8]) {
        self.slice(address, bytes.len()).copy_from(bytes);
    }

    fn write_llq(&mut self, offset: u64, bytes: &[u8]) {
        let llq = self.llq.as_ref().expect("a BAR that is mapped");
        // CAST: it is in the BAR.
        let slice = llq.get_slice(offset as usize, bytes.len());
        slice.expect("an offset in the BAR").copy_from(bytes);
    }
}
