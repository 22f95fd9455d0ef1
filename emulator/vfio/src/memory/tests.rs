// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Files that are accepted, and files that shrink.

use std::{
    os::{fd::AsRawFd, unix::fs::FileExt},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, inotify, memfd_create},
    io::{Errno, read},
};

use super::*;

const PAGE: u64 = 4096;

pub(crate) fn file(flags: MemfdFlags) -> File {
    file_of(flags, 4 * PAGE)
}

/// Creates a file, sealed against shrinking if it can be.
fn file_of(flags: MemfdFlags, length: u64) -> File {
    let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC | flags).unwrap());
    file.set_len(length).unwrap();
    let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
    file
}

pub(crate) fn memory(file: &File) -> Memory {
    let length = file.metadata().unwrap().len();
    shareable(file).map(length).unwrap()
}

fn shareable(file: &File) -> Shareable {
    Shareable::new(file.try_clone().unwrap(), Allowed::Memory).unwrap()
}

/// Only files that are sealed are mapped. A seal waits for the lock of the inode, which the VMM may hold, so no file is sealed here.
/// The kernel accesses others, which the VMM may truncate: a store would raise SIGBUS then.
#[test]
fn files_that_can_shrink_are_accessed_by_the_kernel() {
    let other = self::memory(&self::file(MemfdFlags::ALLOW_SEALING));
    for (flags, seals) in
        [(MemfdFlags::ALLOW_SEALING, true), (MemfdFlags::ALLOW_SEALING, false), (MemfdFlags::empty(), false)]
    {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC | flags).unwrap());
        file.set_len(4 * PAGE).unwrap();
        if seals {
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        }
        let memory = memory(&file);
        assert_eq!(matches!(memory, Memory::Mapped(_)), seals);
        let mut found = [[0; 5]; 2];
        memory.write(100, b"hello").unwrap();
        memory.read(100, &mut found[0]).unwrap();
        file.read_exact_at(&mut found[1], 100).unwrap();
        assert_eq!(found, [*b"hello"; 2]);
        assert_eq!(file.set_len(0).is_err(), seals);
        if !seals {
            assert!(memory.read(100, &mut found[0]).is_err());
            assert!(memory.write(100, b"again").is_err());
            assert_eq!(memory.copy(0, &other, 0, 64), Err(Side::Source));
            assert_eq!(other.copy(0, &memory, 0, 64), Err(Side::Target));
        }
        file.set_len(5 * PAGE).unwrap();
        memory.write(100, b"again").unwrap();
    }
}

/// `write` and `pwrite` wait for the lock of the inode, which the VMM may hold, and `read` does on XFS. They also notify
/// watchers, and loads and stores do not.
#[test]
fn no_access_waits_for_the_lock_of_an_inode() {
    for flags in [MemfdFlags::empty(), MemfdFlags::ALLOW_SEALING] {
        // Accesses by the first descriptor of a memory file notify nothing.
        let first = file(flags);
        let path = format!("/proc/self/fd/{}", first.as_raw_fd());
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let memory = memory(&file);
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let events = inotify::WatchFlags::MODIFY | inotify::WatchFlags::ACCESS;
        inotify::add_watch(&watch, path, events).unwrap();
        let mut event = [0; 64];
        let mut found = [0; 5];
        memory.write(100, b"hello").unwrap();
        memory.read(100, &mut found).unwrap();
        assert_eq!(read(&watch, &mut event), Err(Errno::AGAIN));
        file.write_all_at(b"again", 100).unwrap();
        assert!(read(&watch, &mut event).unwrap() > 0);
        file.read_exact_at(&mut found, 100).unwrap();
        assert!(read(&watch, &mut event).unwrap() > 0);
    }
}

#[test]
fn copies_are_the_same_whatever_is_mapped() {
    let kinds = [MemfdFlags::empty(), MemfdFlags::ALLOW_SEALING];
    let data: Vec<u8> = (0..2 * CHUNK + 99).map(|n| (n / 300) as u8).collect();
    for (from, to) in kinds.iter().flat_map(|from| kinds.map(|to| (*from, to))) {
        let memory = |flags| memory(&file_of(flags, 3 * CHUNK as u64));
        let (from, to) = (memory(from), memory(to));
        from.write(11, &data).unwrap();
        from.copy(11, &to, 99, data.len()).unwrap();
        let mut found = vec![0; data.len()];
        to.read(99, &mut found).unwrap();
        assert_eq!(found, data);
    }
}

/// Creates a file of allocated huge pages, unless the host has too few.
fn huge_file(pages: u64) -> Option<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = File::from(memfd_create("huge", flags).ok()?);
    match fallocate(&file, FallocateFlags::empty(), 0, pages * HUGE_PAGE) {
        Ok(()) => Some(file),
        Err(error) => {
            println!("skipped: the host lacks {pages} free huge pages: {error}");
            None
        }
    }
}

const HUGE_PAGE: u64 = 2 << 20;

