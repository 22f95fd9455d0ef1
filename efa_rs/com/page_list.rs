// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lists of a memory region's pages, in the form that the device reads.
//!
//! A few pages are part of the command. A longer list is in coherent memory, where it holds for
//! devices whose streaming DMA is bounced: in one piece if it is short, else in segments that a
//! chain of chunks refers to.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    device::{
        Bound,
        Device, //
    },
    dma::{
        Coherent,
        CoherentBox, //
    },
    prelude::*, //
};

use crate::{
    hw::admin::{
        control::{
            CHUNK_ENTRIES,
            CHUNK_NEXT_OFFSET,
            CHUNK_SIZE,
            CHUNK_USED_SIZE, //
        },
        mr::{
            PageList,
            INLINE_PAGES, //
        },
        CtrlBuffInfo,
    }, //
};

/// Bytes of the longest list in one piece, and of a segment of a longer one: what is allocated at
/// once. A multiple of [`CHUNK_SIZE`].
const SEGMENT_SIZE: usize = 16 * CHUNK_SIZE;

/// Addresses in a segment.
const SEGMENT_ENTRIES: usize = SEGMENT_SIZE / size_of::<u64>();

/// Words in a chunk.
const CHUNK_WORDS: usize = CHUNK_SIZE / size_of::<u64>();

/// A list of pages, and the memory that it is in.
pub(crate) struct Pages {
    list: PageList,
    _memory: KVec<Coherent<[u64]>>,
}

impl Pages {
    /// Makes a list of `count` pages, whose addresses `fill` writes, piece by piece in their order.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - [`EINVAL`] if `fill` has fewer addresses than `count`.
    pub(crate) fn new(
        dev: &Device<Bound>,
        count: usize,
        mut fill: impl FnMut(&mut [u64]) -> usize,
    ) -> Result<Self> {
        let mut fill_all = |pages: &mut [u64]| {
            if fill(pages) == pages.len() {
                Ok(())
            } else {
                Err(EINVAL)
            }
        };

        if count <= INLINE_PAGES {
            let mut pages = [0; INLINE_PAGES];
            fill_all(pages.get_mut(..count).ok_or(EINVAL)?)?;
            return Ok(Self {
                list: PageList::Inline(pages),
                _memory: KVec::new(),
            });
        }

        let mut memory = KVec::new();
        let mut left = count;
        while left != 0 {
            let entries = left.min(SEGMENT_ENTRIES);
            let mut segment = alloc(dev, entries)?;
            fill_all(&mut segment)?;
            memory.push(Coherent::from(segment), GFP_KERNEL)?;
            left -= entries;
        }

        let list = match memory.first() {
            Some(only) if count <= SEGMENT_ENTRIES => PageList::Direct(CtrlBuffInfo {
                // CAST: At most `SEGMENT_SIZE`.
                length: (count * size_of::<u64>()) as u32,
                address: only.dma_address(),
            }),
            _ => PageList::Indirect(chain(dev, &mut memory, count)?),
        };
        Ok(Self {
            list,
            _memory: memory,
        })
    }

    /// Returns the list in the form that the command has.
    pub(crate) fn list(&self) -> PageList {
        self.list
    }
}

/// Adds the chunks that refer to the pages of a list, and returns the reference to the first one.
fn chain(
    dev: &Device<Bound>,
    memory: &mut KVec<Coherent<[u64]>>,
    count: usize,
) -> Result<CtrlBuffInfo> {
    let pages = (count * size_of::<u64>()).div_ceil(CHUNK_SIZE);
    let pages_of_segment = SEGMENT_SIZE / CHUNK_SIZE;
    let mut next = CtrlBuffInfo::default();

    // From the last to the first, as each refers to its successor.
    for chunk in (0..pages.div_ceil(CHUNK_ENTRIES)).rev() {
        let first = chunk * CHUNK_ENTRIES;
        let entries = CHUNK_ENTRIES.min(pages - first);
        let mut words = alloc(dev, CHUNK_WORDS)?;

        for (page, word) in (first..first + entries).zip(words.iter_mut()) {
            let segment = memory.get(page / pages_of_segment).ok_or(EINVAL)?;
            // CAST: An offset within a segment.
            *word = segment.dma_address() + (page % pages_of_segment * CHUNK_SIZE) as u64;
        }

        // The reference ends with the chunk: a word and a half.
        let reference = next.encode();
        let mut tail = [0; 2 * size_of::<u64>()];
        for (to, from) in tail.iter_mut().zip(reference) {
            *to = from;
        }
        let tail_words = words.get_mut(CHUNK_NEXT_OFFSET / size_of::<u64>()..);
        for (word, bytes) in tail_words
            .ok_or(EINVAL)?
            .iter_mut()
            .zip(tail.chunks_exact(8))
        {
            *word = u64::from_le_bytes(bytes.try_into().map_err(|_| EINVAL)?);
        }

        let used = if entries == CHUNK_ENTRIES {
            CHUNK_USED_SIZE
        } else {
            entries * size_of::<u64>() + CtrlBuffInfo::SIZE
        };
        let words = Coherent::from(words);
        next = CtrlBuffInfo {
            // CAST: At most `CHUNK_SIZE`.
            length: used as u32,
            address: words.dma_address(),
        };
        memory.push(words, GFP_KERNEL)?;
    }
    Ok(next)
}

/// Allocates memory for addresses that the device does not know of yet.
fn alloc(dev: &Device<Bound>, entries: usize) -> Result<CoherentBox<[u64]>> {
    CoherentBox::zeroed_slice(dev, entries, GFP_KERNEL | __GFP_NOWARN)
}
