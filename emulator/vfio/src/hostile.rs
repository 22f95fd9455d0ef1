// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A VMM that shares descriptors of any kind, and changes the files while the device accesses them.

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
};

use efa_fabric::{Access, Memory as _};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create, open},
    pipe::pipe,
};
use vfio_user::DmaMap;

use crate::{
    dma::DmaTable,
    memory::{Allowed, Files, Shareable},
};

const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;

/// Limit on the files of an input, and on the pages of an address or a size.
const MOST: u8 = 8;

/// Flags with which a descriptor is reopened.
const FLAGS: [OFlags; 9] = [
    OFlags::RDWR,
    OFlags::RDONLY,
    OFlags::WRONLY,
    OFlags::PATH,
    OFlags::APPEND,
    OFlags::SYNC,
    OFlags::DSYNC,
    OFlags::DIRECT,
    OFlags::TRUNC,
];

const SEALS: [SealFlags; 5] =
    [SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL];

/// The files of a VMM, and the DMA table of the device.
#[derive(Default)]
struct Vmm {
    files: Vec<File>,
    table: DmaTable,
    shared: Files,
}

/// Opens a new file of this kind.
fn file(kind: u8) -> Option<File> {
    let memory = |flags| Some(File::from(memfd_create("guest", flags).ok()?));
    let end = |end: OwnedFd| Some(File::from(end));
    match kind % 8 {
        0 | 1 => memory(MemfdFlags::ALLOW_SEALING),
        2 => memory(MemfdFlags::empty()),
        3 => memory(MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB),
        4 => end(pipe().ok()?.0),
        5 => end(pipe().ok()?.1),
        6 => File::open("/").ok(),
        _ => File::options().read(true).write(true).open("/dev/zero").ok(),
    }
}

impl Vmm {
    /// Carries out the operation that five bytes encode.
    fn step(&mut self, [what, of, flags, at, length]: [u8; 5]) {
        let address = u64::from(at % MOST) * PAGE;
        let size = u64::from(length % MOST) * PAGE;
        let chosen = usize::from(of).checked_rem(self.files.len());
        let file = chosen.map(|chosen| &self.files[chosen]);
        match what % 10 {
            0 | 1 => self.share(file.and_then(|file| file.try_clone().ok()), flags, address, size),
            2 => self.add(self::file(of), u64::from(length)),
            3 => {
                let flags = FLAGS[usize::from(flags) % FLAGS.len()];
                // Read and write access, unless the flags specify the access mode.
                let access = match flags {
                    OFlags::RDONLY | OFlags::WRONLY | OFlags::PATH => OFlags::empty(),
                    _ => OFlags::RDWR,
                };
                let path = file.map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()));
                let again = path.and_then(|path| open(path, flags | access, Mode::empty()).ok());
                self.add(again.map(File::from), 0);
            }
            4 => {
                let seals = SEALS[usize::from(flags) % SEALS.len()];
                let _ = file.map(|file| fcntl_add_seals(file, seals));
            }
            5 => {
                let _ = file.map(|file| file.set_len(size));
            }
            6 => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = file.map(|file| fallocate(file, hole, address, size.max(1)));
            }
            7 => {
                let _ = self.table.unmap(address, size);
                self.shared.release_unused();
            }
            8 => {
                // From near the end of a page on, so that the copy may span ranges.
                let (from, to) = (address + PAGE - 8, size + PAGE - 8);
                let source = self.table.pin(from, 64, Access::Read);
                let target = self.table.pin(to, 64, Access::Write);
                if let (Ok(source), Ok(target)) = (source, target) {
                    let _ = source.copy_to(&target);
                }
            }
            _ => {
                let mut bytes = [flags; 64];
                let _ = self.table.write(address + PAGE - 8, &bytes);
                let _ = self.table.write(address, &bytes);
                let _ = self.table.read(address, &mut bytes);
            }
        }
    }

    fn add(&mut self, file: Option<File>, pages: u64) {
        if self.files.len() < MOST.into() {
            if let Some(file) = &file {
                // A file of huge pages accepts only multiples of their size.
                let _ = file.set_len(pages * PAGE).or_else(|_| file.set_len(HUGE_PAGE));
            }
            self.files.extend(file);
        }
    }

    fn share(&mut self, file: Option<File>, flags: u8, address: u64, size: u64) {
        let map = DmaMap {
            readable: flags & 1 != 0,
            writable: flags & 2 != 0,
            offset: u64::from(flags >> 6) * PAGE,
            address,
            size,
        };
        let (offset, shared) = (map.offset, &mut self.shared);
        let share = |file| shared.share(Shareable::new(file, Allowed::Memory)?, offset, size);
        if let Ok(memory) = file.map(share).transpose() {
            let _ = self.table.map(map, memory);
        }
    }
}

/// Carries out the operations that the bytes encode. No access to memory may end the program.
pub fn play(data: &[u8]) {
    let mut vmm = Vmm::default();
    for step in data.chunks_exact(5) {
        let Ok(step) = step.try_into() else { return };
        vmm.step(step);
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn descriptors_of_any_kind_do_no_harm(data in vec(any::<u8>(), 0..2000)) {
            super::play(&data);
        }
    }
}
