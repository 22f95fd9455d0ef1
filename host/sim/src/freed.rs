// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Freed memory is kept with a pattern for a while: a later read finds the pattern, and a later write is noticed.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::RefCell,
};

/// Number of freed blocks that a thread keeps.
const KEPT: usize = 256;

/// Size of the largest block that is kept, in bytes.
const LARGEST: usize = 64 << 10;

static PATTERN: [u8; LARGEST] = [0x6b; LARGEST];

/// The newest freed blocks of a thread, as a ring.
struct Kept {
    blocks: [Option<(*mut u8, Layout)>; KEPT],
    next: usize,
    /// Size of a block that was written after it was freed.
    damaged: Option<usize>,
}

thread_local! {
    static FREED: RefCell<Kept> = const {
        RefCell::new(Kept {
            blocks: [None; KEPT],
            next: 0,
            damaged: None,
        })
    };
}

impl Kept {
    fn check(&mut self, (block, layout): (*mut u8, Layout)) {
        // SAFETY: The block was not returned to the system yet, and was filled when it was freed.
        let bytes = unsafe { core::slice::from_raw_parts(block, layout.size()) };
        if *bytes != PATTERN[..layout.size()] {
            self.damaged = Some(layout.size());
        }
    }
}

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: All memory is the system's. A block is returned to it once, with its layout.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: The contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: The contract is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let mut oldest = Some((block, layout));
        if layout.size() <= LARGEST {
            // SAFETY: The caller gives the block up, which has this size.
            unsafe { block.copy_from_nonoverlapping(PATTERN.as_ptr(), layout.size()) };
            FREED.with(|kept| {
                let mut kept = kept.borrow_mut();
                let next = kept.next;
                oldest = kept.blocks[next].replace((block, layout));
                kept.next = (next + 1) % KEPT;
                if let Some(oldest) = oldest {
                    kept.check(oldest);
                }
            });
        }
        if let Some((block, layout)) = oldest {
            // SAFETY: The system has allocated the block with this layout.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

/// Returns the size of a block that was written after it was freed, since the last call.
pub(crate) fn take_damaged() -> Option<usize> {
    FREED.with(|kept| {
        let mut kept = kept.borrow_mut();
        for block in kept.blocks.into_iter().flatten() {
            kept.check(block);
        }
        kept.damaged.take()
    })
}
