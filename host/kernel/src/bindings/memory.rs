// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory: reference-counted pages.

use std::{cell::RefCell, collections::BTreeMap, ptr::null_mut};

use crate::{ffi::c_void, page::PAGE_SIZE};

thread_local! {
    /// Length and number of references of pages that programs map, by address.
    static PAGES: RefCell<BTreeMap<usize, (usize, u32)>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns zeroed pages with one reference, as `alloc_pages_exact` does. They count as allocated until
/// the last reference is put.
pub unsafe fn alloc_pages_exact(size: usize) -> *mut c_void {
    if !sim::may_allocate() {
        return null_mut();
    }
    let memory: *mut c_void = sim::memory::allocate(size, PAGE_SIZE).cast();
    sim::count_allocated(size);
    PAGES.with(|pages| pages.borrow_mut().insert(memory as usize, (size, 1)));
    memory
}

/// Takes one more reference, as a mapping does.
pub unsafe fn get_pages(memory: *mut c_void) {
    PAGES.with(|pages| {
        let mut pages = pages.borrow_mut();
        pages.get_mut(&(memory as usize)).expect("pages").1 += 1;
    });
}

/// Puts a reference. The last one frees the pages.
pub unsafe fn put_pages(memory: *mut c_void) {
    PAGES.with(|pages| {
        let mut pages = pages.borrow_mut();
        let (size, references) = pages.get_mut(&(memory as usize)).expect("pages");
        *references -= 1;
        if *references == 0 {
            sim::count_freed(*size);
            // SAFETY: The pages were allocated with this size, and no reference is left.
            unsafe { sim::memory::free(memory.cast(), *size, PAGE_SIZE) };
            pages.remove(&(memory as usize));
        }
    });
}

pub unsafe fn free_pages_exact(memory: *mut c_void, _: usize) {
    // SAFETY: The caller has a reference.
    unsafe { put_pages(memory) };
}
