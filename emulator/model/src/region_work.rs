// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests that change memory regions.

use efa_hw::io::{FastMrInvReq, FastMrRegReq};

/// Change of a memory region that a work request requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionWork {
    /// Registers pages for the memory region.
    Register(FastMrRegReq),
    /// Invalidates the memory region, which loses its pages.
    Invalidate(FastMrInvReq),
}
