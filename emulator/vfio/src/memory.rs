// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that a VMM shares: files, of which it maps parts for DMA.
//!
//! The VMM may change the file in any way, at any time. An access to a mapping beyond the new end of a file raises SIGBUS, which
//! would end the program and so harm all other guests. So loads and stores access a file only if the VMM has sealed it against
//! shrinking. Other files are read and written by system calls, which is slower.
//!
//! Files of huge pages need system calls, even if they can't shrink. The VMM can punch a hole and use up all free huge pages, so
//! that an access raises SIGBUS as well. No precaution at the time of mapping prevents that.
//!
//! The kernel accesses such files through a mapping (`process_vm_writev`), and returns EFAULT where a store would raise SIGBUS.
//! `pwrite` would wait for the lock of the inode, as `F_ADD_SEALS` and `fallocate` do. The VMM can hold that lock for as long as
//! it likes: it needs a `write` from memory whose pages its own FUSE server or userfaultfd provides. A thread that waits for it
//! can't even be killed, and neither can one that waits for the server of a FUSE file. So no thread asks for either.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    os::unix::fs::MetadataExt,
    sync::{Arc, atomic::AtomicU64},
    thread,
    time::Duration,
};

use nix::{
    libc,
    sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
    unistd::Pid,
};
use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstatfs};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice, mmap::MmapRegionBuilder};

/// Bytes per step of a copy between memories of which one can be revoked: few enough for the cache.
const CHUNK: usize = 64 << 10;

/// Magic numbers, from `linux/magic.h`, of file systems on disks that are allowed on request: ext2, ext3 and ext4, XFS, btrfs.
/// Their reads and writes wait for a disk. FUSE and network file systems are excluded, as their servers could block accesses for
/// ever.
const OF_DISKS: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// Magic number of hugetlbfs, which includes memory files of huge pages.
const HUGETLBFS: u64 = 0x9584_58f6;

/// Limit on the files that a VMM may share. Each needs a descriptor of this program. QEMU has one for each memory backend.
pub const MAX_FILES: usize = 64;

/// Default limit on the bytes of the files that a VMM may share.
pub const MAX_BYTES: u64 = 64 << 30;

/// Interval of checks whether a file is still in use.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Number of these checks before a file is given up while it is in use: a generous bound.
const RECHECKS: usize = 60_000;

/// The files that a VMM shares.
///
/// Each has one entry, even if many parts of it are mapped for DMA: behind a virtual IOMMU, these are single pages.
///
/// To map and to unmap a large file takes a while. Threads of the VMM do that, without the lock of the device. So they own the
/// memory. Other threads refer to it while it is mapped for DMA, or pinned.
#[derive(Debug)]
pub(crate) struct Files {
    files: Vec<Shared>,
    /// Limits on the number of files and on their total bytes.
    most: usize,
    most_bytes: u64,
    // Whether the warning about slow memory has been logged, which happens once.
    slow: bool,
}

#[derive(Debug)]
struct Shared {
    id: Id,
    length: u64,
    memory: Arc<Memory>,
}

/// Identifies a file and its access mode among all open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    device: u64,
    inode: u64,
    writable: bool,
}

/// The kinds of files that a VMM may share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// Memory: memory files, and files of tmpfs and hugetlbfs.
    #[default]
    Memory,
    /// Files of ext4, XFS and btrfs, too. An access may wait for the disk, and delay other devices.
    FilesOfDisks,
}

/// A file that has passed the checks for sharing.
#[derive(Debug)]
pub(crate) struct Shareable {
    file: File,
    id: Id,
    is_sealed: bool,
}

/// A file that a VMM shares.
#[derive(Debug)]
pub(crate) enum Memory {
    /// A file of ordinary pages that can't shrink.
    Mapped(MmapRegion),
    /// A file whose pages the VMM can revoke. Only the kernel accesses its mapping.
    Revocable(MmapRegion),
}

