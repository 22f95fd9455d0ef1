// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The guest's memory as the function's DMA sees it.

use std::{collections::BTreeMap, io, sync::Arc};

use efa_fabric::{Access, Memory as _};
use efa_model::DmaError;
use vfio_user::DmaMap;

use crate::{
    extents::Extents,
    memory::{Memory, invalid},
};

/// Limit on the mappings of a VMM: the protocol's default. A VMM has few, unless the guest uses a virtual IOMMU.
pub(crate) const MAX_MAPPINGS: usize = 65535;

/// The ranges of bus addresses that the VMM has mapped.
#[derive(Debug, Default)]
pub(crate) struct DmaTable {
    // Mappings by their first addresses. They do not overlap.
    maps: BTreeMap<u64, Mapping>,
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    size: u64,
    readable: bool,
    writable: bool,
    // File and offset. `None` for memory that the VMM cannot share, such as a ROM or another device's registers.
    memory: Option<(Arc<Memory>, u64)>,
}

impl Mapping {
    /// Returns the address of its last byte.
    fn last(&self) -> u64 {
        self.start + (self.size - 1)
    }

    /// Returns its memory and its offset there, if the device may access it.
    fn memory(&self, access: Access) -> Option<(&Arc<Memory>, u64)> {
        let allowed = match access {
            Access::Read => self.readable,
            Access::Write => self.writable,
        };
        let (memory, offset) = self.memory.as_ref()?;
        allowed.then_some((memory, *offset))
    }
}

impl DmaTable {
    /// Maps a part of a file, which includes the range, at a bus address. Without a file, the device can't access the range.
    ///
    /// # Errors
    ///
    /// The range is empty, wraps or overlaps another one. The file can't be written. There are too many mappings.
    pub(crate) fn map(&mut self, map: DmaMap, memory: Option<Arc<Memory>>) -> io::Result<()> {
        let DmaMap { readable, writable, offset, address, size } = map;
        let last = size
            .checked_sub(1)
            .and_then(|size| address.checked_add(size))
            .ok_or_else(|| invalid("a DMA range is empty or wraps"))?;
        if self.below(last).is_some_and(|map| map.last() >= address) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a DMA range overlaps another one"));
        }
        if self.maps.len() == MAX_MAPPINGS {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "too many DMA ranges"));
        }
        if writable && memory.as_ref().is_some_and(|memory| !memory.is_writable()) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a writable DMA range has a read-only file"));
        }
        let map = Mapping { start: address, size, readable, writable, memory: memory.map(|memory| (memory, offset)) };
        self.maps.insert(address, map);
        Ok(())
    }

    /// Removes the mappings within a range, which must not cut a mapping. Their memory stays accessible while it is pinned.
    ///
    /// # Errors
    ///
    /// The range is empty, wraps or cuts a mapping.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> io::Result<()> {
        let last = size
            .checked_sub(1)
            .and_then(|size| address.checked_add(size))
            .ok_or_else(|| invalid("a DMA range to unmap is empty or wraps"))?;
        let cut = |at: u64| self.below(at).is_some_and(|map| map.start < at && map.last() >= at);
        if cut(address) || last.checked_add(1).is_some_and(cut) {
            return Err(invalid("a DMA range to unmap cuts a mapping"));
        }
        while let Some((&start, _)) = self.maps.range(address..=last).next() {
            self.maps.remove(&start);
        }
        Ok(())
    }

    /// Removes all mappings.
    pub(crate) fn clear(&mut self) {
        self.maps.clear();
    }

    /// Pins a range of the guest's memory while the result lives, so that it can be accessed without this table.
    ///
    /// # Errors
    ///
    /// A byte of the range is not mapped for the access.
    pub(crate) fn pin(&self, address: u64, length: usize, access: Access) -> Result<Extents, DmaError> {
        let mut extents = Extents::new(address);
        self.pin_more(&mut extents, address, length, access)?;
        Ok(extents)
    }

    /// Pins a range and appends it to `extents`. Ranges that are contiguous in the same file become one piece.
    ///
    /// # Errors
    ///
    /// A byte of the range is not mapped for the access. Then earlier bytes may have been appended.
    pub(crate) fn pin_more(
        &self,
        extents: &mut Extents,
        address: u64,
        length: usize,
        access: Access,
    ) -> Result<(), DmaError> {
        let error = DmaError { address, length };
        let mut next = Some(address);
        let mut left = length;
        while left > 0 {
            let address = next.ok_or(error)?;
            let map = self.below(address).ok_or(error)?;
            let offset = address - map.start;
            let available = map.size.checked_sub(offset).filter(|size| *size > 0).ok_or(error)?;
            let (memory, start) = map.memory(access).ok_or(error)?;
            let count = usize::try_from(available).map_or(left, |available| left.min(available));
            let offset = usize::try_from(start + offset).map_err(|_| error)?;
            extents.push(memory, offset, count);
            left -= count;
            next = address.checked_add(count as u64);
        }
        Ok(())
    }

    /// Reads the guest's memory.
    ///
    /// # Errors
    ///
    /// A byte is not mapped for reading, in which case none was read, or the VMM has revoked the memory.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.pin(address, buffer.len(), Access::Read)?.read(buffer)
    }

    /// Writes the guest's memory, in the order of its [`write`](efa_fabric::Memory::write).
    ///
    /// # Errors
    ///
    /// A byte is not mapped for writing, in which case none was written, or the VMM has revoked the memory.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.pin(address, data.len(), Access::Write)?.write(data)
    }

    /// Returns the mapping with the highest first address that is not above `address`.
    fn below(&self, address: u64) -> Option<&Mapping> {
        self.maps.range(..=address).next_back().map(|(_, map)| map)
    }
}

#[cfg(test)]
mod tests;
