// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Hardware counters: `hw_counters` in sysfs and `rdma statistic`.

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use crate::ffi;

/// Name of a counter.
#[repr(transparent)]
pub(crate) struct CounterDesc(ffi::rdma_stat_desc);

impl CounterDesc {
    /// Describes a counter that is always on.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self(ffi::rdma_stat_desc {
            name: name.to_bytes_with_nul().as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

/// Allocates what the core keeps the values of `counters` in; null if there is no memory.
pub(super) fn alloc(counters: &'static [CounterDesc]) -> *mut ffi::rdma_hw_stats {
    // SAFETY: `CounterDesc` is a transparent wrapper of `rdma_stat_desc`, and the descriptions are
    // static.
    unsafe {
        ffi::rdma_alloc_hw_stats_struct(
            counters.as_ptr().cast(),
            // CAST: Drivers have dozens of counters.
            counters.len() as c_int,
            ffi::RDMA_HW_STATS_DEFAULT_LIFESPAN as kernel::ffi::c_ulong,
        )
    }
}

/// Returns the values of the counters.
///
/// # Safety
///
/// `stats` must be valid and, for `'a`, accessed by nobody else.
pub(super) unsafe fn values<'a>(stats: *mut ffi::rdma_hw_stats) -> &'a mut [u64] {
    // SAFETY: The caller guarantees that `stats` is valid and not in use; it was allocated with
    // room for `num_counters` values.
    unsafe {
        let count = usize::try_from((*stats).num_counters).unwrap_or(0);
        let first = (&raw mut (*stats).value).cast::<u64>();
        core::slice::from_raw_parts_mut(first, count)
    }
}
