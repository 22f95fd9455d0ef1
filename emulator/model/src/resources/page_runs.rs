// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The pages of a memory region, as runs of contiguous bus addresses.
//!
//! Most memory is contiguous for the device, behind an IOMMU or as huge pages. A lookup in a region of one run takes one step,
//! whatever its size. Scattered pages take 12 bytes each, and a lookup takes as many steps as their number has bits.

use std::ops::Range;

use crate::queue::Place;

/// Pages, with those at contiguous bus addresses merged into runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRuns {
    /// Index of the first page of each run among all pages.
    starts: Vec<u32>,
    /// Bus address of that page.
    addresses: Vec<u64>,
    pages: u32,
}

impl PageRuns {
    /// Returns the number of pages.
    pub(crate) fn len(&self) -> u32 {
        self.pages
    }

    /// Bus address of the first page.
    pub(crate) fn first(&self) -> Option<u64> {
        self.addresses.first().copied()
    }

    /// Returns the locations of a range of offsets.
    pub(super) fn places(&self, range: Range<u64>, shift: u8) -> impl Iterator<Item = Place> {
        let ends = self.starts.iter().skip(1).chain([&self.pages]);
        let runs = self.addresses.iter().zip(self.starts.iter().zip(ends));
        runs.map(move |(base, (start, end))| {
            let (first, end) = (u64::from(*start) << shift, u64::from(*end) << shift);
            let start = first.max(range.start);
            Place { base: base + (start - first), size: end.min(range.end) - start }
        })
    }

    /// Adds a page of size `1 << shift`, the same for all pages.
    pub(crate) fn push(&mut self, address: u64, shift: u8) {
        let follows = match (self.starts.last(), self.addresses.last()) {
            (Some(start), Some(first)) => first.checked_add(u64::from(self.pages - start) << shift) == Some(address),
            _ => false,
        };
        if !follows {
            self.starts.push(self.pages);
            self.addresses.push(address);
        }
        self.pages += 1;
    }

    /// Frees the memory reserved for further runs.
    pub(crate) fn shrink(&mut self) {
        self.starts.shrink_to_fit();
        self.addresses.shrink_to_fit();
    }

    /// Returns the bus address at an offset in all pages, and the number of contiguous bytes from there on.
    pub(crate) fn at(&self, offset: u64, shift: u8) -> Option<(u64, u64)> {
        let page = u32::try_from(offset >> shift).ok()?;
        if page >= self.pages {
            return None;
        }
        let next = self.starts.partition_point(|start| *start <= page);
        let run = next.checked_sub(1)?;
        let start = u64::from(self.starts[run]) << shift;
        let end = self.starts.get(next).copied().unwrap_or(self.pages);
        Some((self.addresses[run] + (offset - start), (u64::from(end) << shift) - offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIFT: u8 = 12;

    fn runs(pages: &[u64]) -> PageRuns {
        let mut runs = PageRuns::default();
        for page in pages {
            runs.push(page << SHIFT, SHIFT);
        }
        runs
    }

    #[test]
    fn contiguous_pages_are_one_run() {
        let pages: Vec<_> = (100..100 + 256).collect();
        let runs = runs(&pages);
        assert_eq!((runs.len(), runs.addresses.len()), (256, 1));
        assert_eq!(runs.at(256 << SHIFT, SHIFT), None);
    }

    /// For any pages, each byte is at the address that its page has.
    #[test]
    fn every_byte_is_in_its_page() {
        // A repeated page, descending pages, and the highest possible ones.
        let last = u64::MAX >> SHIFT;
        let pages = [7, 8, 9, 9, 10, 4, 3, 2, 3, 20, last - 1, last, 1, 2];
        let runs = runs(&pages);
        assert_eq!(runs.len() as usize, pages.len());
        assert_eq!(runs.first(), Some(7 << SHIFT));
        for (index, page) in pages.iter().enumerate() {
            for within in [0, 1, 4095] {
                let offset = ((index as u64) << SHIFT) + within;
                let (address, length) = runs.at(offset, SHIFT).unwrap();
                assert_eq!(address, (page << SHIFT) + within, "page {index}");
                // Exactly this number of pages follow contiguously.
                let follow =
                    (index + 1..pages.len()).take_while(|next| pages[*next] == pages[next - 1] + 1).count() as u64;
                assert_eq!(length, ((follow + 1) << SHIFT) - within, "page {index}");
            }
        }
    }
}
