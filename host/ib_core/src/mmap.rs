// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Mappings of programs: entries of a driver, by the page of their offset.

use core::{cell::RefCell, ptr::null_mut};
use std::collections::BTreeMap;

use kernel::{
    bindings::{pgprot_t, vm_area_struct},
    ffi::{c_int, c_ulong},
    page::{PAGE_SHIFT, PAGE_SIZE},
    sim,
};

use crate::ffi::{ib_ucontext, rdma_user_mmap_entry};

type Entries = BTreeMap<usize, *mut rdma_user_mmap_entry>;

thread_local! {
    /// Entries by context and page.
    static ENTRIES: RefCell<BTreeMap<usize, Entries>> = const { RefCell::new(BTreeMap::new()) };
}

pub(crate) fn start() {
    ENTRIES.with(|entries| entries.borrow_mut().clear());
}

/// Removes a context, and returns the number of entries that are left in it.
pub(crate) fn end(context: *mut ib_ucontext) -> usize {
    ENTRIES.with(|entries| {
        entries
            .borrow_mut()
            .remove(&(context as usize))
            .map_or(0, |left| left.len())
    })
}

#[no_mangle]
unsafe extern "C" fn rdma_user_mmap_entry_insert(
    context: *mut ib_ucontext,
    entry: *mut rdma_user_mmap_entry,
    length: usize,
) -> c_int {
    if !sim::may_allocate() {
        return -12;
    }
    let pages = length.div_ceil(PAGE_SIZE);
    ENTRIES.with(|entries| {
        let mut entries = entries.borrow_mut();
        let entries = entries.entry(context as usize).or_default();
        // SAFETY: The caller passes a valid entry. An entry in the table exists until its last put.
        unsafe {
            let mut page = 0;
            for (start, other) in entries.iter() {
                if *start >= page + pages {
                    break;
                }
                page = start + (**other).npages;
            }
            (*entry).ref_.refcount = 1;
            (*entry).ucontext = context;
            (*entry).start_pgoff = page;
            (*entry).npages = pages;
            entries.insert(page, entry);
        }
    });
    0
}

#[no_mangle]
unsafe extern "C" fn rdma_user_mmap_entry_get(
    context: *mut ib_ucontext,
    vma: *mut vm_area_struct,
) -> *mut rdma_user_mmap_entry {
    // SAFETY: The caller passes a valid mapping. An entry in the table exists until its last put.
    unsafe {
        let page = (*vma).vm_pgoff;
        let found =
            ENTRIES.with(|entries| Some(*entries.borrow().get(&(context as usize))?.get(&page)?));
        let Some(entry) = found.filter(|entry| !(**entry).driver_removed) else {
            return null_mut();
        };
        if (*entry).npages << PAGE_SHIFT != (*vma).vm_end - (*vma).vm_start {
            return null_mut();
        }
        (*entry).ref_.refcount += 1;
        sim::point();
        entry
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn rdma_user_mmap_entry_put(entry: *mut rdma_user_mmap_entry) {
    // SAFETY: The caller gives up its reference to the entry, whose context outlives all its references.
    unsafe {
        (*entry).ref_.refcount -= 1;
        if (*entry).ref_.refcount == 0 {
            let context = (*entry).ucontext;
            ENTRIES.with(|entries| {
                let mut entries = entries.borrow_mut();
                entries
                    .get_mut(&(context as usize))
                    .expect("a context")
                    .remove(&(*entry).start_pgoff);
            });
            (*(*context).device).ops.mmap_free.expect("a function")(entry);
        }
    }
}

#[no_mangle]
unsafe extern "C" fn rdma_user_mmap_entry_remove(entry: *mut rdma_user_mmap_entry) {
    if !entry.is_null() {
        // SAFETY: The entry exists, as the driver gives up its reference from the insertion.
        unsafe {
            (*entry).driver_removed = true;
            rdma_user_mmap_entry_put(entry);
        }
    }
}

#[no_mangle]
unsafe extern "C" fn rdma_user_mmap_io(
    _: *mut ib_ucontext,
    vma: *mut vm_area_struct,
    pfn: c_ulong,
    size: c_ulong,
    _: pgprot_t,
    entry: *mut rdma_user_mmap_entry,
) -> c_int {
    sim::point();
    // SAFETY: By the contract of `rdma_user_mmap_io`, the mapping is valid, and the driver has a reference to the entry.
    unsafe {
        if (*vma).vm_end - (*vma).vm_start != size {
            return -22;
        }
        // The mapping has a reference to the entry.
        (*entry).ref_.refcount += 1;
        (*vma).mapped = Some(((pfn as u64) << PAGE_SHIFT, Some(entry as usize)));
    }
    0
}
