// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Verbs of hardware counters.

use kernel::{
    error::from_result,
    ffi::{
        c_int,
        c_ulong, //
    },
};

use super::Ops;
use crate::{
    ffi,
    rdma::{
        counters::CounterDesc,
        provider::Provider, //
    },
};

/// Allocates what the core keeps the values of `counters` in; null if there is no memory.
fn alloc(counters: &'static [CounterDesc]) -> *mut ffi::rdma_hw_stats {
    // SAFETY: `CounterDesc` is a transparent wrapper of `rdma_stat_desc`, and the descriptions are
    // static.
    unsafe {
        ffi::rdma_alloc_hw_stats_struct(
            counters.as_ptr().cast(),
            // CAST: Drivers have dozens of counters.
            counters.len() as c_int,
            ffi::RDMA_HW_STATS_DEFAULT_LIFESPAN as c_ulong,
        )
    }
}

/// Returns the values of the counters.
///
/// # Safety
///
/// `stats` must be valid and, for `'s`, accessed by nobody else.
unsafe fn values<'s>(stats: *mut ffi::rdma_hw_stats) -> &'s mut [u64] {
    // SAFETY: The caller guarantees that `stats` is valid and not in use; it was allocated with
    // room for `num_counters` values.
    unsafe {
        let count = usize::try_from((*stats).num_counters).unwrap_or(0);
        let first = (&raw mut (*stats).value).cast::<u64>();
        core::slice::from_raw_parts_mut(first, count)
    }
}

impl<P: Provider> Ops<P> {
    pub(super) extern "C" fn alloc_hw_device_stats(
        _device: *mut ffi::ib_device,
    ) -> *mut ffi::rdma_hw_stats {
        alloc(P::DEVICE_COUNTERS)
    }

    pub(super) extern "C" fn alloc_hw_port_stats(
        _device: *mut ffi::ib_device,
        _port: u32,
    ) -> *mut ffi::rdma_hw_stats {
        alloc(P::PORT_COUNTERS)
    }

    pub(super) extern "C" fn get_hw_stats(
        device: *mut ffi::ib_device,
        stats: *mut ffi::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the core's promise the device is registered. The core holds the lock of
            // `stats`, or has not published it yet.
            let (device, values) = unsafe { (Self::device(device), values(stats)) };

            // Port 0 stands for the device itself.
            if port == 0 {
                P::read_device_counters(device, values)?;
            } else {
                P::read_port_counters(device, port, values)?;
            }
            // CAST: Drivers have dozens of counters.
            Ok(values.len() as c_int)
        })
    }
}
