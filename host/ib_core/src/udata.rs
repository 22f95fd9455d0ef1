// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Driver-specific input and output of a process.

use std::cell::Cell;

use kernel::{
    ffi::{c_int, c_void},
    sim,
};

use crate::ffi;

const EFAULT: c_int = 14;
const EINVAL: c_int = 22;
const EOPNOTSUPP: c_int = 95;

/// Duration of a page fault that can't be handled, in ns.
const PAGE_FAULT: u64 = 50_000_000;

thread_local! {
    static UNWRITABLE: Cell<bool> = const { Cell::new(false) };
}

/// Discards the state of the previous machine.
pub(crate) fn start() {
    UNWRITABLE.set(false);
}

/// Sets whether outputs are memory with a page fault that fails.
pub fn set_unwritable(on: bool) {
    UNWRITABLE.set(on);
}

#[no_mangle]
unsafe extern "C" fn _ib_copy_validate_udata_in(
    udata: *mut ffi::ib_udata,
    request: *mut c_void,
    size: usize,
    minimum: usize,
) -> c_int {
    sim::pass(sim::Class::MMAP_LOCK);
    // SAFETY: The input is not null and has `inlen` bytes, and the caller has room for `size`.
    unsafe {
        let udata = &*udata;
        if udata.inlen < minimum {
            return -EINVAL;
        }
        let input = core::slice::from_raw_parts(udata.inbuf.cast::<u8>(), udata.inlen);
        if input.iter().skip(size).any(|byte| *byte != 0) {
            return -EOPNOTSUPP;
        }
        let length = size.min(input.len());
        if size != 0 {
            request.write_bytes(0, size);
            core::ptr::copy_nonoverlapping(input.as_ptr(), request.cast(), length);
        }
    }
    0
}

#[no_mangle]
unsafe extern "C" fn _ib_respond_udata(
    udata: *mut ffi::ib_udata,
    source: *const c_void,
    length: usize,
) -> c_int {
    sim::pass(sim::Class::MMAP_LOCK);
    if UNWRITABLE.get() {
        sim::sleep(PAGE_FAULT);
        return -EFAULT;
    }
    // SAFETY: The output has room for `outlen` bytes, and the source has `length`.
    unsafe {
        let udata = &*udata;
        if udata.outlen == 0 {
            return 0;
        }
        let copied = length.min(udata.outlen);
        core::ptr::copy_nonoverlapping(source.cast::<u8>(), udata.outbuf.cast(), copied);
        udata
            .outbuf
            .cast::<u8>()
            .add(copied)
            .write_bytes(0, udata.outlen - copied);
    }
    0
}
