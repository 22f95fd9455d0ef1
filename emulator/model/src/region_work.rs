// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests that change memory regions.

use std::fmt::{self, Display, Formatter};

use efa_hw::io::{FastMrInvReq, FastMrRegReq, OpType, PblMode};

/// Change of a memory region that a work request requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionWork {
    /// Registers pages for the memory region.
    Register(FastMrRegReq),
    /// Invalidates the memory region, which loses its pages.
    Invalidate(FastMrInvReq),
}

impl Display for RegionWork {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let flag = |name, set| if set { name } else { "" };
        match self {
            Self::Register(request) => {
                write!(
                    f,
                    "{}(lkey={:#x}, iova={:#x}, length={}, page_shift={}, ",
                    OpType::FastReg,
                    request.lkey,
                    request.iova,
                    request.mr_length,
                    request.flags.phys_page_size_shift,
                )?;
                match PblMode::try_from(request.flags.pbl_mode) {
                    Ok(PblMode::Inline) => f.write_str("page")?,
                    Ok(PblMode::Direct) => f.write_str("direct")?,
                    Err(_) => write!(f, "pbl_mode={}, pbl", request.flags.pbl_mode)?,
                }
                write!(
                    f,
                    "={:#x}{}{}{})",
                    request.pbl,
                    flag(", local_write", request.permissions.local_write_enable),
                    flag(", remote_write", request.permissions.remote_write_enable),
                    flag(", remote_read", request.permissions.remote_read_enable),
                )
            }
            Self::Invalidate(request) => write!(f, "{}(lkey={:#x})", OpType::FastInv, request.lkey),
        }
    }
}
