// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The guest's memory as the function's DMA sees it.

use std::{
    fs::File,
    io,
    sync::atomic::{Ordering, fence},
};

use efa_fabric::CopyError;
use efa_model::DmaError;
use vfio_user::DmaMapFlags;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice, mmap::MmapRegionBuilder};

/// The ranges of bus addresses that the VMM has mapped.
#[derive(Debug, Default)]
pub(crate) struct DmaTable {
    // In the order of their addresses; they do not overlap. They are few, and looked up for each page of payload.
    maps: Vec<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    size: u64,
    flags: DmaMapFlags,
    // None for what the VMM cannot share, such as a ROM or another device's registers.
    memory: Option<MmapRegion>,
}

impl Mapping {
    /// The address of its last byte.
    fn last(&self) -> u64 {
        self.start + (self.size - 1)
    }
}

impl DmaTable {
    /// Maps `size` bytes from `offset` of `file` at bus address `address`.
    ///
    /// # Errors
    ///
    /// The range is empty, wraps, overlaps another one or is beyond the end of the file, or it can't be mapped.
    pub(crate) fn map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        let last = size
            .checked_sub(1)
            .and_then(|size| address.checked_add(size))
            .ok_or_else(|| invalid("a DMA range is empty or wraps"))?;
        if self.below(last).is_some_and(|map| map.last() >= address) {
            return Err(invalid("a DMA range overlaps another one"));
        }
        let memory = file
            .map(|file| share(file, offset, size, flags))
            .transpose()?;
        let position = self.maps.partition_point(|map| map.start < address);
        let map = Mapping {
            start: address,
            size,
            flags,
            memory,
        };
        self.maps.insert(position, map);
        Ok(())
    }

    /// Drops the mappings inside of a range; it may not cut one in two.
    ///
    /// # Errors
    ///
    /// The range is empty, wraps or cuts a mapping.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> io::Result<()> {
        let last = size
            .checked_sub(1)
            .and_then(|size| address.checked_add(size))
            .ok_or_else(|| invalid("a DMA range to unmap is empty or wraps"))?;
        let cut = |at: u64| {
            self.below(at)
                .is_some_and(|map| map.start < at && map.last() >= at)
        };
        if cut(address) || last.checked_add(1).is_some_and(cut) {
            return Err(invalid("a DMA range to unmap is a part of a mapping"));
        }
        self.maps
            .retain(|map| !(address..=last).contains(&map.start));
        Ok(())
    }

    /// Drops all mappings.
    pub(crate) fn clear(&mut self) {
        self.maps.clear();
    }

    /// Reads the guest's memory.
    ///
    /// # Errors
    ///
    /// A byte of it is not mapped for reading; then none was read.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        if let Some(slice) = self.slice(address, buffer.len(), DmaMapFlags::READ) {
            slice.copy_to(buffer);
            return Ok(());
        }
        let mut rest = buffer;
        for slice in self.slices(address, rest.len(), DmaMapFlags::READ)? {
            let (now, later) = rest.split_at_mut(slice.len());
            slice.copy_to(now);
            rest = later;
        }
        Ok(())
    }

    /// Writes the guest's memory.
    ///
    /// A driver that sees the first eight bytes sees all of them, if they are aligned. On a bus a descriptor is
    /// written as a whole; here a driver on another CPU could see its phase bit, which all descriptors of the
    /// device have in these eight bytes, before the rest.
    ///
    /// # Errors
    ///
    /// A byte of it is not mapped for writing; then none was written.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        if let Some(slice) = self.slice(address, data.len(), DmaMapFlags::WRITE) {
            let first = data.len().min(size_of::<u64>());
            if let Ok(rest) = slice.offset(first) {
                rest.copy_from(&data[first..]);
            }
            fence(Ordering::Release);
            slice.copy_from(&data[..first]);
            return Ok(());
        }
        let error = DmaError {
            address,
            length: data.len(),
        };
        let (first, rest) = data.split_at(data.len().min(size_of::<u64>()));
        let first_slices = self.slices(address, first.len(), DmaMapFlags::WRITE);
        let rest_slices = match rest {
            [] => Ok(Vec::new()),
            _ => address
                .checked_add(first.len() as u64)
                .ok_or(error)
                .and_then(|address| self.slices(address, rest.len(), DmaMapFlags::WRITE)),
        };
        let (first_slices, rest_slices) = first_slices
            .and_then(|first| Ok((first, rest_slices?)))
            .map_err(|_| error)?;
        copy_to(&rest_slices, rest);
        fence(Ordering::Release);
        copy_to(&first_slices, first);
        Ok(())
    }

    /// Copies memory of this guest to memory of another one, or of the same.
    ///
    /// # Errors
    ///
    /// A byte of it is not mapped for that; then none was written.
    pub(crate) fn copy(
        &self,
        from: u64,
        to: &Self,
        at: u64,
        length: usize,
    ) -> Result<(), CopyError> {
        let source = self.slice(from, length, DmaMapFlags::READ);
        let target = to.slice(at, length, DmaMapFlags::WRITE);
        if let (Some(source), Some(target)) = (source, target) {
            source.copy_to_volatile_slice(target);
            return Ok(());
        }
        let mut bytes = vec![0; length];
        self.read(from, &mut bytes).map_err(CopyError::Source)?;
        to.write(at, &bytes).map_err(CopyError::Target)
    }

    /// The memory behind a range, if it is in one mapping.
    fn slice(&self, address: u64, len: usize, access: DmaMapFlags) -> Option<VolatileSlice<'_>> {
        let map = self.below(address)?;
        let memory = map.memory.as_ref()?;
        if !map.flags.contains(access) {
            return None;
        }
        let offset = usize::try_from(address - map.start).ok()?;
        memory.get_slice(offset, len).ok()
    }

    /// The mapping with the highest first address that is not above `address`.
    fn below(&self, address: u64) -> Option<&Mapping> {
        let above = self.maps.partition_point(|map| map.start <= address);
        self.maps.get(above.checked_sub(1)?)
    }

    /// The pieces of memory behind a range, which may span mappings.
    fn slices(
        &self,
        address: u64,
        len: usize,
        access: DmaMapFlags,
    ) -> Result<Vec<VolatileSlice<'_>>, DmaError> {
        let error = DmaError {
            address,
            length: len,
        };
        let mut slices = Vec::new();
        let mut next = Some(address);
        let mut left = len;
        while left > 0 {
            let address = next.ok_or(error)?;
            let map = self.below(address).ok_or(error)?;
            let offset = address - map.start;
            let available = map
                .size
                .checked_sub(offset)
                .filter(|size| *size > 0)
                .ok_or(error)?;
            let memory = map
                .memory
                .as_ref()
                .filter(|_| map.flags.contains(access))
                .ok_or(error)?;
            let count = usize::try_from(available).map_or(left, |available| left.min(available));
            let offset = usize::try_from(offset).map_err(|_| error)?;
            slices.push(memory.get_slice(offset, count).map_err(|_| error)?);
            left -= count;
            next = address.checked_add(count as u64);
        }
        Ok(slices)
    }
}

