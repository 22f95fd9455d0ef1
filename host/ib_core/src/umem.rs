// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of programs, and memory that a driver has pinned.

use core::{
    cell::{Cell, RefCell},
    ptr::null_mut,
};
use std::{collections::BTreeMap, rc::Rc};

use kernel::{
    error::{code::*, Error, Result},
    ffi::{c_int, c_ulong},
    page::PAGE_SIZE,
    sim,
};

use crate::{
    dmabuf::{self, Exporter},
    ffi, uverbs,
};

/// Pages of a program or of an exporter.
pub(crate) struct Pages {
    pub(crate) start: *mut u8,
    pub(crate) length: usize,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `allocate` returned the pages for this length and alignment, and nothing refers to them any more.
        unsafe { sim::memory::free(self.start, self.length, alignment(self.length)) };
    }
}

thread_local! {
    static PAGES: RefCell<BTreeMap<usize, Rc<Pages>>> = const { RefCell::new(BTreeMap::new()) };
    static IN_PIECES: Cell<bool> = const { Cell::new(false) };
}

/// Discards the state of the previous machine.
pub(crate) fn start() {
    PAGES.with(|pages| pages.borrow_mut().clear());
    IN_PIECES.set(false);
    dmabuf::start();
}

/// Sets whether each page has a DMA mapping of its own, at another address.
pub fn set_in_pieces(on: bool) {
    IN_PIECES.set(on);
}

/// Memory of a program. Its drop unmaps it, but memory that a driver has pinned stays allocated.
pub struct Memory(Rc<Pages>);

/// Alignment by which the page size of a region depends on its place in the memory only, and not on chance.
fn alignment(length: usize) -> usize {
    length.next_power_of_two().max(PAGE_SIZE)
}

impl Memory {
    /// Maps zeroed memory.
    pub fn new(length: usize) -> Self {
        let length = length.next_multiple_of(PAGE_SIZE);
        let start = sim::memory::allocate(length, alignment(length));
        let pages = Rc::new(Pages { start, length });
        PAGES.with(|all| all.borrow_mut().insert(start as usize, pages.clone()));
        Self(pages)
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.0.start as u64
    }

    /// Returns a copy of some bytes.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.0.length);
        // SAFETY: The pages exist as long as `self`, and the assertion above keeps the access within them.
        unsafe { core::slice::from_raw_parts(self.0.start.add(offset), length).to_vec() }
    }

    /// Copies bytes to an offset.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.0.length);
        // SAFETY: The pages exist as long as `self`, and the assertion above keeps the access within them.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.start.add(offset), bytes.len())
        };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        PAGES.with(|all| all.borrow_mut().remove(&(self.0.start as usize)));
    }
}

/// Pinned memory.
#[repr(C)]
pub struct Umem {
    pub(crate) core: ffi::ib_umem_dmabuf,
    /// DMA address and length of each piece.
    pub(crate) pieces: Vec<(u64, u64)>,
    /// DMA addresses of its blocks.
    pub(crate) blocks: RefCell<Vec<u64>>,
    mappings: RefCell<Vec<u64>>,
    pub(crate) exporter: Option<Rc<Exporter>>,
    _pages: Rc<Pages>,
}

/// Returns the pinned memory of a driver.
///
/// # Safety
///
/// The memory must be pinned.
pub unsafe fn of<'u>(umem: *mut ffi::ib_umem) -> &'u Umem {
    // SAFETY: The caller guarantees that the memory is pinned; all pinned memory is a `Umem`, whose first field this is.
    unsafe { &*umem.cast::<Umem>() }
}

impl Umem {
    pub(crate) fn new(
        pages: Rc<Pages>,
        start: u64,
        length: usize,
        exporter: Option<Rc<Exporter>>,
    ) -> Box<Self> {
        let first = start & !(PAGE_SIZE as u64 - 1);
        let end = (start + length as u64).next_multiple_of(PAGE_SIZE as u64);
        let step = if IN_PIECES.get() {
            PAGE_SIZE as u64
        } else {
            end - first
        };
        let (mut pieces, mut mappings) = (Vec::new(), Vec::new());
        for at in (first..end).step_by(step as usize) {
            let address = sim::memory::map(at as *mut u8, step as usize);
            mappings.push(address);
            let skip = start.saturating_sub(at);
            pieces.push((address + skip, step.min(start + length as u64 - at) - skip));
        }
        // SAFETY: The structure has numbers and pointers that may be null, of which zeroes are a valid value.
        let mut core: ffi::ib_umem_dmabuf = unsafe { core::mem::zeroed() };
        core.umem.address = start as usize;
        core.umem.length = length;
        sim::count_allocated(size_of::<Self>());
        Box::new(Self {
            core,
            pieces,
            blocks: RefCell::default(),
            mappings: RefCell::new(mappings),
            exporter,
            _pages: pages,
        })
    }

    pub(crate) fn unmap(&self) {
        for address in self.mappings.take() {
            sim::memory::unmap(address);
        }
    }

    /// Returns the pieces: DMA address and length of each.
    pub fn pieces(&self) -> &[(u64, u64)] {
        &self.pieces
    }

    /// Returns the number of blocks of `size` bytes, as `ib_umem_num_dma_blocks` does.
    pub fn count(&self, size: u64) -> usize {
        let (iova, length) = (self.core.umem.iova, self.core.umem.length as u64);
        ((iova + length).next_multiple_of(size) - iova / size * size).div_ceil(size) as usize
    }

    /// Divides the memory into blocks of `size` bytes, as the start of an iteration does.
    pub fn divide(&self, size: u64) {
        let mut blocks = self.blocks.borrow_mut();
        blocks.clear();
        for (start, length) in &self.pieces {
            let first = start & !(size - 1);
            blocks.extend((first..start + length).step_by(size as usize));
        }
        assert_eq!(blocks.len(), self.count(size), "blocks of {size} bytes");
    }