#[test]
fn huge_pages_can_be_freed_by_the_vmm() {
    // This needs `vm.nr_hugepages=2` or more, and no other user of huge pages.
    let Some(file) = huge_file(2) else {
        return;
    };
    let memory = memory(&file);
    // Across the boundary between both pages.
    let at = HUGE_PAGE as usize - 3;
    memory.write(at, b"hello").unwrap();
    let mut found = [0; 5];
    memory.read(at, &mut found).unwrap();
    assert_eq!(&found, b"hello");
    let other = self::memory(&self::file(MemfdFlags::ALLOW_SEALING));
    memory.copy(at, &other, 7, 5).unwrap();
    other.copy(7, &memory, 99, 5).unwrap();
    memory.read(99, &mut found).unwrap();
    assert_eq!(&found, b"hello");
    assert!(memory.write(2 * HUGE_PAGE as usize - 4, b"hello").is_err());

    // The VMM punches a hole, and other files take all free pages: a store would raise SIGBUS now.
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, 0, HUGE_PAGE).unwrap();
    const MANY: usize = 16;
    let others: Vec<_> = std::iter::from_fn(|| huge_file(1)).take(MANY).collect();
    if others.len() == MANY {
        println!("skipped: the host has too many free huge pages");
        return;
    }
    assert!(memory.write(99, b"again").is_err());
    assert!(memory.write(at, b"again").is_err());
    assert!(memory.read(99, &mut found).is_err());
    drop(others);
    memory.write(99, b"again").unwrap();
    file.set_len(0).unwrap();
    assert!(memory.write(99, b"again").is_err());
    assert!(memory.read(99, &mut found).is_err());
}

#[test]
fn a_file_is_mapped_once() {
    let mut files = Files::default();
    let first = file(MemfdFlags::ALLOW_SEALING);
    let mut share = |file: &File, offset| files.share(shareable(file), offset, PAGE).unwrap();
    let memory = share(&first, 0);
    assert!(Arc::ptr_eq(&memory, &share(&first, PAGE)));
    // The file grows. Its first mapping stays.
    first.set_len(5 * PAGE).unwrap();
    let grown = share(&first, 4 * PAGE);
    assert!(!Arc::ptr_eq(&memory, &grown));
    grown.write(0, b"hello").unwrap();
    let mut found = [0; 5];
    memory.read(0, &mut found).unwrap();
    assert_eq!(&found, b"hello");
    share(&file(MemfdFlags::ALLOW_SEALING), 0);
    drop((memory, grown));
    assert_eq!(files.files.len(), 3);
    files.release_unused();
    assert!(files.files.is_empty());
}

#[test]
fn only_the_thread_of_the_vmm_unmaps_files() {
    let mut files = Files::default();
    let file = file(MemfdFlags::ALLOW_SEALING);
    let memory = files.share(shareable(&file), 0, PAGE).unwrap();
    let has_dropped = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Without the wait, the list would be gone by then.
            for _ in 0..100 {
                assert!(!has_dropped.load(Ordering::SeqCst));
                thread::yield_now();
            }
            let owners = Arc::strong_count(&memory);
            drop(memory);
            owners
        });
        drop(files);
        has_dropped.store(true, Ordering::SeqCst);
        assert_eq!(other.join().unwrap(), 2);
    });
}

#[test]
fn shared_files_are_limited() {
    let mut files = Files::default();
    let large = file_of(MemfdFlags::ALLOW_SEALING, MAX_BYTES - PAGE);
    let kept = files.share(shareable(&large), 0, PAGE).unwrap();
    let more = files.share(shareable(&file(MemfdFlags::ALLOW_SEALING)), 0, PAGE);
    assert_eq!(more.unwrap_err().kind(), io::ErrorKind::StorageFull);
    drop(kept);
    // Each file has four pages.
    for (files, most) in [(files, MAX_FILES), (Files::new(2, MAX_BYTES), 2), (Files::new(MAX_FILES, 11 * PAGE), 2)] {
        let mut files = files;
        let mut share = || files.share(shareable(&file(MemfdFlags::empty())), 0, PAGE);
        let mut kept: Vec<_> = (0..most).map(|_| share().unwrap()).collect();
        assert_eq!(share().unwrap_err().kind(), io::ErrorKind::StorageFull);
        kept.pop();
        kept.push(share().unwrap());
        assert_eq!(share().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

#[test]
fn files_other_than_memory_are_refused() {
    for path in ["/dev/null", "/proc/self/maps", "/"] {
        for allowed in [Allowed::Memory, Allowed::FilesOfDisks] {
            let refused = Shareable::new(File::open(path).unwrap(), allowed).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "{path}");
        }
    }
}

#[test]
fn files_on_disks_are_refused_unless_allowed() {
    // The executable of this test is such a file, unless its file system is never allowed.
    let own = || File::open("/proc/self/exe").unwrap();
    // CAST: the type is signed on some architectures.
    let file_system = fstatfs(own()).unwrap().f_type as u64;
    if OF_DISKS.contains(&file_system) {
        let refused = Shareable::new(own(), Allowed::Memory).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert!(refused.to_string().contains("--file-memory"));
        Shareable::new(own(), Allowed::FilesOfDisks).unwrap();
    } else {
        println!("skipped: no file on a disk: {file_system:#x}");
    }
}
