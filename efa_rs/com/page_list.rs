// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lists of a memory region's pages, in the form that the device reads.
//!
//! The addresses of a few pages are part of the command. A longer list is in coherent memory, as
//! streaming DMA may be bounced. It is one piece, or several that a chain of chunks refers to. If
//! memory is fragmented, pieces are as small as the device allows.

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
            CHUNK_ENTRY_SIZE,
            CHUNK_SIZE, //
        },
        mr::{
            PageList,
            INLINE_PAGES, //
        },
        CtrlBuffInfo,
    }, //
};

/// Number of words in a chunk, and in a page that it refers to.
const CHUNK_WORDS: usize = CHUNK_SIZE / CHUNK_ENTRY_SIZE;

/// Number of words in a full piece where memory is not fragmented.
const PIECE_WORDS: usize = 16 * CHUNK_WORDS;

/// Coherent memory that contains addresses.
type Piece = Coherent<[u64]>;

/// The memory of a list of pages that is not in the command.
pub(crate) struct Pages {
    _pieces: KVVec<Piece>,
    _chunks: KVVec<Piece>,
}

impl Pages {
    /// Creates a list of `count` pages, whose addresses `fill` writes in order, piece by piece.
    /// Returns it in the command's format, with the memory that it refers to.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - [`EINVAL`] if `fill` has fewer addresses than `count`.
    pub(crate) fn new(
        dev: &Device<Bound>,
        count: usize,
        mut fill: impl FnMut(&mut [u64]) -> usize,
    ) -> Result<(PageList, Option<Self>)> {
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
            return Ok((PageList::Inline(pages), None));
        }

        let mut pieces = KVVec::new();
        let (mut left, mut most) = (count, PIECE_WORDS);
        while left != 0 {
            let words = left.min(most);
            match alloc(dev, words) {
                Ok(mut piece) => {
                    fill_all(&mut piece)?;
                    pieces.push(Coherent::from(piece), GFP_KERNEL)?;
                    left -= words;
                }
                // Sizes in between are not tried, as the allocator has tried hard enough.
                Err(_) if words > CHUNK_WORDS => most = CHUNK_WORDS,
                Err(error) => return Err(error),
            }
        }

        let (list, chunks) = match pieces.as_slice() {
            [only] => {
                let buffer = CtrlBuffInfo {
                    // CAST: At most the bytes of `PIECE_WORDS`.
                    length: (count * CHUNK_ENTRY_SIZE) as u32,
                    address: only.dma_address(),
                };
                (PageList::Direct(buffer), KVVec::new())
            }
            _ => chain(dev, &pieces)?,
        };
        let memory = Self {
            _pieces: pieces,
            _chunks: chunks,
        };
        Ok((list, Some(memory)))
    }
}

/// Creates the chain of chunks that refers to the pages of a list in several pieces. All pieces but
/// the last one are whole pages.
fn chain(dev: &Device<Bound>, pieces: &[Piece]) -> Result<(PageList, KVVec<Piece>)> {
    let pages = |piece: &Piece| piece.size().div_ceil(CHUNK_SIZE);
    let mut left: usize = pieces.iter().map(pages).sum();
    let mut addresses = pieces.iter().rev().flat_map(|piece| {
        let pages = (0..pages(piece)).rev();
        // CAST: An offset within a piece.
        pages.map(|page| piece.dma_address() + (page * CHUNK_SIZE) as u64)
    });
    let mut chunks = KVVec::new();
    let mut next = CtrlBuffInfo::default();

    // From the last to the first, as each refers to its successor.
    while left != 0 {
        let entries = (left - 1) % CHUNK_ENTRIES + 1;
        let mut chunk = alloc(dev, CHUNK_WORDS)?;

        for (word, address) in chunk.iter_mut().take(entries).rev().zip(&mut addresses) {
            *word = address;
        }
        if let Some(tail) = chunk.last_chunk_mut() {
            *tail = next.to_words();
        }

        let chunk = Coherent::from(chunk);
        next = CtrlBuffInfo {
            // CAST: At most `CHUNK_SIZE`.
            length: (entries * CHUNK_ENTRY_SIZE + CtrlBuffInfo::SIZE) as u32,
            address: chunk.dma_address(),
        };
        chunks.push(chunk, GFP_KERNEL)?;
        left -= entries;
    }
    Ok((PageList::Indirect(next), chunks))
}

/// Allocates memory for addresses. The device does not use it yet.
fn alloc(dev: &Device<Bound>, words: usize) -> Result<CoherentBox<[u64]>> {
    CoherentBox::zeroed_slice(dev, words, GFP_KERNEL | __GFP_NOWARN)
}
