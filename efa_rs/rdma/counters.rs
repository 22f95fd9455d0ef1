// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Hardware counters: `hw_counters` in sysfs and `rdma statistic`.

use kernel::prelude::*;

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
