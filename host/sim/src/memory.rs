// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory for DMA, and its mappings. No address is reused in a machine.

use std::{
    alloc::{alloc_zeroed, dealloc, Layout},
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use crate::freed;

const PAGE: usize = 4096;

/// Address of the first mapping. Both of its halves are nonzero.
const FIRST: u64 = 0x12_3456_0000;

#[derive(Clone, Copy)]
struct Mapping {
    host: usize,
    length: usize,
}

thread_local! {
    static MAPPINGS: RefCell<BTreeMap<u64, Mapping>> = const { RefCell::new(BTreeMap::new()) };
    static NEXT: Cell<u64> = const { Cell::new(FIRST) };
    static VIOLATIONS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static STRICT: Cell<bool> = const { Cell::new(false) };
    static MASTER: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn clear() {
    MAPPINGS.with(|mappings| mappings.borrow_mut().clear());
    NEXT.set(FIRST);
    MASTER.set(false);
    VIOLATIONS.with(|violations| violations.borrow_mut().clear());
}

/// Enables or disables bus mastering of the device.
pub fn set_master(on: bool) {
    MASTER.set(on);
    crate::device(|device| device.set_master(on));
}

/// Returns whether the device may access memory.
pub fn is_master() -> bool {
    MASTER.get()
}

/// Returns `length` bytes of zeroed memory.
pub fn allocate(length: usize, align: usize) -> *mut u8 {
    let layout = Layout::from_size_align(length.max(1), align).expect("a size");
    // SAFETY: The size is not zero.
    unsafe { alloc_zeroed(layout) }
}

/// Frees memory.
///
/// # Safety
///
/// [`allocate`] must have returned it for this length and alignment.
pub unsafe fn free(memory: *mut u8, length: usize, align: usize) {
    let layout = Layout::from_size_align(length.max(1), align).expect("a size");
    // SAFETY: The caller guarantees it.
    unsafe { dealloc(memory, layout) }
}

/// Maps memory for the device, and returns the address. A page before and after it stays unmapped.
pub fn map(host: *mut u8, length: usize) -> u64 {
    let address = NEXT.get();
    // The page between two mappings catches an access behind the first one.
    NEXT.set(address + (length.next_multiple_of(PAGE) + PAGE) as u64);
    let mapping = Mapping {
        host: host as usize,
        length,
    };
    MAPPINGS.with(|mappings| mappings.borrow_mut().insert(address, mapping));
    address
}

/// Restricts new addresses to a mask, which has at least 32 bits.
pub fn set_mask(mask: u64) {
    if NEXT.get() > mask {
        NEXT.set(0x1234_0000);
    }
}

/// Enables or disables a check at each unmapping: the device must not know the memory any more.
pub fn set_strict(on: bool) {
    STRICT.set(on);
}

/// Unmaps memory.
pub fn unmap(address: u64) {
    let mapping = MAPPINGS.with(|mappings| mappings.borrow_mut().remove(&address));
    if let (true, true, Some(mapping)) = (STRICT.get(), MASTER.get(), mapping) {
        let now = crate::now();
        if crate::device(|device| device.knows(address, mapping.length)) == Some(true) {
            let length = mapping.length;
            VIOLATIONS.with(|violations| {
                let what = format!("the device still knows {length} bytes at {address:#x} that are unmapped, {now} ns");
                violations.borrow_mut().push(what);
            });
        }
    }
}

/// Returns the number of mappings.
pub fn mappings() -> usize {
    MAPPINGS.with(|mappings| mappings.borrow().len())
}

/// Returns actual and possible accesses of the device to memory that is not mapped for it, and a write to freed memory.
pub fn take_violations() -> Vec<String> {
    let mut violations = VIOLATIONS.take();
    let damaged = freed::take_damaged();
    violations
        .extend(damaged.map(|size| format!("{size} bytes were written after they were freed")));
    violations
}

fn find(address: u64, length: usize, writes: bool) -> Option<*mut u8> {
    if !MASTER.get() {
        return None;
    }
    let found = MAPPINGS.with(|mappings| {
        let mappings = mappings.borrow();
        let (start, mapping) = mappings.range(..=address).next_back()?;
        let offset = (address - start) as usize;
        (offset.checked_add(length)? <= mapping.length).then(|| (mapping.host + offset) as *mut u8)
    });
    if found.is_none() {
        let what = if writes { "writes" } else { "reads" };
        VIOLATIONS.with(|violations| {
            let mut violations = violations.borrow_mut();
            if violations.len() < 16 {
                let now = crate::now();
                violations.push(format!(
                    "the device {what} {length} bytes at {address:#x}, {now} ns"
                ));
            }
        });
    }
    found
}

/// Reads memory for the device. Returns whether it is mapped.
pub fn read(address: u64, bytes: &mut [u8]) -> bool {
    let Some(memory) = find(address, bytes.len(), false) else {
        return false;
    };
    // SAFETY: The mapping has at least this length.
    unsafe { core::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), bytes.len()) };
    true
}

/// Writes memory for the device. Returns whether it is mapped.
pub fn write(address: u64, bytes: &[u8]) -> bool {
    let Some(memory) = find(address, bytes.len(), true) else {
        return false;
    };
    // SAFETY: As above.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
    true
}

/// Reads memory that the device may write at any time, for the CPU. What was read changes at once: a second read finds all bits
/// inverted but the first of each byte. That is where rings have the phase. A byte alone is polled, and nothing but its first bit
/// is right before the rest is read.
///
/// # Safety
///
/// `place` must be valid for reads and writes and aligned, and each value of its bytes be one of `T`.
pub unsafe fn read_once<T: Copy>(place: *mut T) -> T {
    crate::count_step();
    // SAFETY: The caller guarantees it.
    let mut value = unsafe { place.read_volatile() };
    let changed = if size_of::<T>() == 1 {
        &raw mut value
    } else {
        place
    };
    // SAFETY: Both have this size. The task is not preempted here.
    let bytes = unsafe { core::slice::from_raw_parts_mut(changed.cast::<u8>(), size_of::<T>()) };
    bytes.iter_mut().for_each(|byte| *byte ^= 0xfe);
    value
}
