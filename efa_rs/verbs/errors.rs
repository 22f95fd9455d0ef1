// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of verbs that failed.

use crate::com::Counter;

/// Counters of failures, by verb.
#[derive(Default)]
pub(crate) struct Errors {
    /// `alloc_pd`.
    pub(super) alloc_pd_err: Counter,
    /// `create_qp`.
    pub(super) create_qp_err: Counter,
    /// `create_cq`.
    pub(super) create_cq_err: Counter,
    /// `reg_user_mr`.
    pub(super) reg_mr_err: Counter,
    /// `alloc_ucontext`.
    pub(super) alloc_ucontext_err: Counter,
    /// `create_ah`.
    pub(super) create_ah_err: Counter,
    /// `mmap`.
    pub(super) mmap_err: Counter,
    /// `alloc_mr`.
    pub(super) alloc_mr_err: Counter,
    /// `get_dma_mr`.
    pub(super) get_dma_mr_err: Counter,
}
