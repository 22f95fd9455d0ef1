// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of devices and ports.

use core::{ffi::CStr, ptr::null_mut};
use std::rc::Rc;

use kernel::{
    error::{code::*, to_result, Result},
    ffi::{c_int, c_ulong},
    sim, warn,
};

use crate::{
    ffi,
    registry::{state, State},
};

/// Lets the driver allocate its counters, and reads them once.
///
/// # Safety
///
/// The driver must have set the device up.
pub(crate) unsafe fn setup_stats(device: *mut ffi::ib_device, state: &State) -> Result {
    // SAFETY: The device is set up. Its counters are of `rdma_alloc_hw_stats_struct`, or null.
    unsafe {
        let ops = &(*device).ops;
        for port in 0..2 {
            let stats = match (port, ops.alloc_hw_device_stats, ops.alloc_hw_port_stats) {
                (0, Some(alloc), _) => alloc(device),
                (1, _, Some(alloc)) => alloc(device, 1),
                _ => continue,
            };
            if stats.is_null() {
                return Err(ENOMEM);
            }
            let count = (*stats).num_counters;
            let got = ops.get_hw_stats.unwrap()(device, stats, port, count);
            if got != count {
                // The core leaks the counters of a port here; this does not.
                free_stats(stats);
                to_result(got)?;
                warn("a driver gives too few counters".into());
                return Err(EINVAL);
            }
            state.stats.borrow_mut().push(stats);
        }
    }
    Ok(())
}

/// Reads the counters of a device (port 0) or of its port. Returns names and values.
///
/// # Errors
///
/// Errors of the driver.
pub fn read_stats(device: *mut ffi::ib_device, port: u32) -> Result<Vec<(String, u64)>> {
    let state = state(device);
    let stats = *state.stats.borrow().get(port as usize).ok_or(EINVAL)?;
    state.readers.set(state.readers.get() + 1);
    // SAFETY: The unregistration of the device waits for readers. The driver fills no more than `num_counters`, and describes each.
    let result = unsafe {
        let got = (*device).ops.get_hw_stats.unwrap()(device, stats, port, (*stats).num_counters);
        to_result(got).map(|()| {
            let first = (&raw const (*stats).value).cast::<u64>();
            let values = core::slice::from_raw_parts(first, got as usize);
            let descs = core::slice::from_raw_parts((*stats).descs, got as usize);
            let name =
                |desc: &ffi::rdma_stat_desc| CStr::from_ptr(desc.name.cast()).to_string_lossy();
            let names = descs.iter().map(|desc| name(desc).into_owned());
            names.zip(values.iter().copied()).collect()
        })
    };
    state.readers.set(state.readers.get() - 1);
    sim::signal(Rc::as_ptr(&state) as usize);
    result
}

fn stats_size(count: usize) -> usize {
    size_of::<ffi::rdma_hw_stats>() + count * 8
}

#[no_mangle]
unsafe extern "C" fn rdma_alloc_hw_stats_struct(
    descs: *const ffi::rdma_stat_desc,
    count: c_int,
    lifespan: c_ulong,
) -> *mut ffi::rdma_hw_stats {
    if !sim::may_allocate() {
        return null_mut();
    }
    let stats: *mut ffi::rdma_hw_stats =
        sim::memory::allocate(stats_size(count as usize), 8).cast();
    sim::count_allocated(stats_size(count as usize));
    // SAFETY: The memory has just been allocated, and has room for the structure.
    unsafe {
        (*stats).descs = descs;
        (*stats).num_counters = count;
        (*stats).lifespan = lifespan;
    }
    stats
}

pub(crate) fn free_stats(stats: *mut ffi::rdma_hw_stats) {
    // SAFETY: The counters are those of `rdma_alloc_hw_stats_struct`, they are not used any more, and their number never changes.
    unsafe {
        let size = stats_size((*stats).num_counters as usize);
        sim::count_freed(size);
        sim::memory::free(stats.cast(), size, 8);
    }
}