    /// Copies addresses of blocks, from number `first` on. Returns the number of addresses.
    pub fn copy_blocks(&self, first: usize, to: &mut [u64]) -> usize {
        let blocks = self.blocks.borrow();
        let rest = &blocks[first..];
        let count = to.len().min(rest.len());
        to[..count].copy_from_slice(&rest[..count]);
        count
    }
}

fn pin(start: u64, length: usize) -> Result<Box<Umem>> {
    sim::might_sleep("memory is pinned");
    sim::pass(sim::Class::MMAP_LOCK);
    if length == 0 {
        return Err(EINVAL);
    }
    let end = start.checked_add(length as u64).ok_or(EINVAL)?;
    end.checked_next_multiple_of(PAGE_SIZE as u64)
        .ok_or(EINVAL)?;
    let pages = PAGES.with(|pages| {
        pages
            .borrow()
            .range(..=start as usize)
            .next_back()
            .map(|(_, pages)| pages.clone())
    });
    let pages = pages
        .filter(|pages| end <= pages.start as u64 + pages.length as u64)
        .ok_or(EFAULT)?;
    if !sim::may_allocate() {
        return Err(ENOMEM);
    }
    Ok(Umem::new(pages, start, length, None))
}

pub(crate) fn give(umem: Result<Box<Umem>>, device: *mut ffi::ib_device) -> *mut ffi::ib_umem {
    match umem {
        Ok(mut umem) => {
            umem.core.umem.ibdev = device;
            Box::into_raw(umem).cast()
        }
        Err(error) => Error::to_ptr(error),
    }
}

/// Pins the buffer that a process has passed as attribute `which`, if any.
unsafe fn attribute(
    attrs: *const ffi::uverbs_attr_bundle,
    which: u16,
    size: usize,
) -> Option<Result<Box<Umem>>> {
    // SAFETY: The caller guarantees that the attributes are those of a call of a process.
    let (start, length) = unsafe { uverbs::buffer(attrs, which) }?;
    if length < size {
        return Some(Err(EINVAL));
    }
    Some(pin(start, length))
}

#[no_mangle]
unsafe extern "C" fn ib_umem_get_attr_or_va(
    device: *mut ffi::ib_device,
    attrs: *const ffi::uverbs_attr_bundle,
    _: u16,
    start: u64,
    length: usize,
    _: c_int,
) -> *mut ffi::ib_umem {
    assert!(attrs.is_null(), "this is not used");
    give(pin(start, length), device)
}

#[no_mangle]
unsafe extern "C" fn ib_umem_get_attr(
    device: *mut ffi::ib_device,
    attrs: *const ffi::uverbs_attr_bundle,
    which: u16,
    size: usize,
    _: c_int,
) -> *mut ffi::ib_umem {
    // SAFETY: By the contract of `ib_umem_get_attr`, the attributes are those of a call of a process.
    unsafe { attribute(attrs, which, size) }.map_or(null_mut(), |umem| give(umem, device))
}

#[no_mangle]
unsafe extern "C" fn ib_umem_get_cq_buf(
    device: *mut ffi::ib_device,
    attrs: *const ffi::uverbs_attr_bundle,
    size: usize,
    _: c_int,
) -> *mut ffi::ib_umem {
    // SAFETY: By the contract of `ib_umem_get_cq_buf`, the attributes are those of a call of a process.
    unsafe { attribute(attrs, uverbs::CQ_BUFFER, size) }
        .map_or(null_mut(), |umem| give(umem, device))
}

#[no_mangle]
unsafe extern "C" fn ib_umem_release(umem: *mut ffi::ib_umem) {
    if umem.is_null() || umem as isize >= -4095 && (umem as isize) < 0 {
        return;
    }
    let umem: *mut Umem = umem.cast();
    // SAFETY: By the contract of `ib_umem_release`, the memory is a box of `give`, not in use.
    unsafe {
        if let Some(exporter) = (*umem).exporter.clone() {
            exporter.reservation.lock(true);
            dmabuf::revoke_locked(umem);
            exporter
                .attached
                .borrow_mut()
                .retain(|other| *other != umem);
            exporter.reservation.unlock(true);
        }
        (*umem).unmap();
        sim::count_freed(size_of::<Umem>());
        drop(Box::from_raw(umem));
    }
}

#[no_mangle]
unsafe extern "C" fn ib_umem_find_best_pgsz(
    umem: *mut ffi::ib_umem,
    sizes: c_ulong,
    virt: u64,
) -> c_ulong {
    // SAFETY: By the contract of `ib_umem_find_best_pgsz`, the memory is pinned, and nothing else uses it.
    unsafe {
        (*umem).iova = virt;
        let umem = of(umem);
        let length = umem.core.umem.length as u64;
        let sizes = sizes as u64 & !(PAGE_SIZE as u64 - 1);
        if sizes == 0 {
            return 0;
        }
        // No larger than the smallest size with which one block covers the memory.
        let one = u64::BITS - ((virt + length - 1) ^ virt).leading_zeros();
        let mut mask = sizes & u64::MAX.checked_shl(one).unwrap_or(0);
        let mut at = virt;
        let last = umem.pieces.len() - 1;
        for (index, (start, length)) in umem.pieces.iter().enumerate() {
            mask |= start ^ at;
            at += length;
            if index != last {
                mask |= at;
            }
        }
        let limit = mask.trailing_zeros();
        let fitting = sizes
            & u64::MAX
                .checked_shl(limit)
                .map_or(u64::MAX, |above| !above | 1 << limit);
        if fitting == 0 {
            0
        } else {
            1 << fitting.ilog2()
        }
    }
}