fn copy_to(slices: &[VolatileSlice<'_>], data: &[u8]) {
    let mut rest = data;
    for slice in slices {
        let (now, later) = rest.split_at(slice.len());
        slice.copy_from(now);
        rest = later;
    }
}

fn share(file: File, offset: u64, size: u64, flags: DmaMapFlags) -> io::Result<MmapRegion> {
    // Memory beyond the end of a file can be mapped, but an access to it would kill the program.
    let end = offset
        .checked_add(size)
        .ok_or_else(|| invalid("a DMA range's file offset wraps"))?;
    if file.metadata()?.len() < end {
        return Err(invalid("a DMA range is beyond the end of its file"));
    }
    let size = usize::try_from(size).map_err(|_| invalid("a DMA range is too large"))?;
    let protection = if flags.contains(DmaMapFlags::WRITE) {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    MmapRegionBuilder::new(size)
        .with_file_offset(FileOffset::new(file, offset))
        .with_mmap_prot(protection)
        .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
        .build()
        .map_err(io::Error::other)
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::unix::fs::FileExt;

    use super::*;

    const PAGE: u64 = 4096;

    fn memory(pages: u64) -> File {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(pages * PAGE).unwrap();
        file
    }

    /// Pages 0 and 1 of one file at `at`, page 0 of another one after them, and nothing behind.
    fn guest(at: u64) -> (DmaTable, File, File) {
        let (low, high) = (memory(2), memory(1));
        let mut table = DmaTable::default();
        let both = DmaMapFlags::READ_WRITE;
        table
            .map(both, 0, at, 2 * PAGE, Some(low.try_clone().unwrap()))
            .unwrap();
        table
            .map(
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
        let mut table = DmaTable::default();
        let last = u64::MAX - PAGE + 1;
        table
            .map(DmaMapFlags::READ_WRITE, 0, last, PAGE, Some(memory(1)))
            .unwrap();
        table
            .map(DmaMapFlags::READ_WRITE, 0, 0, PAGE, Some(memory(1)))
            .unwrap();
        table.write(u64::MAX - 15, &[7; 16]).unwrap();
        assert!(table.write(u64::MAX - 15, &[7; 17]).is_err());
        assert!(table.read(u64::MAX, &mut [0; 2]).is_err());
        table.unmap(last, PAGE).unwrap();
        assert!(table.read(last, &mut [0]).is_err());
    }

    #[test]
    fn access_follows_the_flags() {
        let mut table = DmaTable::default();
        table
            .map(DmaMapFlags::READ, 0, 0, PAGE, Some(memory(1)))
            .unwrap();
        table
            .map(DmaMapFlags::WRITE, 0, PAGE, PAGE, Some(memory(1)))
            .unwrap();
        table
            .map(DmaMapFlags::READ_WRITE, 0, 2 * PAGE, PAGE, None)
            .unwrap();
        assert!(table.read(0, &mut [0]).is_ok());
        assert!(table.write(0, &[0]).is_err());
        assert!(table.read(PAGE, &mut [0]).is_err());
        assert!(table.write(PAGE, &[0]).is_ok());
        assert!(table.read(2 * PAGE, &mut [0]).is_err());
        assert!(table.write(2 * PAGE, &[0]).is_err());
    }

    #[test]
    fn bad_ranges_are_refused() {
        let mut table = DmaTable::default();
        let both = DmaMapFlags::READ_WRITE;
        table
            .map(both, PAGE, 16 * PAGE, PAGE, Some(memory(2)))
            .unwrap();
        for (offset, address, size) in [
            (0, 0, 0),
            (0, u64::MAX - PAGE + 2, PAGE),
            (0, 15 * PAGE, 2 * PAGE),
            (0, 16 * PAGE, PAGE),
            (0, 15 * PAGE, 3 * PAGE),
            (0, 17 * PAGE - 1, PAGE),
            (PAGE, 0, 2 * PAGE),
            (u64::MAX - PAGE + 1, 0, PAGE),
        ] {
            let error = table
                .map(both, offset, address, size, Some(memory(2)))
                .unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::InvalidInput,
                "{offset} {address} {size}"
            );
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
}