impl Shareable {
    /// Checks a file. If files of disks are allowed, the server of a FUSE or network file can block this for ever. So the caller
    /// must not hold a lock.
    ///
    /// # Errors
    ///
    /// The file is neither memory nor on an `allowed` file system of a disk. Or its flags make accesses wait for a disk, append
    /// or prevent reads.
    pub(crate) fn new(file: File, allowed: Allowed) -> io::Result<Self> {
        // Only files in memory have seals: those of tmpfs, which include memory files, and of hugetlbfs.
        let seals = fcntl_get_seals(&file);
        let refused = || {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "only memory files can be shared: use memfd, or allow files on a disk by --file-memory",
            )
        };
        if seals.is_err() && allowed == Allowed::Memory {
            return Err(refused());
        }
        let metadata = file.metadata()?;
        // CAST: the type is signed on some architectures.
        let file_system = fstatfs(&file)?.f_type as u64;
        if !metadata.is_file() || seals.is_err() && !OF_DISKS.contains(&file_system) {
            return Err(refused());
        }
        let flags = fcntl_getfl(&file)?;
        if flags.intersects(OFlags::APPEND | OFlags::DIRECT | OFlags::SYNC | OFlags::DSYNC) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "memory files opened with O_APPEND, O_DIRECT or O_SYNC can't be shared",
            ));
        }
        if flags & OFlags::ACCMODE == OFlags::WRONLY {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "a shared memory file must be open for reading",
            ));
        }
        let id = Id { device: metadata.dev(), inode: metadata.ino(), writable: flags.contains(OFlags::RDWR) };
        let is_sealed = file_system != HUGETLBFS && seals.is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        Ok(Self { file, id, is_sealed })
    }

    /// Maps the first `length` bytes.
    pub(crate) fn map(self, length: u64) -> io::Result<Memory> {
        let length = usize::try_from(length).map_err(|_| invalid("memory is too large"))?;
        let protection = match self.id.writable {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        let region = MmapRegionBuilder::new(length)
            .with_file_offset(FileOffset::new(self.file, 0))
            .with_mmap_prot(protection)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .build()
            .map_err(io::Error::other)?;
        Ok(match self.is_sealed {
            true => Memory::Mapped(region),
            false => Memory::Revocable(region),
        })
    }
}

impl Default for Files {
    fn default() -> Self {
        Self::new(MAX_FILES, MAX_BYTES)
    }
}

impl Files {
    /// Creates a list without files, with limits on their number and on their total bytes.
    pub(crate) fn new(most: usize, most_bytes: u64) -> Self {
        Self { files: Vec::new(), most, most_bytes, slow: false }
    }

    /// Returns the memory of a file of which the VMM maps `size` bytes from `offset`. It includes the whole file. The caller must
    /// not hold the lock of the device.
    ///
    /// # Errors
    ///
    /// The range is beyond the end of the file, the file can't be mapped, or a limit on files or bytes is exceeded.
    pub(crate) fn share(&mut self, file: Shareable, offset: u64, size: u64) -> io::Result<Arc<Memory>> {
        let end = offset.checked_add(size).ok_or_else(|| invalid("a DMA range's file offset wraps"))?;
        let known = self.files.iter().find(|shared| shared.id == file.id && shared.length >= end);
        if let Some(shared) = known {
            return Ok(Arc::clone(&shared.memory));
        }
        self.release_unused();
        // If it is sealed, its length can't decrease any more.
        let length = file.file.metadata()?.len();
        if length < end {
            return Err(invalid("a DMA range is beyond the end of its file"));
        }
        let bytes = self.files.iter().map(|shared| shared.length).sum::<u64>();
        if self.files.len() >= self.most || bytes.checked_add(length).is_none_or(|bytes| bytes > self.most_bytes) {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the VMM exceeds its limit on shared files or bytes: see memory=SIZE",
            ));
        }
        if !file.is_sealed && !self.slow {
            self.slow = true;
            tracing::warn!(
                "the guest's memory is a file that can shrink, or of huge pages, so each access to it is a system call: use a memory file of ordinary pages"
            );
        }
        let id = file.id;
        let memory = Arc::new(file.map(length)?);
        self.files.push(Shared { id, length, memory: Arc::clone(&memory) });
        Ok(memory)
    }

    /// Unmaps files of which no part is mapped for DMA or pinned. The caller must not hold the lock of the device.
    pub(crate) fn release_unused(&mut self) {
        self.files.retain(|shared| Arc::strong_count(&shared.memory) > 1);
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Copies have ended, but their completions may be due. Threads that other guests need must not unmap the files.
        for _ in 0..RECHECKS {
            self.release_unused();
            if self.files.is_empty() {
                return;
            }
            thread::sleep(RECHECK_INTERVAL);
        }
    }
}

