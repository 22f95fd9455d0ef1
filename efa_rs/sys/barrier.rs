// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Barriers between the CPU and a device that share coherent memory.
//!
//! To be replaced by `kernel::sync::barrier` once it has the `dma_*` barriers.

use crate::ffi;

/// Orders reads of memory that a device writes: what precedes is read before what follows.
#[inline]
pub(crate) fn dma_rmb() {
    // SAFETY: A barrier has no precondition.
    unsafe { ffi::efa_dma_rmb() }
}
