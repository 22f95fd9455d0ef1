// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions of clients in the kernel.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi::KEY_GENERATION,
    mr_request::permissions,
    pd::Pd,
    Efa, //
};
use crate::{
    com::{
        CommandError,
        Lent, //
    },
    hw::{
        admin::{
            mr::{
                AllocMr,
                RegMr,
                RegMrFlags,
                RegMrResponse, //
            },
            NoData, //
        },
        io::{
            FastMrRegFlags,
            FastMrRegReq,
            PblMode, //
        },
    },
    rdma::{
        Access,
        MrKeys,
        MrRegistration, //
    },
    sys::{
        atomic::{
            AtomicU32,
            AtomicU64,
            Relaxed, //
        },
        dma::Entries, //
    },
};

/// Pages for the next fast registration, which is a work request.
pub(super) struct FastPages<'a> {
    /// Bus addresses of the pages.
    list: Lent<'a, Entries<'a, { size_of::<u64>() }>>,
    /// Maximum number of pages.
    max: u32,
    /// Local key of the last registration by a work request.
    lkey: AtomicU32,
    /// Bytes of a page.
    page_size: AtomicU32,
    /// Number of pages.
    count: AtomicU32,
    /// Bus address of the first page.
    first: AtomicU64,
}

impl FastPages<'_> {
    pub(super) fn lkey(&self) -> u32 {
        self.lkey.load(Relaxed)
    }

    /// Handles the result of the command that deregisters the region. A device that has not done so is
    /// halted, as a work request may have registered memory of the client.
    pub(super) fn settle(&self, efa: &Efa<'_>, result: Result<NoData, CommandError>) {
        if result.is_ok() {
            self.list.loan().mark_released();
        }
        efa.session.epoch().settle_now(result);
    }

    /// Removes all pages. The next ones have this size in bytes.
    pub(super) fn clear(&self, page_size: u32) {
        self.count.store(0, Relaxed);
        self.page_size.store(page_size, Relaxed);
    }

    /// Adds a page.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the maximum number of pages is reached.
    pub(super) fn add(&self, addr: u64) -> Result {
        let count = self.count.load(Relaxed);
        if count == self.max {
            return Err(ENOMEM);
        }
        if count == 0 {
            self.first.store(addr, Relaxed);
        }
        self.list.write(count, &addr.to_le_bytes());
        self.count.store(count + 1, Relaxed);
        Ok(())
    }
}

impl<'a> FastPages<'a> {
    /// Creates a region of at most `max_pages` pages. Returns its pages and keys.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if `max_pages` is 0, or more than a region can have.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    pub(super) fn alloc(efa: &Efa<'a>, pd: &Pd, max_pages: u32) -> Result<(KBox<Self>, MrKeys)> {
        if max_pages == 0 || max_pages > efa.attributes().queues.max_mr_pages {
            return Err(EINVAL);
        }
        let count = max_pages.checked_next_power_of_two().ok_or(EINVAL)?;
        let list = Entries::zeroed(efa.session.device().dev(), count)?;
        let list = Arc::new(list, GFP_KERNEL)?;
        let pages = FastPages {
            list: Lent::new(efa.session.epoch(), &"a list of pages", list)?,
            max: max_pages,
            lkey: AtomicU32::new(0),
            page_size: AtomicU32::new(0),
            count: AtomicU32::new(0),
            first: AtomicU64::new(0),
        };
        let pages = KBox::new(pages, GFP_KERNEL)?;
        // From here on, work requests may have the address of the list.
        let command = AllocMr {
            pd: pd.pdn,
            max_pages,
        };
        let alloc = || efa.admin().execute(&command);
        let allocated = pages.list.loan().lend(|| {
            efa.session
                .reclaim()
                .with_new_key(alloc, |mr| (mr.l_key, mr.r_key))
        })?;
        pages.lkey.store(allocated.l_key, Relaxed);
        let keys = MrKeys {
            lkey: allocated.l_key,
            rkey: allocated.r_key,
        };
        Ok((pages, keys))
    }

    /// Converts a registration by a work request of the region whose first local key was `first`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the keys have changed in more than the generation.
    /// - [`EINVAL`] if the pages do not cover the length, or the access is not supported.
    pub(super) fn convert<M>(
        &self,
        first: u32,
        wr: &MrRegistration<'_, M>,
    ) -> Result<FastMrRegReq> {
        let (access, lkey, iova, mr_length) = (wr.access(), wr.lkey(), wr.iova(), wr.length());
        let supported = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        // The core's own convention for keys changes bits that identify the region.
        if access.required() & !supported != 0 || (lkey ^ first) & !KEY_GENERATION != 0 {
            return Err(EINVAL);
        }
        let count = self.count.load(Relaxed);
        let shift = self.page_size.load(Relaxed).checked_ilog2().ok_or(EINVAL)?;
        let end = (iova % (1 << shift)).checked_add(mr_length).ok_or(EINVAL)?;
        if count == 0 || end.div_ceil(1 << shift) > count.into() {
            return Err(EINVAL);
        }
        self.lkey.store(lkey, Relaxed);
        let (pbl_mode, pbl) = match count {
            1 => (PblMode::Inline, self.first.load(Relaxed)),
            _ => (PblMode::Direct, self.list.dma_address()),
        };
        Ok(FastMrRegReq {
            lkey,
            permissions: permissions(access),
            flags: FastMrRegFlags {
                // CAST: Less than 32.
                phys_page_size_shift: shift as u8,
                pbl_mode: pbl_mode.into(),
            },
            iova,
            mr_length,
            pbl,
        })
    }
}

/// Creates a region of all memory that the device can address, for clients in the kernel.
///
/// # Errors
///
/// - `EOPNOTSUPP` if remote access is requested.
/// - Those of the admin command.
pub(super) fn register_all(efa: &Efa<'_>, pd: &Pd, access: Access) -> Result<RegMrResponse> {
    if access.required() & !Access::LOCAL_WRITE != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(efa.register_mr(&RegMr {
        pd: pd.pdn,
        mr_length: efa.session.device().memory_size(),
        flags: RegMrFlags {
            phys_page_size_shift: 0,
            mem_addr_phy_mode_en: true,
        },
        // Local writes at most, as checked above.
        permissions: permissions(access),
        ..RegMr::default()
    })?)
}