impl Memory {
    /// Whether it can be written. If not, a store would end this program.
    pub(crate) fn is_writable(&self) -> bool {
        let (Self::Mapped(region) | Self::Revocable(region)) = self;
        region.prot() & libc::PROT_WRITE != 0
    }

    /// Reads the bytes from `at` on.
    ///
    /// # Errors
    ///
    /// The VMM has revoked them, for example by truncating the file.
    pub(crate) fn read(&self, at: usize, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Mapped(region) => {
                slice(region, at, buffer.len())?.copy_to(buffer);
                Ok(())
            }
            Self::Revocable(region) => {
                let place = [place(region, at, buffer.len())?];
                let length = buffer.len();
                let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(buffer)], &place)?;
                complete(read == length)
            }
        }
    }

    /// Writes bytes from `at` on. Pages that the VMM has freed are allocated for it again, if possible.
    ///
    /// # Errors
    ///
    /// The VMM has truncated the file, or no page is free.
    pub(crate) fn write(&self, at: usize, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Mapped(region) => {
                slice(region, at, data.len())?.copy_from(data);
                Ok(())
            }
            Self::Revocable(region) => {
                let place = [place(region, at, data.len())?];
                let written = process_vm_writev(Pid::this(), &[IoSlice::new(data)], &place)?;
                complete(written == data.len())
            }
        }
    }

    /// Returns the eight bytes from `at` on for atomic accesses, if they are aligned and can't be revoked.
    pub(crate) fn word(&self, at: usize) -> Option<&AtomicU64> {
        match self {
            Self::Mapped(region) => region.get_atomic_ref(at).ok(),
            Self::Revocable(_) => None,
        }
    }

    /// Copies `length` bytes from `at` to `target` in another memory, or the same. One step suffices if neither can be revoked.
    ///
    /// # Errors
    ///
    /// Those of [`Self::read`] and [`Self::write`].
    pub(crate) fn copy(&self, at: usize, to: &Self, target: usize, length: usize) -> Result<(), Side> {
        if let (Self::Mapped(from), Self::Mapped(to)) = (self, to) {
            let from = slice(from, at, length).map_err(|_| Side::Source)?;
            let to = slice(to, target, length).map_err(|_| Side::Target)?;
            from.copy_to_volatile_slice(to);
            return Ok(());
        }
        let mut chunk = vec![0; length.min(CHUNK)];
        for done in (0..length).step_by(CHUNK) {
            let chunk = &mut chunk[..(length - done).min(CHUNK)];
            self.read(at + done, chunk).map_err(|_| Side::Source)?;
            to.write(target + done, chunk).map_err(|_| Side::Target)?;
        }
        Ok(())
    }
}

/// The side of a copy that could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Target,
}

/// Returns a part of a mapping whose pages the VMM may have revoked, for the kernel.
fn place(region: &MmapRegion, at: usize, length: usize) -> io::Result<RemoteIoVec> {
    slice(region, at, length)?;
    Ok(RemoteIoVec { base: region.as_ptr() as usize + at, len: length })
}

fn complete(is_complete: bool) -> io::Result<()> {
    is_complete.then_some(()).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn slice(region: &MmapRegion, at: usize, length: usize) -> io::Result<VolatileSlice<'_>> {
    region.get_slice(at, length).map_err(io::Error::other)
}

pub(crate) fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
pub(crate) mod tests;
