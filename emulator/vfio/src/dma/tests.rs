// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Mappings, and accesses to them, against a reference model. [`hostile`](crate::hostile) has files that the VMM changes.

use std::{
    fs::File,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

use proptest::{collection::vec, prelude::*};
use rustix::fs::{MemfdFlags, Mode, OFlags, open};

use super::*;
use crate::memory::{Allowed, Files, Shareable, tests::file};

const PAGE: u64 = 4096;

type Mapped = Result<(), io::ErrorKind>;

/// Pages of each file.
const PAGES: u64 = 4;

/// Addresses of pages that operations name: the first ones, and the last one.
const PLACES: [u64; 8] = [0, 1, 2, 3, 4, 5, 6, u64::MAX / PAGE];

/// A page of the address space, in the reference model: the number of its mapping, whether it can be read and written, and its file
/// with the page there, if it has one.
type Page = (usize, [bool; 2], Option<(usize, u64)>);

/// A table with the files of its VMM, and the reference model of both. The table comes first, so that no file is in use when the
/// files are dropped.
struct Table {
    dma: DmaTable,
    shared: Files,
    files: [File; 2],
    pages: BTreeMap<u64, Page>,
    contents: [Vec<u8>; 2],
    mappings: usize,
}

impl Table {
    fn new() -> Self {
        Self {
            dma: DmaTable::default(),
            shared: Files::default(),
            // Memory that the kernel accesses, too.
            files: [MemfdFlags::ALLOW_SEALING, MemfdFlags::empty()].map(file),
            pages: BTreeMap::new(),
            contents: [(); 2].map(|()| vec![0; (PAGES * PAGE) as usize]),
            mappings: 0,
        }
    }

    /// Maps pages of a file, which is file 0 or 1, or none.
    fn map(&mut self, access: [bool; 2], place: u64, count: u64, at: (usize, u64)) -> Mapped {
        let [readable, writable] = access;
        let [offset, address, size] = [at.1, place, count].map(|pages| pages * PAGE);
        let map = DmaMap { readable, writable, offset, address, size };
        let file = self.files.get(at.0).map(|file| file.try_clone().unwrap());
        let files = &mut self.shared;
        let share = |file| files.share(Shareable::new(file, Allowed::Memory)?, offset, size);
        let shared = file.map(share).transpose();
        let mapped = shared.and_then(|shared| self.dma.map(map, shared));
        mapped.map_err(|error| error.kind())
    }

    /// Returns the places of bytes in the files, if the device may access all of them.
    fn find(&self, address: u64, length: usize, access: Access) -> Result<Vec<(usize, usize)>, DmaError> {
        let byte = |at| {
            let address = address.checked_add(at)?;
            let (_, allowed, memory) = self.pages.get(&(address / PAGE))?;
            let (file, number) = (*memory)?;
            let place = (file, (number * PAGE + address % PAGE) as usize);
            allowed[usize::from(access == Access::Write)].then_some(place)
        };
        let places: Option<_> = (0..length as u64).map(byte).collect();
        places.ok_or(DmaError { address, length })
    }

    fn step(&mut self, [what, place, count, flags, at, length]: [u8; 6]) {
        let number = PLACES[usize::from(place) % PLACES.len()];
        let count = u64::from(count) % 4;
        let end = number + count;
        let is_range = count > 0 && end <= u64::MAX / PAGE + 1;
        let address = number * PAGE + u64::from(at) * 16;
        let length = usize::from(length) * 17;
        let id = |page: u64| Some(self.pages.get(&page)?.0);
        let cuts = |page: u64| page > 0 && id(page).is_some() && id(page) == id(page - 1);
        let invalid = Err(io::ErrorKind::InvalidInput);
        match what % 8 {
            0..2 => {
                let access = [flags & 1 != 0, flags & 2 != 0];
                let (file, first) = (usize::from(flags >> 2) % 3, u64::from(flags >> 4) % PAGES);
                let expected = match (number..end).any(|page| id(page).is_some()) {
                    _ if !is_range || file < 2 && first + count > PAGES => invalid,
                    true => Err(io::ErrorKind::AlreadyExists),
                    false => Ok(()),
                };
                assert_eq!(self.map(access, number, count, (file, first)), expected, "map");
                self.mappings += 1;
                for page in (0..count).filter(|_| expected.is_ok()) {
                    let memory = (file < 2).then_some((file, first + page));
                    self.pages.insert(number + page, (self.mappings, access, memory));
                }
            }
            2 => {
                let is_valid = is_range && !cuts(number) && !cuts(end);
                let expected = if is_valid { Ok(()) } else { invalid };
                let found = self.dma.unmap(number * PAGE, count * PAGE);
                assert_eq!(found.map_err(|error| error.kind()), expected, "unmap");
                self.pages.retain(|page, _| !is_valid || !(number..end).contains(page));
            }
            3..5 => {
                let data: Vec<u8> = (0..length).map(|n| n as u8 ^ flags).collect();
                let places = self.find(address, length, Access::Write);
                let found = self.dma.write(address, &data);
                assert_eq!(found, places.as_ref().map(|_| ()).map_err(|error| *error));
                for ((file, at), byte) in places.into_iter().flatten().zip(data) {
                    self.contents[file][at] = byte;
                }
            }
            5..7 => {
                let places = self.find(address, length, Access::Read);
                let mut found = vec![flags; length];
                let result = self.dma.read(address, &mut found);
                assert_eq!(result, places.as_ref().map(|_| ()).map_err(|error| *error));
                // A read that fails leaves the buffer as it is.
                let byte = |(file, at): (usize, usize)| self.contents[file][at];
                let expected = places.map(|it| it.into_iter().map(byte).collect());
                assert!(found == expected.unwrap_or_else(|_| vec![flags; length]));
            }
            // A copy from two ranges to another one, unless they share memory.
            _ => {
                let (other, half) = (PLACES[usize::from(flags) % 6] * PAGE, length / 2);
                let target = other + PAGE + 8;
                let places =
                    [(address, half, Access::Read), (other, half, Access::Read), (target, 2 * half, Access::Write)]
                        .map(|(at, length, access)| self.find(at, length, access));
                let [Ok(first), Ok(second), Ok(into)] = places else {
                    return;
                };
                let source = [first, second].concat();
                if source.iter().any(|place| into.contains(place)) {
                    return;
                }
                let dma = &self.dma;
                let mut pinned = dma.pin(address, half, Access::Read).unwrap();
                dma.pin_more(&mut pinned, other, half, Access::Read).unwrap();
                let pins = dma.pin(target, 2 * half, Access::Write).unwrap();
                pinned.copy_to(&pins).unwrap();
                for (from, to) in source.into_iter().zip(into) {
                    self.contents[to.0][to.1] = self.contents[from.0][from.1];
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn mappings_are_those_of_the_reference(steps in vec(any::<[u8; 6]>(), 0..120)) {
        let mut table = Table::new();
        for step in steps {
            table.step(step);
        }
        for (file, expected) in table.files.iter().zip(&table.contents) {
            let mut found = vec![0; expected.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == *expected);
        }
    }
}

#[test]
fn files_with_special_flags_are_refused() {
    use io::ErrorKind::{PermissionDenied, Unsupported};

    let reader = [true, false];
    for (flags, access, expected) in [
        (OFlags::RDONLY, reader, None),
        (OFlags::RDONLY, [false, true], Some(PermissionDenied)),
        (OFlags::RDONLY, [true, true], Some(PermissionDenied)),
        (OFlags::WRONLY, [true, true], Some(PermissionDenied)),
        (OFlags::RDWR | OFlags::APPEND, reader, Some(Unsupported)),
        (OFlags::RDWR | OFlags::SYNC, reader, Some(Unsupported)),
        (OFlags::RDWR | OFlags::DSYNC, reader, Some(Unsupported)),
    ] {
        let mut table = Table::new();
        // The same memory, opened again.
        let path = format!("/proc/self/fd/{}", table.files[0].as_raw_fd());
        table.files[0] = open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap().into();
        let mapped = table.map(access, 0, 1, (0, 0));
        assert_eq!(mapped.err(), expected, "{flags:?} {access:?}");
    }
}

#[test]
fn mappings_are_limited() {
    let mut table = Table::new();
    let mut page = |page| table.map([true; 2], page, 1, (2, 0));
    assert!((0..MAX_MAPPINGS as u64).all(|number| page(number).is_ok()));
    assert_eq!(page(1 << 32), Err(io::ErrorKind::StorageFull));
    table.dma.unmap(0, PAGE).unwrap();
    table.map([true; 2], 0, 1, (2, 0)).unwrap();
    table.dma.unmap(PAGE, 1 << 32).unwrap();
    assert_eq!(table.dma.maps.len(), 1);
}

/// Contiguous parts of one file are one piece, also if they were mapped one by one, as behind an IOMMU.
#[test]
fn contiguous_ranges_are_one_piece() {
    let mut table = Table::new();
    for page in [3, 1, 0] {
        table.map([true; 2], page << 8, 1, (0, page)).unwrap();
    }
    table.map([true; 2], 1 << 16, 2, (1, 0)).unwrap();
    let mut extents = Extents::new(0);
    for (page, count, pieces) in [(0, 1, 1), (1 << 8, 1, 1), (3 << 8, 1, 2), (1 << 16, 2, 3), (0, 1, 4)] {
        let (at, length) = (page * PAGE, (count * PAGE) as usize);
        table.dma.pin_more(&mut extents, at, length, Access::Read).unwrap();
        assert_eq!(extents.pieces.len(), pieces);
    }
}

/// Another thread accesses the memory, without the table.
#[test]
fn pinned_memory_stays_accessible() {
    let mut table = Table::new();
    for (place, file) in [(0, 0), (4, 1)] {
        table.map([true; 2], place, 4, (file, 0)).unwrap();
    }
    let (address, length) = (3 * PAGE - 7, PAGE as usize + 20);
    let source = table.dma.pin(address, length, Access::Read).unwrap();
    let target = table.dma.pin(address, length, Access::Write).unwrap();
    table.dma.clear();
    assert!(table.dma.read(address, &mut [0]).is_err());
    let accesses = std::thread::spawn(move || {
        let (data, mut found) = (vec![7; length], vec![0; length]);
        target.write(&data).unwrap();
        source.read(&mut found).unwrap();
        assert_eq!(data, found);
    });
    accesses.join().unwrap();
    let mut found = [0; 7];
    table.files[0].read_exact_at(&mut found, address).unwrap();
    assert_eq!(found, [7; 7]);
}
