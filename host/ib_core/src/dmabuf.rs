// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! dma-bufs: memory of another device, which can revoke it.

use core::cell::RefCell;
use std::rc::Rc;

use kernel::{
    error::{code::*, Error},
    ffi::{c_int, c_ulong, c_void},
    page::PAGE_SIZE,
    sim::{self, Class, RawLock},
};

use crate::{
    ffi,
    umem::{give, of, Pages, Umem},
};

/// The exporter of a dma-buf: another device.
pub(crate) struct Exporter {
    pub(crate) pages: Rc<Pages>,
    pub(crate) reservation: RawLock,
    pub(crate) attached: RefCell<Vec<*mut Umem>>,
}

thread_local! {
    static EXPORTERS: RefCell<Vec<Rc<Exporter>>> = const { RefCell::new(Vec::new()) };
}

/// Discards the state of the previous machine.
pub(crate) fn start() {
    EXPORTERS.with(|exporters| exporters.borrow_mut().clear());
}

/// Creates a dma-buf, and returns its number in the process.
pub fn export(length: usize) -> c_int {
    let length = length.next_multiple_of(PAGE_SIZE);
    let pages = Rc::new(Pages {
        start: sim::memory::allocate(length, PAGE_SIZE),
        length,
    });
    let exporter = Exporter {
        pages,
        reservation: RawLock::of_class(Class::DMA_RESV),
        attached: RefCell::default(),
    };
    EXPORTERS.with(|all| {
        all.borrow_mut().push(Rc::new(exporter));
        all.borrow().len() as c_int - 1
    })
}

/// Revokes the memory of a dma-buf.
pub fn revoke(number: c_int) {
    let exporter = EXPORTERS.with(|all| all.borrow()[number as usize].clone());
    exporter.reservation.lock(true);
    let attached = exporter.attached.borrow().clone();
    for umem in attached {
        // SAFETY: The lock is held, which `ib_umem_release` needs to detach and free memory.
        unsafe { revoke_locked(umem) };
    }
    exporter.reservation.unlock(true);
}

pub(crate) unsafe fn revoke_locked(umem: *mut Umem) {
    // SAFETY: The caller guarantees that the memory is pinned, and holds the lock of its exporter.
    unsafe {
        if (*umem).core.revoked() == 0 {
            if let Some(revoke) = (*umem).core.pinned_revoke {
                revoke((*umem).core.private);
            }
            (*umem).unmap();
            (*umem).core.set_revoked(1);
        }
    }
}

#[no_mangle]
unsafe extern "C" fn ib_umem_dmabuf_get_pinned_revocable_and_lock(
    device: *mut ffi::ib_device,
    offset: c_ulong,
    size: usize,
    number: c_int,
    _: c_int,
) -> *mut ffi::ib_umem_dmabuf {
    let found = EXPORTERS.with(|all| all.borrow().get(number as usize).cloned());
    let get = || {
        let exporter = found.ok_or(EINVAL)?;
        if offset
            .checked_add(size)
            .is_none_or(|end| end > exporter.pages.length)
            || size == 0
        {
            return Err(EINVAL);
        }
        if !sim::may_allocate() {
            return Err(ENOMEM);
        }
        exporter.reservation.lock(true);
        let start = exporter.pages.start as u64 + offset as u64;
        let umem = Umem::new(exporter.pages.clone(), start, size, Some(exporter.clone()));
        let umem = give(Ok(umem), device);
        exporter.attached.borrow_mut().push(umem.cast());
        Ok(umem)
    };
    get().unwrap_or_else(Error::to_ptr).cast()
}

#[no_mangle]
unsafe extern "C" fn ib_umem_dmabuf_revoke_unlock(umem: *mut ffi::ib_umem_dmabuf) {
    // SAFETY: By the contract of `ib_umem_dmabuf_revoke_unlock`, the memory is pinned, and its lock is held.
    unsafe { of(umem.cast()) }
        .exporter
        .as_ref()
        .expect("an exporter")
        .reservation
        .unlock(true);
}

#[no_mangle]
unsafe extern "C" fn ib_umem_dmabuf_set_revoke_locked(
    umem: *mut ffi::ib_umem_dmabuf,
    revoke: Option<unsafe extern "C" fn(*mut c_void)>,
    private: *mut c_void,
) {
    // SAFETY: By the contract of `ib_umem_dmabuf_set_revoke_locked`, the memory is pinned, and its lock is held.
    unsafe {
        (*umem).pinned_revoke = revoke;
        (*umem).private = private;
    }
}
