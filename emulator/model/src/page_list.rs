// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lists of the pages of a memory region.

use efa_hw::admin::{
    CtrlBuffInfo, Status,
    control::{CHUNK_ENTRIES, CHUNK_ENTRY_SIZE, CHUNK_NEXT_OFFSET, CHUNK_SIZE, CHUNK_USED_SIZE},
    mr::{INLINE_PAGES, PageList},
};

use crate::{DmaError, Host, firmware::Failure};

/// Reads the bus addresses of `count` pages.
///
/// The caller limits `count`. Of an indirect list no more chunks are read than these pages need.
pub(crate) fn read(host: &mut dyn Host, list: PageList, count: u64) -> Result<Vec<u64>, Failure> {
    let count = usize::try_from(count).map_err(|_| Status::ResourceAllocationFailure)?;
    match list {
        PageList::Inline(pages) => inline(pages, count),
        PageList::Direct(buffer) => direct(host, buffer, count),
        PageList::Indirect(chunk) => indirect(host, chunk, count),
    }
}

fn inline(pages: [u64; INLINE_PAGES], count: usize) -> Result<Vec<u64>, Failure> {
    let (used, unused) = pages
        .split_at_checked(count)
        .ok_or(Status::MalformedRequest)?;
    if unused.iter().any(|page| *page != 0) {
        return Err(Status::MalformedRequest.into());
    }
    Ok(used.to_vec())
}

fn direct(host: &mut dyn Host, buffer: CtrlBuffInfo, count: usize) -> Result<Vec<u64>, Failure> {
    if buffer.length as usize != count * CHUNK_ENTRY_SIZE {
        return Err(Status::MalformedRequest.into());
    }
    Ok(addresses(host, buffer.address, count)?)
}

fn indirect(host: &mut dyn Host, first: CtrlBuffInfo, count: usize) -> Result<Vec<u64>, Failure> {
    const ENTRIES_PER_PAGE: usize = CHUNK_SIZE / CHUNK_ENTRY_SIZE;

    let mut pages = Vec::with_capacity(count);
    let mut chunk = first;
    let mut buffers = count.div_ceil(ENTRIES_PER_PAGE);
    while buffers > 0 {
        let entries = buffers.min(CHUNK_ENTRIES);
        if chunk.length as usize != entries * CHUNK_ENTRY_SIZE + CtrlBuffInfo::SIZE {
            return Err(Status::MalformedRequest.into());
        }
        for buffer in addresses(host, chunk.address, entries)? {
            let rest = count - pages.len();
            pages.extend(addresses(host, buffer, rest.min(ENTRIES_PER_PAGE))?);
        }
        buffers -= entries;
        if buffers > 0 {
            let mut next = [0; CHUNK_USED_SIZE - CHUNK_NEXT_OFFSET];
            let address = chunk.address.wrapping_add(CHUNK_NEXT_OFFSET as u64);
            host.dma_read(address, &mut next)?;
            chunk = CtrlBuffInfo::decode(&next);
        }
    }
    Ok(pages)
}

/// Reads addresses that are one after the other in host memory.
pub(crate) fn addresses(
    host: &mut dyn Host,
    address: u64,
    count: usize,
) -> Result<Vec<u64>, DmaError> {
    let mut bytes = vec![0; count * CHUNK_ENTRY_SIZE];
    host.dma_read(address, &mut bytes)?;
    Ok(bytes
        .chunks_exact(CHUNK_ENTRY_SIZE)
        .map(|entry| {
            entry
                .iter()
                .rfold(0, |value, byte| (value << 8) | u64::from(*byte))
        })
        .collect())
}
