// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lists of the pages of a memory region, in host memory or in the command or work request itself.

use efa_hw::admin::{
    CtrlBuffInfo, Status,
    control::{CHUNK_ENTRIES, CHUNK_ENTRY_SIZE, CHUNK_NEXT_OFFSET, CHUNK_SIZE, CHUNK_USED_SIZE},
    mr::PageList,
};

use super::{failure::Failure, page_runs::PageRuns};
use crate::{DmaError, Host, ensure, profile::attributes::Attributes};

/// Bytes in a page of the host.
const SMALLEST_PAGE: u64 = 4096;

/// Number of addresses in a host page, which are read at once.
const ENTRIES_PER_PAGE: usize = CHUNK_SIZE / CHUNK_ENTRY_SIZE;

/// Limit on page addresses read in one call. A longer list takes several calls, between which other work runs.
pub(crate) const PAGES_PER_CALL: u32 = 1 << 14;

/// A page list that is being read. The longest take several calls.
#[derive(Debug)]
pub(crate) struct PageReader {
    source: Source,
    /// Size of the pages, as a power of two.
    shift: u8,
    /// Number of pages not read yet.
    left: usize,
    runs: PageRuns,
    /// Whether the addresses of all pages read are valid.
    valid: bool,
}

/// Location of the rest of a list.
#[derive(Debug)]
enum Source {
    /// Consecutive addresses from this bus address on.
    Direct(u64),
    /// Buffers of a page each, whose addresses are in chunks.
    Indirect {
        /// The next chunk.
        chunk: CtrlBuffInfo,
        /// Number of buffers in that chunk and those after it.
        buffers: usize,
        /// Addresses of the remaining buffers of the chunk before it.
        current: std::vec::IntoIter<u64>,
    },
}

impl PageReader {
    /// Begins to read the list of a command with `count` pages of size `1 << shift`. The caller limits `count`.
    pub(super) fn of_command(attributes: &Attributes, list: PageList, count: u64, shift: u8) -> Result<Self, Failure> {
        let count = usize::try_from(count).map_err(|_| Status::ResourceAllocationFailure)?;
        match list {
            PageList::Inline(pages) => {
                let (used, unused) = pages.split_at_checked(count).ok_or(Status::MalformedRequest)?;
                let legal = unused.iter().all(|page| *page == 0);
                ensure(legal, Status::MalformedRequest)?;
                Ok(Self::inline(attributes, used, shift))
            }
            PageList::Direct(buffer) => {
                let legal = buffer.length as usize == count * CHUNK_ENTRY_SIZE;
                ensure(legal, Status::MalformedRequest)?;
                Ok(Self::direct(buffer.address, count, shift))
            }
            PageList::Indirect(chunk) => {
                let source = Source::Indirect {
                    chunk,
                    buffers: count.div_ceil(ENTRIES_PER_PAGE),
                    current: Vec::new().into_iter(),
                };
                Ok(Self::new(source, count, shift))
            }
        }
    }

    /// Returns a reader for pages that are already known.
    pub(super) fn inline(attributes: &Attributes, pages: &[u64], shift: u8) -> Self {
        let mut reader = Self::new(Source::Direct(0), pages.len(), shift);
        for page in pages {
            reader.push(attributes, *page);
        }
        reader
    }

    /// Begins to read consecutive addresses in host memory.
    pub(super) fn direct(address: u64, count: usize, shift: u8) -> Self {
        Self::new(Source::Direct(address), count, shift)
    }

    /// Whether the list, including pages already read, is longer than one call reads.
    pub(crate) fn is_long(&self) -> bool {
        self.left + self.runs.len() as usize > PAGES_PER_CALL as usize
    }

    fn new(source: Source, left: usize, shift: u8) -> Self {
        Self { source, shift, left, runs: PageRuns::default(), valid: true }
    }

    /// Reads more pages until `budget` is used up, and subtracts them from it. Returns whether all are read.
    pub(crate) fn read(
        &mut self,
        attributes: &Attributes,
        host: &mut dyn Host,
        budget: &mut u32,
    ) -> Result<bool, Failure> {
        while self.left > 0 && *budget > 0 {
            let count = self.left.min(ENTRIES_PER_PAGE);
            let Some(address) = self.next(host)? else {
                continue;
            };
            let mut bytes = [0; CHUNK_SIZE];
            let bytes = &mut bytes[..count * CHUNK_ENTRY_SIZE];
            host.dma_read(address, bytes)?;
            for page in addresses(bytes) {
                self.push(attributes, page);
            }
            // CAST: at most `ENTRIES_PER_PAGE`.
            *budget = budget.saturating_sub(count as u32);
        }
        Ok(self.left == 0)
    }

    /// Returns all pages, if they are all read and their addresses are valid.
    pub(super) fn finish(mut self) -> Option<PageRuns> {
        // The pages live as long as their region.
        self.runs.shrink();
        (self.left == 0 && self.valid).then_some(self.runs)
    }

    /// Returns the bus address of the next addresses to read, or `None` after a chunk was read instead. Reads no more chunks than
    /// the pages need.
    fn next(&mut self, host: &mut dyn Host) -> Result<Option<u64>, Failure> {
        let (chunk, buffers, current) = match &mut self.source {
            Source::Direct(address) => {
                let next = address.wrapping_add(CHUNK_SIZE as u64);
                return Ok(Some(std::mem::replace(address, next)));
            }
            Source::Indirect { chunk, buffers, current } => (chunk, buffers, current),
        };
        if let Some(address) = current.next() {
            return Ok(Some(address));
        }
        let entries = (*buffers).min(CHUNK_ENTRIES);
        let legal = chunk.length as usize == entries * CHUNK_ENTRY_SIZE + CtrlBuffInfo::SIZE;
        ensure(legal, Status::MalformedRequest)?;
        let mut bytes = [0; CHUNK_SIZE];
        let bytes = &mut bytes[..entries * CHUNK_ENTRY_SIZE];
        host.dma_read(chunk.address, bytes)?;
        *current = addresses(bytes).collect::<Vec<_>>().into_iter();
        *buffers -= entries;
        if *buffers > 0 {
            *chunk = next_chunk(host, chunk)?;
        }
        Ok(None)
    }

    fn push(&mut self, attributes: &Attributes, page: u64) {
        self.valid &= is_valid(attributes, page, 1 << self.shift);
        self.runs.push(page, self.shift);
        self.left -= 1;
    }
}

/// Reads address and length of the chunk after `chunk`.
fn next_chunk(host: &mut dyn Host, chunk: &CtrlBuffInfo) -> Result<CtrlBuffInfo, DmaError> {
    let mut next = [0; CHUNK_USED_SIZE - CHUNK_NEXT_OFFSET];
    let address = chunk.address.wrapping_add(CHUNK_NEXT_OFFSET as u64);
    host.dma_read(address, &mut next)?;
    Ok(CtrlBuffInfo::decode(&next))
}

/// Whether the address of a page is valid.
fn is_valid(attributes: &Attributes, page: u64, size: u64) -> bool {
    // No host allocates its very first page. A larger page may begin there.
    page % size == 0 && (page != 0 || size > SMALLEST_PAGE) && attributes.reaches(page, size)
}

/// Decodes consecutive little-endian addresses.
fn addresses(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let entries = bytes.chunks_exact(CHUNK_ENTRY_SIZE);
    entries.map(|entry| entry.iter().rfold(0, |value, byte| (value << 8) | u64::from(*byte)))
}
