// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Mappings, and accesses to them.

use std::{
    fs::File,
    ops::{Deref, DerefMut},
    os::{fd::AsRawFd, unix::fs::FileExt},
};

use efa_fabric::CopyError;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open};

use super::*;
use crate::memory::{Allowed, Files, Shareable};

const PAGE: u64 = 4096;
const FLAGS: MemfdFlags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);

// Whether a mapping can be read and written.
const READ: (bool, bool) = (true, false);
const WRITE: (bool, bool) = (false, true);
const BOTH: (bool, bool) = (true, true);

/// A table, and the files of its VMM. The table comes first, so that no file is in use when the files are dropped.
#[derive(Default)]
struct Table {
    dma: DmaTable,
    files: Files,
}

impl Deref for Table {
    type Target = DmaTable;

    fn deref(&self) -> &DmaTable {
        &self.dma
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut DmaTable {
        &mut self.dma
    }
}

fn map(
    table: &mut Table,
    (readable, writable): (bool, bool),
    offset: u64,
    address: u64,
    size: u64,
    file: Option<File>,
) -> io::Result<()> {
    let map = DmaMap {
        readable,
        writable,
        offset,
        address,
        size,
    };
    let share = |file| {
        table
            .files
            .share(Shareable::new(file, Allowed::Memory)?, offset, size)
    };
    let memory = file.map(share).transpose()?;
    table.dma.map(map, memory)
}

fn memory(pages: u64) -> File {
    let file = File::from(memfd_create("guest", FLAGS).unwrap());
    file.set_len(pages * PAGE).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

/// Opens the same memory again, with these flags.
fn reopened(file: &File, flags: OFlags) -> File {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::from(open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap())
}

#[test]
fn read_only_files_are_not_mapped_for_writing() {
    let memory = memory(1);
    for flags in [OFlags::RDONLY, OFlags::WRONLY] {
        for access in [WRITE, BOTH] {
            let file = reopened(&memory, flags);
            let mapped = map(&mut Table::default(), access, 0, 0, PAGE, Some(file));
            assert_eq!(mapped.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }
    let file = reopened(&memory, OFlags::RDONLY);
    map(&mut Table::default(), READ, 0, 0, PAGE, Some(file)).unwrap();
}

#[test]
fn files_with_special_flags_are_refused() {
    let memory = memory(1);
    for flags in [OFlags::APPEND, OFlags::SYNC, OFlags::DSYNC] {
        let file = reopened(&memory, OFlags::RDWR | flags);
        let mapped = map(&mut Table::default(), BOTH, 0, 0, PAGE, Some(file));
        assert_eq!(mapped.unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}

/// Maps pages 0 and 1 of one file at `at`, page 0 of another file after them, and nothing beyond.
fn guest(at: u64) -> (Table, File, File) {
    let (low, high) = (memory(2), memory(1));
    let mut table = Table::default();
    let both = BOTH;
    map(
        &mut table,
        both,
        0,
        at,
        2 * PAGE,
        Some(low.try_clone().unwrap()),
    )
    .unwrap();
    map(
        &mut table,
        both,
        0,
        at + 2 * PAGE,
        PAGE,
        Some(high.try_clone().unwrap()),
    )
    .unwrap();
    (table, low, high)
}

#[test]
fn an_access_may_span_mappings() {
    let (table, low, high) = guest(0x10_0000);
    let data: Vec<u8> = (0..100).collect();
    table.write(0x10_0000 + 2 * PAGE - 37, &data).unwrap();
    let mut found = [0; 100];
    low.read_exact_at(&mut found[..37], 2 * PAGE - 37).unwrap();
    high.read_exact_at(&mut found[37..], 0).unwrap();
    assert_eq!(found[..], data);
    found.fill(0);
    table.read(0x10_0000 + 2 * PAGE - 37, &mut found).unwrap();
    assert_eq!(found[..], data);
}

#[test]
fn even_the_first_word_may_span_mappings() {
    let (table, low, high) = guest(0);
    let data: Vec<u8> = (1..=64).collect();
    table.write(2 * PAGE - 3, &data).unwrap();
    let mut found = [0; 64];
    low.read_exact_at(&mut found[..3], 2 * PAGE - 3).unwrap();
    high.read_exact_at(&mut found[3..], 0).unwrap();
    assert_eq!(found[..], data);
}

#[test]
fn an_access_that_leaves_the_mappings_does_nothing() {
    let (table, _, high) = guest(0x10_0000);
    let end = 0x10_0000 + 3 * PAGE;
    for (address, len) in [
        (end - 1, 2),
        (end - 4, 64),
        (end - 63, 64),
        (end, 1),
        (0x10_0000 - 1, 64),
        (0, 1),
        (u64::MAX, 1),
        (u64::MAX - 3, 64),
    ] {
        let error = DmaError {
            address,
            length: len,
        };
        assert_eq!(table.write(address, &vec![0xaa; len]), Err(error));
        let mut found = vec![0x55; len];
        assert_eq!(table.read(address, &mut found), Err(error));
        assert_eq!(found, vec![0x55; len]);
    }
    let mut found = [1; PAGE as usize];
    high.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, [0; PAGE as usize]);
    table.write(end, &[]).unwrap();
}

#[test]
fn the_last_address_can_be_mapped() {
    let mut table = Table::default();
    let last = u64::MAX - PAGE + 1;
    map(&mut table, BOTH, 0, last, PAGE, Some(memory(1))).unwrap();
    map(&mut table, BOTH, 0, 0, PAGE, Some(memory(1))).unwrap();
    table.write(u64::MAX - 15, &[7; 16]).unwrap();
    assert!(table.write(u64::MAX - 15, &[7; 17]).is_err());
    assert!(table.read(u64::MAX, &mut [0; 2]).is_err());
    table.unmap(last, PAGE).unwrap();
    assert!(table.read(last, &mut [0]).is_err());
}

#[test]
fn access_follows_the_flags() {
    let mut table = Table::default();
    map(&mut table, READ, 0, 0, PAGE, Some(memory(1))).unwrap();
    map(&mut table, WRITE, 0, PAGE, PAGE, Some(memory(1))).unwrap();
    map(&mut table, BOTH, 0, 2 * PAGE, PAGE, None).unwrap();
    assert!(table.read(0, &mut [0]).is_ok());
    assert!(table.write(0, &[0]).is_err());
    assert!(table.read(PAGE, &mut [0]).is_err());
    assert!(table.write(PAGE, &[0]).is_ok());
    assert!(table.read(2 * PAGE, &mut [0]).is_err());
    assert!(table.write(2 * PAGE, &[0]).is_err());
}

#[test]
fn bad_ranges_are_refused() {
    let mut table = Table::default();
    let both = BOTH;
    map(&mut table, both, PAGE, 16 * PAGE, PAGE, Some(memory(2))).unwrap();
    for (offset, address, size) in [
        (0, 0, 0),
        (0, u64::MAX - PAGE + 2, PAGE),
        (PAGE, 0, 2 * PAGE),
        (u64::MAX - PAGE + 1, 0, PAGE),
    ] {
        let refused = map(&mut table, both, offset, address, size, Some(memory(2)));
        let kind = refused.unwrap_err().kind();
        let range = format!("{offset} {address} {size}");
        assert_eq!(kind, io::ErrorKind::InvalidInput, "{range}");
    }
    for (address, size) in [
        (15 * PAGE, 2 * PAGE),
        (16 * PAGE, PAGE),
        (15 * PAGE, 3 * PAGE),
        (17 * PAGE - 1, PAGE),
    ] {
        let refused = map(&mut table, both, 0, address, size, Some(memory(3)));
        let kind = refused.unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::AlreadyExists, "{address} {size}");
    }
    assert_eq!(table.maps.len(), 1);
}

#[test]
fn unmapping_drops_whole_mappings() {
    let (mut table, ..) = guest(0x10_0000);
    for (address, size) in [
        (0x10_0000, PAGE),
        (0x10_0000 + PAGE, 2 * PAGE),
        (0x10_0000 + 2 * PAGE - 1, 1),
        (0, 0),
        (u64::MAX, 2),
    ] {
        let error = table.unmap(address, size).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::InvalidInput,
            "{address:#x} {size:#x}"
        );
    }
    assert_eq!(table.maps.len(), 2);
    table.unmap(0x10_0000, 2 * PAGE).unwrap();
    assert!(table.read(0x10_0000, &mut [0]).is_err());
    assert!(table.read(0x10_0000 + 2 * PAGE, &mut [0]).is_ok());
    table.unmap(0, u64::MAX).unwrap();
    assert!(table.read(0x10_0000 + 2 * PAGE, &mut [0]).is_err());
}

#[test]
fn mappings_are_limited() {
    let mut table = Table::default();
    let both = BOTH;
    let mut page = |page| map(&mut table, both, 0, page * PAGE, PAGE, None);
    (0..MAX_MAPPINGS).for_each(|number| page(number as u64).unwrap());
    let more = page(1 << 32).unwrap_err();
    assert_eq!(more.kind(), io::ErrorKind::StorageFull);
    table.unmap(0, PAGE).unwrap();
    map(&mut table, both, 0, 0, PAGE, None).unwrap();
    table.unmap(PAGE, 1 << 32).unwrap();
    assert_eq!(table.maps.len(), 1);
}

#[test]
fn pinned_memory_stays_accessible() {
    let (mut table, low, high) = guest(0x10_0000);
    let (address, length) = (0x10_0000 + PAGE - 7, PAGE as usize + 20);
    let source = table.pin(address, length, Access::Read).unwrap();
    let target = table.pin(address, length, Access::Write).unwrap();
    table.clear();
    assert!(table.read(address, &mut [0]).is_err());
    let data: Vec<u8> = (0..length).map(|n| n as u8).collect();
    // Another thread accesses the memory, without the table.
    let found = std::thread::spawn(move || {
        let mut found = vec![0; length];
        target.write(&data).unwrap();
        source.read(&mut found).unwrap();
        (data, found)
    });
    let (data, found) = found.join().unwrap();
    assert_eq!(data, found);
    let mut found = vec![0; length];
    let split = PAGE as usize + 7;
    low.read_exact_at(&mut found[..split], PAGE - 7).unwrap();
    high.read_exact_at(&mut found[split..], 0).unwrap();
    assert_eq!(data, found);
}

#[test]
fn contiguous_ranges_are_one_piece() {
    let (table, ..) = guest(0);
    let length = 2 * PAGE as usize;
    assert_eq!(table.pin(0, length, Access::Read).unwrap().pieces(), 1);
    // So are contiguous parts of one file that were mapped one by one, as behind an IOMMU.
    let file = memory(4);
    let mut pages = Table::default();
    for page in [3, 1, 0] {
        let file = file.try_clone().unwrap();
        let mapped = map(&mut pages, READ, page * PAGE, page << 20, PAGE, Some(file));
        mapped.unwrap();
    }
    let mut extents = Extents::new(0);
    for (page, pieces) in [(0_u64, 1), (1, 1), (3, 2)] {
        let page = page << 20;
        let pinned = pages.pin_more(&mut extents, page, PAGE as usize, Access::Read);
        pinned.unwrap();
        assert_eq!(extents.pieces(), pieces);
    }
    let mut extents = table.pin(0, PAGE as usize, Access::Read).unwrap();
    for (address, pieces) in [(PAGE, 1), (2 * PAGE, 2), (0, 3), (PAGE, 3)] {
        let appended = table.pin_more(&mut extents, address, PAGE as usize, Access::Read);
        appended.unwrap();
        assert_eq!(extents.pieces(), pieces);
    }
}

#[test]
fn copies_follow_the_pieces_of_both_sides() {
    let (source, ..) = guest(0);
    let data: Vec<u8> = (0..3 * PAGE).map(|n| ((n * 7) >> 3) as u8).collect();
    source.write(0, &data).unwrap();
    // Pages 0 and 1 are one piece in this order only. The first page of an order lacks its first 100 bytes.
    let ranges = |order: [usize; 3]| {
        let page = |(number, page)| {
            let skip = if number == 0 { 100 } else { 0 };
            page * PAGE as usize + skip..(page + 1) * PAGE as usize
        };
        order.into_iter().enumerate().map(page)
    };
    let pin = |table: &DmaTable, order, access| {
        let mut extents = Extents::new(0);
        for range in ranges(order) {
            let pinned = table.pin_more(&mut extents, range.start as u64, range.len(), access);
            pinned.unwrap();
        }
        extents
    };
    for (from, to) in [([2, 0, 1], [0, 2, 1]), ([0, 2, 1], [2, 0, 1])] {
        let (target, ..) = guest(0);
        let copied = pin(&source, from, Access::Read).copy_to(&pin(&target, to, Access::Write));
        copied.unwrap();
        let mut moved = ranges(from).flat_map(|range| &data[range]);
        let mut expected = vec![0; data.len()];
        for at in ranges(to).flatten() {
            expected[at] = *moved.next().unwrap();
        }
        let mut found = vec![0; data.len()];
        target.read(0, &mut found).unwrap();
        assert!(found == expected, "{from:?} to {to:?}");
    }
}

fn copy(
    (from, at): (&DmaTable, u64),
    (to, target): (&DmaTable, u64),
    length: usize,
) -> Result<(), CopyError> {
    let source = from.pin(at, length, Access::Read).unwrap();
    source.copy_to(&to.pin(target, length, Access::Write).unwrap())
}

#[test]
fn a_vmm_that_truncates_its_memory_harms_only_itself() {
    let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(PAGE).unwrap();
    let mut table = Table::default();
    let both = BOTH;
    let shared = file.try_clone().unwrap();
    map(&mut table, both, 0, 0, PAGE, Some(shared)).unwrap();
    let (other, ..) = guest(0);
    table.write(0, b"descriptor").unwrap();
    copy((&other, 0), (&table, 64), 64).unwrap();
    file.set_len(0).unwrap();
    let error = DmaError {
        address: 0,
        length: 64,
    };
    assert_eq!(table.read(0, &mut [0; 64]), Err(error));
    assert_eq!(
        copy((&table, 0), (&other, 0), 64),
        Err(CopyError::Source(error))
    );
}
